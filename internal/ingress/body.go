package ingress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// badRecord is what is wrong with one record of a request.
type badRecord struct {
	index int
	err   error
}

func (e *badRecord) Error() string { return fmt.Sprintf("record %d: %v", e.index, e.err) }

func (e *badRecord) Unwrap() error { return e.err }

// framing is how records stand in a body.
type framing uint8

const (
	frameJSON  framing = iota // one value, or an array of them
	frameLines                // a value on each line
	frameWhole                // the body is the record, whatever it holds
)

// framingOf reads a Content-Type. Without one a body is JSON.
func framingOf(contentType string, values Values) (framing, error) {
	kind := "application/json"
	if contentType != "" {
		parsed, _, err := mime.ParseMediaType(contentType)
		if err != nil {
			return 0, fmt.Errorf("Content-Type %q cannot be read: %w", contentType, err)
		}
		kind = parsed
	}
	switch {
	case kind == "application/x-ndjson" || kind == "application/ndjson" || kind == "application/jsonl":
		return frameLines, nil
	case values == ValuesJSON && (kind == "application/json" || strings.HasSuffix(kind, "+json")):
		return frameJSON, nil
	case values != ValuesJSON && kind == "text/plain", values == ValuesBytes && kind == "application/octet-stream":
		return frameWhole, nil
	}
	return 0, fmt.Errorf("Content-Type %q is not one of %s", kind, strings.Join(values.contentTypes(), ", "))
}

// Values is what the records of a source hold.
type Values string

// The kinds of values.
const (
	ValuesJSON  Values = "json"   // a JSON value: what is none is refused
	ValuesText  Values = "string" // text in UTF-8
	ValuesBytes Values = "bytes"  // anything
)

func (v Values) contentTypes() []string {
	switch v {
	case ValuesText:
		return []string{"text/plain (the body is one record)", "application/x-ndjson (a record on each line)"}
	case ValuesBytes:
		return []string{"application/octet-stream or text/plain (the body is one record)", "application/x-ndjson (a record on each line)"}
	}
	return []string{"application/json (a value, or an array of them)", "application/x-ndjson (a value on each line)"}
}

// check says whether a value may be one of a source.
func (v Values) check(b []byte) error {
	switch {
	case v != ValuesBytes && !utf8.Valid(b):
		return errors.New("it is not UTF-8")
	case v == ValuesJSON && !json.Valid(b):
		return fmt.Errorf("it is not JSON: %w", jsonMistake(b))
	}
	return nil
}

// jsonMistake says where the JSON ends to be some.
func jsonMistake(b []byte) error {
	var x json.RawMessage
	err := json.Unmarshal(b, &x)
	var s *json.SyntaxError
	if errors.As(err, &s) {
		return fmt.Errorf("%w (at byte %d)", err, s.Offset)
	}
	return err
}

// split cuts a body into the values of its records, which alias it.
func split(body []byte, f framing, values Values, most int) ([][]byte, error) {
	var out [][]byte
	var err error
	switch f {
	case frameWhole:
		out = [][]byte{body}
	case frameLines:
		for line := range bytes.Lines(body) {
			line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			if len(out) == most {
				return nil, tooMany(most)
			}
			out = append(out, line)
		}
	default:
		if out, err = splitJSON(body, most); err != nil {
			return nil, err
		}
	}
	for i, v := range out {
		if err := values.check(v); err != nil {
			return nil, &badRecord{i, err}
		}
	}
	return out, nil
}

func tooMany(most int) error {
	return fmt.Errorf("more than %d records in one request: send them in several", most)
}

