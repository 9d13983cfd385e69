package pipeline

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxJSONDepth is encoding/json's limit, so that both accept the same values.
const maxJSONDepth = 10_000

// jsonError says where a value stops being JSON.
type jsonError struct {
	offset int
	what   string
}

func (e *jsonError) Error() string {
	return fmt.Sprintf("not JSON at byte %d: %s", e.offset+1, e.what)
}

func jsonFail(offset int, what string) error { return &jsonError{offset, what} }

// skipSpace returns the index of the next byte that is no white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString checks the string that starts at b[i] (the quote) and returns the index behind it. plain
// means that the bytes between the quotes are the text: ASCII without an escape.
//
// A text is Unicode. encoding/json reads bytes that are not UTF-8, and halves of a UTF-16 pair, as U+FFFD, all of
// them alike: as IDs or keys, different texts would be one. (RFC 8259, 8.1 and 8.2; RFC 7493, 2.1.)
func skipString(b []byte, i int) (end int, plain bool, err error) {
	start, ascii := i, true
	i++
	plain = true
	for {
		// Eight bytes at once while none of them is a quote, a backslash, a control character or not ASCII.
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			stop := special(w)
			if stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			return 0, false, jsonFail(start, "the text has no end")
		}
		switch c := b[i]; {
		case c == '"':
			if !ascii {
				if bad := invalidUTF8(b[start+1 : i]); bad >= 0 {
					return 0, false, jsonFail(start+1+bad, "a text that is not UTF-8")
				}
			}
			return i + 1, plain, nil
		case c == '\\':
			plain = false
			if i, err = skipEscape(b, i); err != nil {
				return 0, false, err
			}
		case c < 0x20:
			return 0, false, jsonFail(i, "a control character in a text")
		default:
			if c >= utf8.RuneSelf {
				plain, ascii = false, false
			}
			i++
		}
	}
}

// invalidUTF8 returns the index of the first byte that is not UTF-8, -1 if all are.
func invalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	for i := 0; ; {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
}

// special marks, with the top bit of each byte, which of eight bytes need a closer look. A mark above
// the first one may be wrong (the borrow of a subtraction), the first one is not.
func special(w uint64) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^(ones*'"'), w^(ones*'\\')
	return ((quote - ones) | (slash - ones) | (w - ones*0x20) | w) & tops
}

func skipEscape(b []byte, i int) (int, error) {
	if i+1 >= len(b) {
		return 0, jsonFail(i, "an escape without an end")
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
		unit, ok := escapedUnit(b, i)
		switch {
		case !ok:
		case !utf16.IsSurrogate(unit):
			return i + 6, nil
		default:
			if low, ok := escapedUnit(b, i+6); ok && utf16.DecodeRune(unit, low) != utf8.RuneError {
				return i + 12, nil
			}
			return 0, jsonFail(i, "half of a pair of UTF-16, without the other half")
		}
	}
	return 0, jsonFail(i, "an unknown escape")
}

// escapedUnit reads the escape \uXXXX at b[i]: one unit of UTF-16.
func escapedUnit(b []byte, i int) (unit rune, ok bool) {
	if i+6 > len(b) || b[i] != '\\' || b[i+1] != 'u' {
		return 0, false
	}
	for _, c := range b[i+2 : i+6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | rune(c)
	}
	return unit, true
}

// skipNumber checks the number at b[i]: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func skipNumber(b []byte, i int) (int, error) {
	start := i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i] >= '1' && b[i] <= '9':
		i = skipDigits(b, i)
	default:
		return 0, jsonFail(start, "a number without digits")
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = skipDigits(b, from); i == from {
			return 0, jsonFail(start, "a number without digits after the point")
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from := i
		if i = skipDigits(b, from); i == from {
			return 0, jsonFail(start, "a number without digits in its exponent")
		}
	}
	return i, nil
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

// skipValue checks the value at b[i] and returns the index behind it.
func skipValue(b []byte, i, depth int) (int, error) {
	if i >= len(b) {
		return 0, jsonFail(i, "a value is missing")
	}
	switch c := b[i]; {
	case c == '"':
		end, _, err := skipString(b, i)
		return end, err
	case c == '{':
		s := objectScan{b: b, at: i, depth: depth}
		for s.next() {
		}
		return s.at, s.err
	case c == '[':
		s := arrayScan{b: b, at: i, depth: depth}
		for s.next() {
		}
		return s.at, s.err
	case c == '-' || c >= '0' && c <= '9':
		return skipNumber(b, i)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if len(b)-i >= len(word) && string(b[i:i+len(word)]) == word {
			return i + len(word), nil
		}
	}
	return 0, jsonFail(i, fmt.Sprintf("a value cannot start with %q", b[i]))
}

