package postgres

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// copyRows appends rows by COPY in its text format. The driver's own CopyFrom asks for the columns' types first, in a round trip of
// its own, and takes decimals apart to write them in binary form: half of the rows a second.
func copyRows(ctx context.Context, conn *sql.Conn, table string, columns []string, rows [][]any) error {
	var text []byte
	for _, row := range rows {
		for i, v := range row {
			if i > 0 {
				text = append(text, '\t')
			}
			var err error
			if text, err = appendCopy(text, v); err != nil {
				return err
			}
		}
		text = append(text, '\n')
	}
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = pgx.Identifier{c}.Sanitize()
	}
	statement := "COPY " + pgx.Identifier(strings.Split(table, ".")).Sanitize() + " (" + strings.Join(names, ", ") + ") FROM STDIN"
	return conn.Raw(func(driver any) error {
		c, ok := driver.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("postgres: a connection of another driver: %T", driver)
		}
		_, err := c.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(text), statement)
		return err
	})
}

// appendCopy appends a value as COPY reads it (PostgreSQL manual, COPY, Text Format).
func appendCopy(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, `\N`...), nil
	case string:
		for i := range len(v) {
			switch c := v[i]; c {
			case '\\':
				b = append(b, `\\`...)
			case '\t':
				b = append(b, `\t`...)
			case '\n':
				b = append(b, `\n`...)
			case '\r':
				b = append(b, `\r`...)
			default:
				b = append(b, c)
			}
		}
		return b, nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case float64:
		return strconv.AppendFloat(b, v, 'g', -1, 64), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case []byte:
		return hex.AppendEncode(append(b, `\\x`...), v), nil
	case time.Time:
		v = v.UTC()
		year, era := v.Year(), ""
		if year < 1 { // there is no year 0
			year, era = 1-year, " BC"
		}
		b = fmt.Appendf(b, "%04d", year)
		return append(v.AppendFormat(b, "-01-02 15:04:05.999999+00"), era...), nil
	}
	return nil, fmt.Errorf("postgres: a value of type %T", v)
}
