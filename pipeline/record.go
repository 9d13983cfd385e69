package pipeline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/serde/registry"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// recKey is a record's key between two steps: its bytes, its value, or both. The zero recKey is the null key.
type recKey struct {
	raw []byte
	val ref.Val
	// window is the one of which the record is a result; nil: of none, or behind a topic. It is no part of the key's bytes.
	window *window.Window
}

// recValue is a record's value between two steps. The zero recValue is null: a tombstone.
type recValue struct {
	raw []byte  // as it was read; nil: computed, or null
	val ref.Val // nil: null, or not decoded since nobody asks for it
	// from and to delimit, in raw, the one field that was looked for instead of decoding; 0, 0: it is not there.
	from, to uint32
	src      *sourceInfo     // nil behind a repartition topic
	state    *aggregateState // of an aggregate step's output
	pair     *joinPair       // of a join, while its value is made
	gone     *jsonObject     // what a deleted row of a table was, until its key is known
}

// sourceInfo is what every record of a source has in common.
type sourceInfo struct{ topic string }

type (
	event  = record.Record[recKey, recValue]
	stream = topology.Stream[recKey, recValue]
)

// value returns the decoded value.
func (v recValue) value() ref.Val {
	if v.val == nil {
		return types.NullValue
	}
	return v.val
}

// keySerde is the encoding of keys: text for single values, JSON for lists. It shares memory with its input.
type keySerde struct{ typ *types.Type }

// Append implements serde.Serde.
func (s keySerde) Append(dst []byte, k recKey) ([]byte, error) {
	if dst == nil {
		dst = []byte{} // an empty key is not a null one
	}
	switch {
	case k.raw != nil:
		return append(dst, k.raw...), nil
	case k.val == nil || k.val == types.NullValue:
		return nil, nil
	}
	return appendKey(dst, k.val)
}

// appendKey writes equal keys as equal bytes.
func appendKey(dst []byte, v ref.Val) ([]byte, error) {
	if text, err := keyText(v); err == nil {
		return append(dst, text...), nil
	}
	return appendJSON(dst, v, 0)
}

// Decode implements serde.Serde.
func (s keySerde) Decode(b []byte) (recKey, error) {
	return recKey{raw: b}, nil
}

// value returns the decoded key; t is its type.
func (k recKey) value(t *types.Type, d *decoder) (ref.Val, error) {
	if k.val != nil {
		return k.val, nil
	}
	if k.raw == nil {
		return types.NullValue, nil
	}
	switch {
	case isDecimal(t):
		return parseDecimal(string(k.raw))
	case t.Kind() == types.BytesKind:
		return types.Bytes(k.raw), nil
	case t.Kind() == types.IntKind:
		return decodeInt(k.raw)
	case t.Kind() == types.BoolKind:
		b, err := strconv.ParseBool(string(k.raw))
		return types.Bool(b), err
	case t.Kind() == types.TimestampKind:
		at, err := time.Parse(time.RFC3339Nano, string(k.raw))
		return types.Timestamp{Time: at}, err
	case t.Kind() == types.ListKind || t.Kind() == types.StructKind || t.Kind() == types.MapKind:
		return d.root(k.raw, t)
	}
	if !utf8.Valid(k.raw) {
		return nil, errors.New("the key is not UTF-8")
	}
	return types.String(k.raw), nil
}

// Formats of values.
const (
	formatJSON   = "json"
	formatString = "string"
	formatBytes  = "bytes"
)

// valueSerde is the encoding of values. It shares memory with its input.
type valueSerde struct {
	format string
	typ    *types.Type
	dec    *decoder
	src    *sourceInfo // nil: not a source's
	// field: only this field is needed, the rest is checked and passed on. Empty with raw: nothing is
	// needed, but that it is JSON.
	field string
	raw   bool
	// events: what the bytes are depends on the record's headers: see sourcePlan.event.
	events bool
	// codec is what the bytes in the topic are read and written with; nil: they are the value itself.
	codec *registry.Codec
	// change: the values are changes of Debezium, of which row takes the row.
	change, row bool
}

var _ serde.Serde[recValue] = valueSerde{}

// Append implements serde.Serde. What was read and not changed is written as it was read.
func (s valueSerde) Append(dst []byte, v recValue) ([]byte, error) {
	if s.codec == nil {
		return s.append(dst, v)
	}
	doc, err := s.append(nil, v)
	if err != nil || doc == nil {
		return nil, err
	}
	return s.codec.AppendValue(dst, doc)
}