// objectScan walks over the members of an object and checks it on the way: after a next that returned
// false with a nil err, at is behind the object.
type objectScan struct {
	b     []byte
	at    int // at the opening brace before the first next
	depth int
	open  bool
	err   error

	// The member that next found. key is what stands between the quotes.
	key   []byte
	plain bool // key is the name itself, see skipString
	value []byte
}

func (s *objectScan) next() bool {
	i := skipSpace(s.b, s.at+1)
	switch {
	case !s.open:
		s.open = true
		if s.depth >= maxJSONDepth {
			s.err = jsonFail(s.at, "nested too deep")
			return false
		}
		if i < len(s.b) && s.b[i] == '}' {
			s.at = i + 1
			return false
		}
	default:
		// s.at is the last byte of the value before.
		if i < len(s.b) && s.b[i] == '}' {
			s.at = i + 1
			return false
		}
		if i >= len(s.b) || s.b[i] != ',' {
			s.err = jsonFail(i, "want , or } after a member")
			return false
		}
		i = skipSpace(s.b, i+1)
	}
	return s.member(i)
}

func (s *objectScan) member(i int) bool {
	if i >= len(s.b) || s.b[i] != '"' {
		s.err = jsonFail(i, "want the name of a member")
		return false
	}
	end, plain, err := skipString(s.b, i)
	if err != nil {
		s.err = err
		return false
	}
	s.key, s.plain = s.b[i+1:end-1], plain
	i = skipSpace(s.b, end)
	if i >= len(s.b) || s.b[i] != ':' {
		s.err = jsonFail(i, "want : after the name of a member")
		return false
	}
	i = skipSpace(s.b, i+1)
	end, err = skipValue(s.b, i, s.depth+1)
	if err != nil {
		s.err = err
		return false
	}
	s.value, s.at = s.b[i:end], end-1
	return true
}

// is says whether the member is called name.
func (s *objectScan) is(name string) bool {
	if s.plain {
		return string(s.key) == name
	}
	return unquoteJSON(s.key) == name
}

// name returns the name of the member as a text.
func (s *objectScan) name() string {
	if s.plain {
		return string(s.key)
	}
	return unquoteJSON(s.key)
}

// arrayScan walks over the elements of an array, as objectScan does over members.
type arrayScan struct {
	b     []byte
	at    int
	depth int
	open  bool
	err   error
	value []byte
}

func (s *arrayScan) next() bool {
	if !s.open && s.depth >= maxJSONDepth {
		s.err = jsonFail(s.at, "nested too deep")
		return false
	}
	i := skipSpace(s.b, s.at+1)
	if i < len(s.b) && s.b[i] == ']' {
		s.at = i + 1
		return false
	}
	if !s.open {
		s.open = true
	} else {
		if i >= len(s.b) || s.b[i] != ',' {
			s.err = jsonFail(i, "want , or ] after an element")
			return false
		}
		i = skipSpace(s.b, i+1)
	}
	end, err := skipValue(s.b, i, s.depth+1)
	if err != nil {
		s.err = err
		return false
	}
	s.value, s.at = s.b[i:end], end-1
	return true
}

// trimJSON checks that b is one JSON value and returns it without the white space around it.
func trimJSON(b []byte) ([]byte, error) {
	i := skipSpace(b, 0)
	end, err := skipValue(b, i, 0)
	if err != nil {
		return nil, err
	}
	if rest := skipSpace(b, end); rest < len(b) {
		return nil, jsonFail(rest, "more after the value")
	}
	return b[i:end], nil
}

// findField checks that b is one JSON value and returns the member of that name: the last one if there
// are several, as encoding/json does. nil if b is no object or has no such member.
func findField(b []byte, name string) ([]byte, error) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		_, err := trimJSON(b)
		return nil, err
	}
	var found []byte
	s := objectScan{b: b, at: i}
	for s.next() {
		if s.is(name) {
			found = s.value
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	if rest := skipSpace(b, s.at); rest < len(b) {
		return nil, jsonFail(rest, "more after the value")
	}
	return found, nil
}

// unquoteJSON decodes what stands between the quotes of a string that skipString has checked.
func unquoteJSON(inner []byte) string {
	plain := true
	for _, c := range inner {
		if c == '\\' || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain {
		return string(inner)
	}
	quoted := make([]byte, 0, len(inner)+2)
	quoted = append(append(append(quoted, '"'), inner...), '"')
	var out string
	// The string was checked: an error cannot happen, and an empty text would be found as a missing ID.
	if err := json.Unmarshal(quoted, &out); err != nil {
		return ""
	}
	return out
}
