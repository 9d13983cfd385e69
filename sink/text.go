package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// ValueText is a value that Table.Check has passed as text, for targets without types: a timestamp in UTC with
// microseconds, bytes in base64, a float in its shortest exact form. It is not for nil.
func ValueText(v any) string {
	switch v := v.(type) {
	case time.Time:
		return v.UTC().Format("2006-01-02T15:04:05.000000Z")
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// AppendJSON appends a row that Check has passed as one JSON object on one line, its fields in the order of the columns: the same
// row gives the same bytes. Decimals are strings, so that no reader makes floats of them; see ValueText for the other
// kinds. Errors: a value that JSON has no form for.
func (t Table) AppendJSON(dst []byte, r Row) ([]byte, error) {
	for i, c := range t.Columns {
		if i == 0 {
			dst = append(dst, '{')
		} else {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, c.Name), ':')
		var err error
		if dst, err = c.appendJSON(dst, r.Values[i]); err != nil {
			return nil, fmt.Errorf("column %q: %w", c.Name, err)
		}
	}
	return append(dst, '}'), nil
}

func (c Column) appendJSON(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool, int64:
		return fmt.Append(dst, v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, errors.New("a number that JSON does not have: not a number, or infinite")
		}
	case string:
		if c.Kind == JSON {
			var line bytes.Buffer // a value may come in several lines
			if err := json.Compact(&line, []byte(v)); err != nil {
				return nil, errors.New("no valid json") // without the value: errors are shown to more people than records
			}
			return append(dst, line.Bytes()...), nil
		}
		return appendString(dst, v), nil
	default:
		return appendString(dst, ValueText(v)), nil
	}
	return append(dst, ValueText(v)...), nil
}

// appendString appends a JSON string that is as readable as JSON allows.
func appendString(dst []byte, s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string has a form, and a buffer takes it
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}