func (s valueSerde) append(dst []byte, v recValue) ([]byte, error) {
	if dst == nil {
		dst = []byte{} // an empty value is not a tombstone
	}
	if v.raw != nil {
		return append(dst, v.raw...), nil
	}
	if v.val == nil {
		return nil, nil
	}
	switch x := v.val.(type) {
	case types.String:
		if s.format == formatString {
			return append(dst, x...), nil
		}
	case types.Bytes:
		if s.format == formatBytes {
			return append(dst, x...), nil
		}
	}
	return appendJSON(dst, v.val, 0)
}

// Decode implements serde.Serde.
func (s valueSerde) Decode(b []byte) (recValue, error) {
	v := recValue{src: s.src}
	var err error
	if s.codec != nil && b != nil {
		if b, err = s.codec.AppendJSON(nil, b); err != nil {
			return v, err
		}
	}
	if s.change && b != nil {
		var gone []byte
		if b, gone, err = openChange(b, s.row); err != nil {
			return v, err
		}
		if len(gone) > 0 && gone[0] == '{' {
			v.gone = &jsonObject{typ: s.dec.structs[s.typ.TypeName()], dec: s.dec, raw: gone}
			v.gone.parse()
		}
	}
	if b == nil {
		return v, nil
	}
	v.raw = b
	switch {
	case s.events:
	case s.format == formatBytes:
		v.val = types.Bytes(b)
	case s.format == formatString:
		if !utf8.Valid(b) {
			return v, errors.New("the value is not UTF-8, read the source with format: bytes")
		}
		if !s.raw {
			v.val = types.String(b)
		}
	case s.raw:
		found, err := findField(b, s.field)
		if err != nil {
			return v, err
		}
		if found != nil {
			// Both are parts of one array: the difference of the capacities is the place.
			v.from = uint32(cap(b) - cap(found))
			v.to = v.from + uint32(len(found))
		}
	default:
		if v.val, err = s.dec.root(b, s.typ); err != nil {
			return v, err
		}
	}
	return v, nil
}

// headerMap is the headers as a CEL map from text to text, the last one of a name counts.
type headerMap struct{ h record.Headers }

func (m headerMap) get(name string) (ref.Val, error) {
	b, ok := m.h.Get(name)
	switch {
	case !ok || b == nil:
		return nil, fmt.Errorf("header %q %w", name, errMissing)
	case !utf8.Valid(b):
		return nil, fmt.Errorf("header %q is not UTF-8", name)
	}
	return types.String(b), nil
}

// positionOf takes the position out of the ID that topology.IDPosition gives a record: cluster,
// topic UUID, partition, offset, each with its length in front.
func positionOf(id record.ID) (partition, offset int64, err error) {
	var parts [4]string
	rest := string(id)
	for i := range parts {
		n := 0
		if rest != "" {
			n = int(rest[0])
		}
		if n == 0 || n >= utf8.RuneSelf || len(rest) < 1+n {
			return 0, 0, errors.New("the record's position is not known here")
		}
		parts[i], rest = rest[1:1+n], rest[1+n:]
	}
	partition, err = strconv.ParseInt(parts[2], 10, 32)
	if err == nil {
		offset, err = strconv.ParseInt(parts[3], 10, 64)
	}
	return partition, offset, err
}

// cloudEventID is the ID of a CloudEvent in binary or structured mode: source and id together, since id
// alone need not be unique.
func cloudEventID(r *event) (record.ID, error) {
	h := headerMap{r.Headers}
	if contentType, ok := r.Headers.Get("content-type"); ok && strings.HasPrefix(strings.ToLower(string(contentType)), "application/cloudevents+json") {
		source, err := findText(r.Value.raw, "source")
		if err != nil {
			return "", err
		}
		id, err := findText(r.Value.raw, "id")
		if err != nil {
			return "", err
		}
		return eventID(source, id), nil
	}
	source, err := h.get("ce_source")
	if err != nil {
		return "", err
	}
	id, err := h.get("ce_id")
	if err != nil {
		return "", err
	}
	return eventID(string(source.(types.String)), string(id.(types.String))), nil
}

// eventID joins the parts without ambiguity, as a text: an expression may put the ID into a value or a list. What
// CompositeID writes in front of a part of 128 bytes or more is no UTF-8. The other form starts with 0, and the first
// one never does.
func eventID(source, id string) record.ID {
	out := record.CompositeID(source, id)
	if out != "" && (len(source) >= utf8.RuneSelf || len(id) >= utf8.RuneSelf) {
		out = record.ID(fmt.Sprintf("\x00%d:%s%s", len(source), source, id))
	}
	return out
}

func findText(b []byte, name string) (string, error) {
	found, err := findField(b, name)
	if err != nil {
		return "", err
	}
	if len(found) < 2 || found[0] != '"' {
		return "", fieldError(name, errMissing)
	}
	return unquoteJSON(found[1 : len(found)-1]), nil
}
