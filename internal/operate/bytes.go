package operate

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bytes are bytes of a record, shown to people and programs. They come from whoever may write to a topic, so that nothing in them may
// steer a terminal.
type Bytes []byte

// String returns the text, with what is not printable escaped; bytes that are no text as "0x" and digits; "null" for nil.
func (b Bytes) String() string {
	switch {
	case b == nil:
		return "null"
	case !utf8.Valid(b):
		const digits = "0123456789abcdef"
		out := make([]byte, 0, 2+2*len(b))
		out = append(out, "0x"...)
		for _, c := range b {
			out = append(out, digits[c>>4], digits[c&15])
		}
		return string(out)
	}
	return Printable(string(b))
}

// MarshalJSON writes text as a string, other bytes as {"base64": "..."}, nil as null.
func (b Bytes) MarshalJSON() ([]byte, error) {
	switch {
	case b == nil:
		return []byte("null"), nil
	case !utf8.Valid(b):
		return json.Marshal(map[string][]byte{"base64": b})
	}
	return json.Marshal(string(b))
}

// Printable escapes what is not printable, as Go does it: an escape character becomes \x1b.
func Printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}
