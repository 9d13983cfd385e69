package registry

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoReader writes the JSON of messages. It is not protojson's: whole numbers of 64 bits are numbers, names are those of the schema, and the bytes
// are always the same.
type protoReader struct{ w *jsonWriter }

func (r protoReader) message(m protoreflect.Message, depth int) error {
	if depth > maxDepth {
		return errDeep
	}
	if known, err := r.wellKnown(m, depth); known || err != nil {
		return err
	}
	if err := r.w.raw("{"); err != nil {
		return err
	}
	written := 0
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		// A field that can be missing is missing; one that cannot has its zero.
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		if err := r.w.between(written); err != nil {
			return err
		}
		written++
		if err := r.name(f.TextName()); err != nil {
			return err
		}
		if err := r.field(f, m.Get(f), depth); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
	}
	return r.w.raw("}")
}

func (r protoReader) name(name string) error {
	if err := r.w.string([]byte(name)); err != nil {
		return err
	}
	return r.w.raw(":")
}

func (r protoReader) field(f protoreflect.FieldDescriptor, v protoreflect.Value, depth int) error {
	switch {
	case f.IsMap():
		return r.entries(f, v.Map(), depth)
	case !f.IsList():
		return r.value(f, v, depth)
	}
	if err := r.w.raw("["); err != nil {
		return err
	}
	list := v.List()
	for i := range list.Len() {
		if err := r.w.between(i); err != nil {
			return err
		}
		if err := r.value(f, list.Get(i), depth); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	return r.w.raw("]")
}

// entries writes a map in the order of its keys.
func (r protoReader) entries(f protoreflect.FieldDescriptor, m protoreflect.Map, depth int) error {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	for k := range m.Range {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return cmp.Compare(a.String(), b.String()) })
	if err := r.w.raw("{"); err != nil {
		return err
	}
	for i, k := range keys {
		if err := r.w.between(i); err != nil {
			return err
		}
		if err := r.name(k.String()); err != nil {
			return err
		}
		if err := r.value(f.MapValue(), m.Get(k), depth); err != nil {
			return fmt.Errorf("%q: %w", short(k.String()), err)
		}
	}
	return r.w.raw("}")
}

func (r protoReader) value(f protoreflect.FieldDescriptor, v protoreflect.Value, depth int) error {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return r.w.raw(strconv.FormatBool(v.Bool()))
	case protoreflect.EnumKind:
		if d := f.Enum().Values().ByNumber(v.Enum()); d != nil {
			return r.w.string([]byte(d.Name()))
		}
		return r.w.raw(strconv.FormatInt(int64(v.Enum()), 10)) // of a newer schema
	case protoreflect.FloatKind:
		return r.w.float(v.Float(), 32)
	case protoreflect.DoubleKind:
		return r.w.float(v.Float(), 64)
	case protoreflect.StringKind:
		return r.w.string([]byte(v.String()))
	case protoreflect.BytesKind:
		return r.w.bytes(v.Bytes())
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return r.message(v.Message(), depth+1)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return r.w.raw(strconv.FormatUint(v.Uint(), 10))
	}
	return r.w.raw(strconv.FormatInt(v.Int(), 10))
}

// wellKnown writes the messages of google.protobuf that stand for something simpler. (Protobuf, JSON mapping.)
func (r protoReader) wellKnown(m protoreflect.Message, depth int) (known bool, err error) {
	d := m.Descriptor()
	if d.ParentFile().Package() != "google.protobuf" {
		return false, nil
	}
	field := func(name protoreflect.Name) (protoreflect.FieldDescriptor, protoreflect.Value) {
		f := d.Fields().ByName(name)
		return f, m.Get(f)
	}
	switch d.Name() {
	case "Timestamp", "Duration":
		_, seconds := field("seconds")
		_, nanos := field("nanos")
		if d.Name() == "Duration" {
			return true, r.duration(seconds.Int(), nanos.Int())
		}
		if n := nanos.Int(); n < 0 || n >= int64(time.Second) {
			return true, fmt.Errorf("a timestamp of %d nanoseconds", n)
		}
		return true, r.w.time(seconds.Int(), nanos.Int(), time.RFC3339Nano)
	case "DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue":
		f, v := field("value")
		return true, r.value(f, v, depth)
	case "Struct":
		f, v := field("fields")
		return true, r.entries(f, v.Map(), depth)
	case "ListValue":
		f, v := field("values")
		return true, r.field(f, v, depth)
	case "Value":
		f := m.WhichOneof(d.Oneofs().ByName("kind"))
		if f == nil || f.Name() == "null_value" {
			return true, r.w.raw("null")
		}
		return true, r.value(f, m.Get(f), depth)
	}
	return false, nil
}

// duration writes seconds with an s.
func (r protoReader) duration(seconds, nanos int64) error {
	const most = 315_576_000_000 // of google.protobuf.Duration
	if seconds < -most || seconds > most || nanos <= -int64(time.Second) || nanos >= int64(time.Second) || seconds < 0 && nanos > 0 || seconds > 0 && nanos < 0 {
		return fmt.Errorf("a duration of %d seconds and %d nanoseconds", seconds, nanos)
	}
	sign := ""
	if seconds < 0 || nanos < 0 {
		sign, seconds, nanos = "-", -seconds, -nanos
	}
	text := strconv.FormatInt(seconds, 10)
	if nanos != 0 {
		text = fmt.Sprintf("%d.%09d", seconds, nanos)
		for text[len(text)-1] == '0' {
			text = text[:len(text)-1]
		}
	}
	return r.w.raw(`"` + sign + text + `s"`)
}
