package serde

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrText is the answer of [JSON] to a text that is not Unicode.
var ErrText = errors.New("a text that is not Unicode: bytes that are not UTF-8, or half of a pair of UTF-16")

// isUnicode says whether the texts of valid JSON are. (RFC 8259, 8.1 and 8.2.)
func isUnicode(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for {
		// Valid JSON has a backslash inside of texts only, with something behind it.
		i := bytes.IndexByte(b, '\\')
		if i < 0 {
			return true
		}
		if b = b[i:]; b[1] != 'u' {
			b = b[2:]
			continue
		}
		unit := utf16Unit(b)
		b = b[unitBytes:]
		if !utf16.IsSurrogate(unit) {
			continue
		}
		if len(b) < unitBytes || b[0] != '\\' || b[1] != 'u' || utf16.DecodeRune(unit, utf16Unit(b)) == utf8.RuneError {
			return false
		}
		b = b[unitBytes:]
	}
}

// unitBytes is the length of an escape \uXXXX.
const unitBytes = 6

// utf16Unit is the unit of the escape at the start of b, in valid JSON.
func utf16Unit(b []byte) rune {
	n, err := strconv.ParseUint(string(b[2:unitBytes]), 16, 16)
	if err != nil {
		return utf8.RuneError // no half of a pair: refused if one is wanted here
	}
	return rune(n)
}

// replaced is what encoding/json writes for a byte that is not UTF-8. It writes U+FFFD itself as it is.
const replaced = `\ufffd`

// hasInvalidText finds a text in v, as encoding/json would write it, that is not UTF-8. It is asked only when replaced
// was written, which may also come from a RawMessage. v is finite: it was written.
func hasInvalidText(v reflect.Value) bool {
	if v.IsValid() && v.CanInterface() {
		switch x := v.Interface().(type) {
		case json.Marshaler:
			return false // what it writes is its own
		case encoding.TextMarshaler:
			if v.Kind() == reflect.Pointer && v.IsNil() {
				return false
			}
			b, err := x.MarshalText()
			return err == nil && !utf8.Valid(b)
		}
	}
	switch v.Kind() {
	case reflect.String:
		return !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && hasInvalidText(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if hasInvalidText(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if hasInvalidText(it.Key()) || hasInvalidText(it.Value()) {
				return true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-" && hasInvalidText(v.Field(i)) {
				return true
			}
		}
	}
	return false
}
