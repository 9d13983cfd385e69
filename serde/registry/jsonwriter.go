package registry

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/streamd/streamd/serde"
)

// jsonWriter writes the JSON of one value, within a bound.
type jsonWriter struct {
	b    []byte
	from int // where the value begins
	text serde.Serde[string]
}

// room fails if so much more would be too much.
func (w *jsonWriter) room(more int) error {
	if more > maxValueBytes || len(w.b)-w.from+more > maxValueBytes {
		return errLarge
	}
	return nil
}

// raw writes a piece of JSON.
func (w *jsonWriter) raw(s string) error {
	if err := w.room(len(s)); err != nil {
		return err
	}
	w.b = append(w.b, s...)
	return nil
}

// string writes a text, which must be UTF-8: with another character in the place of such bytes two IDs could be one.
func (w *jsonWriter) string(b []byte) error {
	if err := w.room(len(b)); err != nil {
		return err
	}
	if !utf8.Valid(b) {
		return serde.ErrText
	}
	out, err := w.text.Append(w.b, string(b))
	if err != nil {
		return err
	}
	w.b = out
	return nil
}

func (w *jsonWriter) bytes(b []byte) error {
	if err := w.room(base64.StdEncoding.EncodedLen(len(b)) + 2); err != nil {
		return err
	}
	w.b = append(w.b, '"')
	w.b = base64.StdEncoding.AppendEncode(w.b, b)
	w.b = append(w.b, '"')
	return nil
}

// float writes a number with as few digits as give it back in so many bits.
func (w *jsonWriter) float(f float64, bits int) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("%v has no form in JSON", f)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return w.raw(strconv.FormatFloat(f, format, -1, bits))
}

// The years that RFC 3339 can write: as in CEL.
const minUnix, maxUnix = -62135596800, 253402300799

// time writes a moment by a layout.
func (w *jsonWriter) time(seconds, nanos int64, layout string) error {
	if seconds < minUnix || seconds > maxUnix {
		return fmt.Errorf("a time %d seconds from 1970 is not between the years 1 and 9999", seconds)
	}
	return w.raw(`"` + time.Unix(seconds, nanos).UTC().Format(layout) + `"`)
}

// between writes what is in front of the i-th member of an object or list.
func (w *jsonWriter) between(i int) error {
	if i == 0 {
		return nil
	}
	return w.raw(",")
}

// parseJSON reads a document of numbers that keep their digits.
func parseJSON(doc []byte) (any, error) {
	if len(doc) > maxValueBytes {
		return nil, errLarge
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("the value is not JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the value is not JSON: more after its end")
	}
	return v, nil
}