// splitJSON cuts an array into its elements; what is no array is one record.
func splitJSON(body []byte, most int) ([][]byte, error) {
	trimmed := bytes.TrimSpace(body)
	if len(trimmed) == 0 {
		return nil, errors.New("the body is empty: want a JSON value, or an array of them")
	}
	if trimmed[0] != '[' {
		return [][]byte{trimmed}, nil
	}
	var out [][]byte
	dec := json.NewDecoder(bytes.NewReader(trimmed))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		if len(out) == most {
			return nil, tooMany(most)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, &badRecord{len(out), broken(err)}
		}
		out = append(out, v)
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("behind record %d the array is not closed: %w", len(out)-1, broken(err))
	}
	if rest := bytes.TrimSpace(trimmed[dec.InputOffset():]); len(rest) > 0 {
		return nil, fmt.Errorf("something follows the array, at byte %d; several values go on a line each, as application/x-ndjson", dec.InputOffset())
	}
	return out, nil
}

// broken says of the end of a body that it came too early.
func broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends in its middle")
	}
	return fmt.Errorf("it is not JSON: %w", err)
}

// fields are the top-level fields of a JSON object that name a record.
type fields struct{ id, key string }

// find reads the fields as texts; nil: it is not there, or null. Of a field that stands twice the last one counts, as for the
// expressions of a pipeline.
func (f fields) find(value []byte) (id, key []byte, err error) {
	if f == (fields{}) {
		return nil, nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(value))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, errors.New("it is no JSON object, so that it has no fields")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, nil, err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, nil, err
		}
		if name == f.id && f.id != "" {
			if id, err = fieldText(f.id, v); err != nil {
				return nil, nil, err
			}
		}
		if name == f.key && f.key != "" {
			if key, err = fieldText(f.key, v); err != nil {
				return nil, nil, err
			}
		}
	}
	return id, key, nil
}

// fieldText is a field as an ID or a key: a text as it stands, or a whole number. Other numbers have several forms of one value.
func fieldText(name string, v []byte) ([]byte, error) {
	switch c := v[0]; {
	case string(v) == "null":
		return nil, nil
	case c == '"':
		// Half of a UTF-16 pair is refused: read as U+FFFD, different IDs were one.
		s, err := serde.JSON[string]().Decode(v)
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", name, err)
		}
		if s == "" {
			return nil, fmt.Errorf("field %q is empty", name)
		}
		return []byte(s), nil
	case c == '-' || c >= '0' && c <= '9':
		if digits := strings.TrimPrefix(string(v), "-"); strings.Trim(digits, "0123456789") == "" && (digits != "0" || c != '-') {
			return v, nil
		}
	}
	return nil, fmt.Errorf("field %q must be a text or a whole number, this is %.40s", name, v)
}

// identity gives a record the ID that it has each time it is sent.
func (c *HTTPConfig) identity(header string, index int, field []byte) (record.ID, error) {
	var id record.ID
	switch {
	case field != nil:
		id = record.BytesID(field)
	case c.IDField != "" && !c.Anonymous:
		return "", fmt.Errorf("field %q is missing: it identifies the record", c.IDField)
	case header != "":
		// An index behind a slash ends every such ID, so that no key of a request is another one's.
		id = record.ID(fmt.Sprintf("%s/%d", header, index))
		if c.IDField != "" { // nor that of a record that brings its own
			id = record.ID(c.idHeader() + ": " + string(id))
		}
	case c.Anonymous:
		id = newID()
	default:
		return "", errNoKey
	}
	return id, id.Check()
}

// errNoKey: a request can only be sent again without harm if its records can be told.
var errNoKey = errors.New("the request has no ID")

// requestKey is the ID of a request.
func (c *HTTPConfig) requestKey(h http.Header) (string, error) {
	all := h.Values(c.idHeader())
	if len(all) > 1 {
		return "", fmt.Errorf("%d headers %s: one is wanted", len(all), c.idHeader())
	}
	if len(all) == 0 {
		return "", nil
	}
	key := strings.TrimSpace(all[0])
	if !utf8.ValidString(key) {
		return "", fmt.Errorf("header %s is not UTF-8", c.idHeader())
	}
	return key, nil
}
