package tables

import (
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/streamd/streamd/serde"
)

// rowJSON is a row, as MySQL sends it in text, as a JSON object: numbers with all their digits, times in UTC, bytes in base64.
func rowJSON(types []*sql.ColumnType, values []sql.RawBytes) ([]byte, error) {
	text := serde.JSON[string]()
	out := []byte{'{'}
	for i, t := range types {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = text.Append(out, t.Name()); err != nil {
			return nil, fmt.Errorf("the name of column %q: %w", t.Name(), err)
		}
		out = append(out, ':')
		if out, err = appendValue(out, t.DatabaseTypeName(), values[i], text); err != nil {
			return nil, fmt.Errorf("column %q: %w", t.Name(), err)
		}
	}
	return append(out, '}'), nil
}

func appendValue(out []byte, typ string, v []byte, text serde.Serde[string]) ([]byte, error) {
	if v == nil {
		return append(out, "null"...), nil
	}
	switch strings.TrimPrefix(typ, "UNSIGNED ") {
	case "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "DECIMAL", "FLOAT", "DOUBLE":
		if !json.Valid(v) { // ZEROFILL
			return nil, fmt.Errorf("%s %q is no number of JSON", typ, v)
		}
		return append(out, v...), nil
	case "JSON":
		return append(out, v...), nil
	case "BINARY", "VARBINARY", "BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "BIT", "GEOMETRY", "VECTOR":
		return text.Append(out, base64.StdEncoding.EncodeToString(v))
	case "DATETIME", "TIMESTAMP": // the session is in UTC, and a DATETIME is taken for it, as the sinks write it
		return text.Append(out, strings.Replace(string(v), " ", "T", 1)+"Z")
	}
	return text.Append(out, string(v))
}
