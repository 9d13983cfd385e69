package pipeline

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

const (
	// maxEncodeDepth bounds the nesting of computed values.
	maxEncodeDepth = 1000
	// maxValueBytes bounds a computed value: a few bytes of an expression can ask for a list of a million
	// copies of a text. Kafka's own default limit of a record is 1 MiB.
	maxValueBytes = 16 << 20
)

var (
	errValueLarge = fmt.Errorf("the value has more than %d MiB", maxValueBytes>>20)
	errNotUTF8    = errors.New("a text that is not UTF-8 cannot be written as JSON")
)

// appendJSON writes a value as JSON. The same value always gives the same bytes: an object that was read
// is written as it was read, a computed one in the order of its declaration, a map in the order of its keys.
func appendJSON(b []byte, v ref.Val, depth int) ([]byte, error) {
	if depth > maxEncodeDepth {
		return nil, fmt.Errorf("a value is nested more than %d levels deep", maxEncodeDepth)
	}
	if len(b) > maxValueBytes {
		return nil, errValueLarge
	}
	switch v := v.(type) {
	case types.Null:
		return append(b, "null"...), nil
	case types.Bool:
		return strconv.AppendBool(b, bool(v)), nil
	case types.Int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case types.Uint:
		return strconv.AppendUint(b, uint64(v), 10), nil
	case types.Double:
		return appendFloat(b, float64(v))
	case types.String:
		return appendString(b, string(v))
	case types.Bytes:
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, v)
		return append(b, '"'), nil
	case types.Timestamp:
		b = append(b, '"')
		b = v.UTC().AppendFormat(b, time.RFC3339Nano)
		return append(b, '"'), nil
	case types.Duration:
		// As google.protobuf.Duration in JSON: seconds.
		return append(append(b, '"'), durationText(v.Duration)+`"`...), nil
	case decimal:
		if v.number {
			return append(b, v.String()...), nil
		}
		return append(append(append(b, '"'), v.String()...), '"'), nil
	case *jsonObject:
		return v.appendJSON(b, depth)
	case traits.Mapper:
		return appendMap(b, v, depth)
	case traits.Lister:
		return appendList(b, v, depth)
	case *types.Err:
		return nil, v
	}
	return nil, fmt.Errorf("a value of type %s cannot be written", v.Type().TypeName())
}

func durationText(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign = "-"
	}
	seconds, nanos := d/time.Second, d%time.Second
	text := strconv.FormatUint(uint64(max(seconds, -seconds)), 10)
	if nanos != 0 {
		text += "." + fmt.Sprintf("%09d", max(nanos, -nanos))
		for text[len(text)-1] == '0' {
			text = text[:len(text)-1]
		}
	}
	return sign + text + "s"
}

func (o *jsonObject) appendJSON(b []byte, depth int) ([]byte, error) {
	if o.raw != nil {
		return append(b, o.raw...), nil
	}
	b = append(b, '{')
	first := true
	var err error
	for i, f := range o.fields {
		if f.raw == nil && f.val == nil {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		if b, err = appendString(b, o.name(i)); err != nil {
			return nil, err
		}
		b = append(b, ':')
		if f.raw != nil {
			b = append(b, f.raw...)
			continue
		}
		if b, err = appendJSON(b, f.val, depth+1); err != nil {
			return nil, fieldError(o.name(i), err)
		}
	}
	return append(b, '}'), nil
}

func appendList(b []byte, l traits.Lister, depth int) ([]byte, error) {
	b = append(b, '[')
	var err error
	for it, n := l.Iterator(), 0; it.HasNext() == types.True; n++ {
		if n > 0 {
			b = append(b, ',')
		}
		if b, err = appendJSON(b, it.Next(), depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

// appendMap sorts the names: CEL's own maps have no order.
func appendMap(b []byte, m traits.Mapper, depth int) ([]byte, error) {
	type entry struct {
		name  string
		value ref.Val
	}
	var entries []entry
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, err := keyText(key)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name, m.Get(key)})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		switch {
		case a.name < b.name:
			return -1
		case a.name > b.name:
			return 1
		}
		return 0
	})
	b = append(b, '{')
	var err error
	for i, e := range entries {
		if i > 0 {
			if e.name == entries[i-1].name {
				return nil, fmt.Errorf("two keys of a map are both written as %q", e.name)
			}
			b = append(b, ',')
		}
		if b, err = appendString(b, e.name); err != nil {
			return nil, err
		}
		b = append(b, ':')
		if b, err = appendJSON(b, e.value, depth+1); err != nil {
			return nil, fieldError(e.name, err)
		}
	}
	return append(b, '}'), nil
}

// appendFloat writes a float as encoding/json does: the shortest text that reads back as the same number.
func appendFloat(b []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%v cannot be written as JSON", f)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(b, f, format, -1, 64), nil
}

// appendString writes a JSON string. Only what must be escaped is. The error is errNotUTF8: with another character
// in the place of such bytes, texts that differ would be written alike.
func appendString(b []byte, s string) ([]byte, error) {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				return nil, errNotUTF8
			}
			i += size
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"'), nil
}

// keyText is the text of a value that identifies something: a record's key, an ID, a name in a map. Equal
// values have equal texts. Objects and lists have none.
func keyText(v ref.Val) (string, error) {
	switch v := v.(type) {
	case types.String:
		return string(v), nil
	case types.Bytes:
		return string(v), nil
	case types.Int:
		return strconv.FormatInt(int64(v), 10), nil
	case types.Uint:
		return strconv.FormatUint(uint64(v), 10), nil
	case types.Bool:
		return strconv.FormatBool(bool(v)), nil
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), nil
	case decimal:
		return v.canonical(), nil
	case *types.Err:
		return "", v
	}
	return "", fmt.Errorf("a value of type %s identifies nothing: want a string, bytes, integer, decimal, boolean or timestamp", v.Type().TypeName())
}
