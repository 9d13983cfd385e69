package pipeline

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// errMissing is what reading a field that is not there (or null) comes to. Where an ID is asked for it means
// that the record has none; everywhere else it is an error of the step.
var errMissing = errors.New("is missing or null")

// jsonField is one field of an object: its bytes, its value, or both.
type jsonField struct {
	raw []byte  // nil: not there, or computed
	val ref.Val // nil: not decoded yet
}

// jsonObject is a JSON object as a CEL value: one that was read (raw is set; a field is decoded when it is
// asked for, and the object is written again as it was read) or one that was computed. It belongs to
// one task.
type jsonObject struct {
	typ  *structType // nil: no declared type, a CEL map
	raw  []byte
	dec  *decoder
	bad  error
	open bool // fields are filled in
	// absent: it stands for a side of a join that has no match.
	absent bool
	// fields has one entry for each field of typ, in its order; or, without a type, one for each member.
	fields []jsonField
	names  []string       // without a type: the members' names, no name twice
	places map[string]int // of the names, if there are many
}

// decoder turns JSON into values of declared types.
type decoder struct {
	adapter types.Adapter
	structs map[string]*structType
}

// root decodes a whole document. The object's text is checked here; its fields are decoded when used.
func (d *decoder) root(b []byte, t *types.Type) (ref.Val, error) {
	i := skipSpace(b, 0)
	if i < len(b) && b[i] == '{' && (t.Kind() == types.StructKind || t.Kind() == types.DynKind) {
		o := &jsonObject{typ: d.structs[t.TypeName()], dec: d, raw: b}
		o.parse()
		return o, o.bad
	}
	b, err := trimJSON(b)
	if err != nil {
		return nil, err
	}
	return d.decode(b, t)
}

// parse finds the fields and checks the whole text.
func (o *jsonObject) parse() {
	if o.open {
		return
	}
	o.open = true
	if o.typ != nil {
		o.fields = make([]jsonField, len(o.typ.fields))
	}
	s := objectScan{b: o.raw, at: skipSpace(o.raw, 0)}
	for s.next() {
		if o.typ != nil {
			o.set(&s)
			continue
		}
		o.add(s.name(), s.value)
	}
	o.bad = s.err
	if o.bad == nil {
		if rest := skipSpace(o.raw, s.at); rest < len(o.raw) {
			o.bad = jsonFail(rest, "more after the value")
		}
	}
}

// set notes the member for its declared field, if there is one. Of a name that stands twice the last counts.
func (o *jsonObject) set(s *objectScan) {
	for i := range o.typ.fields {
		if s.is(o.typ.fields[i].name) {
			o.fields[i].raw = s.value
			return
		}
	}
}

// add appends a member of an object without a declared type.
func (o *jsonObject) add(name string, raw []byte) {
	if i := o.indexOf(name); i >= 0 {
		o.fields[i].raw = raw
		return
	}
	o.names = append(o.names, name)
	o.fields = append(o.fields, jsonField{raw: raw})
	// Few members are searched one by one; for many the square would hurt.
	const few = 16
	switch {
	case o.places != nil:
		o.places[name] = len(o.names) - 1
	case len(o.names) > few:
		o.places = make(map[string]int, 2*few)
		for i, n := range o.names {
			o.places[n] = i
		}
	}
}

// field returns the value of the i-th field, decoded. errMissing if it is not there or null.
func (o *jsonObject) field(i int) (ref.Val, error) {
	f := &o.fields[i]
	if f.val != nil {
		if f.val == types.NullValue && o.typ != nil {
			return nil, errMissing
		}
		return f.val, nil
	}
	if f.raw == nil {
		if o.absent {
			return nil, errNoMatch
		}
		return nil, errMissing
	}
	t := types.DynType
	if o.typ != nil {
		t = o.typ.fields[i].typ
		if f.raw[0] == 'n' {
			return nil, errMissing
		}
	}
	v, err := o.dec.decode(f.raw, t)
	if err != nil {
		return nil, err
	}
	f.val = v
	return v, nil
}

// decode reads one checked value, without white space around it, as a value of type t.
func (d *decoder) decode(b []byte, t *types.Type) (ref.Val, error) {
	return d.decodeIn(b, t, 0)
}

// maxListDepth bounds lists in lists: each level reads the text of all levels below once more.
const maxListDepth = 64

// decodeIn is decode inside of depth lists.
func (d *decoder) decodeIn(b []byte, t *types.Type, depth int) (ref.Val, error) {
	switch {
	case b[0] == 'n' && t.Kind() != types.DynKind:
		return types.NullValue, nil
	case isDecimal(t):
		return decodeDecimal(b)
	}
	switch t.Kind() {
	case types.DynKind:
		return d.decodeAny(b, depth)
	case types.StructKind:
		if b[0] == '{' {
			o := &jsonObject{typ: d.structs[t.TypeName()], dec: d, raw: b}
			o.parse()
			return o, o.bad
		}
	case types.ListKind:
		if b[0] == '[' {
			return d.decodeList(b, t.Parameters()[0], depth)
		}
	case types.StringKind:
		if b[0] == '"' {
			return types.String(unquoteJSON(b[1 : len(b)-1])), nil
		}
	case types.BytesKind:
		if b[0] == '"' {
			raw, err := base64.StdEncoding.DecodeString(unquoteJSON(b[1 : len(b)-1]))
			if err != nil {
				return nil, fmt.Errorf("bytes are written in base64: %w", err)
			}
			return types.Bytes(raw), nil
		}
	case types.BoolKind:
		if b[0] == 't' || b[0] == 'f' {
			return types.Bool(b[0] == 't'), nil
		}
	case types.IntKind:
		if isNumber(b) {
			return decodeInt(b)
		}
	case types.DoubleKind:
		if isNumber(b) {
			f, err := strconv.ParseFloat(string(b), 64)
			if err != nil {
				return nil, fmt.Errorf("%s does not fit a float", shorten(string(b)))
			}
			return types.Double(f), nil
		}
	case types.TimestampKind:
		return decodeTime(b)
	}
	return nil, fmt.Errorf("want %s, this is %s", typeText(t), jsonKind(b))
}

func isNumber(b []byte) bool { return b[0] == '-' || b[0] >= '0' && b[0] <= '9' }

func jsonKind(b []byte) string {
	switch b[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func decodeInt(b []byte) (ref.Val, error) {
	if n, err := strconv.ParseInt(string(b), 10, 64); err == nil {
		return types.Int(n), nil
	}
	// 1e3 and 5.0 are integers, too.
	if x, err := parseDecimal(string(b)); err == nil {
		if n, ok := x.int64(); ok {
			return types.Int(n), nil
		}
	}
	return nil, fmt.Errorf("%s is not an integer of 64 bits", shorten(string(b)))
}

// decodeDecimal reads a number, or a string that holds one.
func decodeDecimal(b []byte) (ref.Val, error) {
	var text string
	switch {
	case b[0] == '"':
		text = unquoteJSON(b[1 : len(b)-1])
	case isNumber(b):
		text = string(b)
	default:
		return nil, fmt.Errorf("want a decimal, this is %s", jsonKind(b))
	}
	x, err := parseDecimal(text)
	if err != nil {
		return nil, err
	}
	return x, nil
}

// Timestamps of this range can be written in RFC 3339 and are what CEL allows.
const minUnix, maxUnix = -62135596800, 253402300799

// decodeTime reads RFC 3339, or a number of milliseconds since 1970, as Kafka's own timestamps are.
func decodeTime(b []byte) (ref.Val, error) {
	switch {
	case b[0] == '"':
		s := unquoteJSON(b[1 : len(b)-1])
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil || t.Unix() < minUnix || t.Unix() > maxUnix {
			return nil, fmt.Errorf("%q is not a time such as 2026-01-02T15:04:05Z", shorten(s))
		}
		return types.Timestamp{Time: t.UTC()}, nil
	case isNumber(b):
		v, err := decodeInt(b)
		if err != nil {
			return nil, err
		}
		ms := int64(v.(types.Int))
		if ms/1000 < minUnix || ms/1000 > maxUnix {
			return nil, fmt.Errorf("%d is not a time in milliseconds since 1970", ms)
		}
		return types.Timestamp{Time: time.UnixMilli(ms).UTC()}, nil
	}
	return nil, fmt.Errorf("want a timestamp, this is %s", jsonKind(b))
}

// decodeAny reads a value without a declared type. Numbers stay exact: an integer of 64 bits, else a decimal.
func (d *decoder) decodeAny(b []byte, depth int) (ref.Val, error) {
	switch {
	case b[0] == '{':
		o := &jsonObject{dec: d, raw: b}
		o.parse()
		return o, o.bad
	case b[0] == '[':
		return d.decodeList(b, types.DynType, depth)
	case b[0] == '"':
		return types.String(unquoteJSON(b[1 : len(b)-1])), nil
	case b[0] == 't' || b[0] == 'f':
		return types.Bool(b[0] == 't'), nil
	case b[0] == 'n':
		return types.NullValue, nil
	}
	if n, err := strconv.ParseInt(string(b), 10, 64); err == nil && string(b) != "-0" {
		return types.Int(n), nil
	}
	x, err := parseDecimal(string(b))
	if err != nil {
		return nil, fmt.Errorf("%w; declare the field as float to read it rounded", err)
	}
	x.number = true
	return x, nil
}

func (d *decoder) decodeList(b []byte, t *types.Type, depth int) (ref.Val, error) {
	if depth >= maxListDepth {
		return nil, fmt.Errorf("lists are nested more than %d levels deep", maxListDepth)
	}
	s := arrayScan{b: b}
	var out []ref.Val
	for s.next() {
		v, err := d.decodeIn(s.value, t, depth+1)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", len(out), err)
		}
		out = append(out, v)
	}
	if s.err != nil {
		return nil, s.err
	}
	return types.NewRefValList(d.adapter, out), nil
}

// indexOf returns the place of a field by its name, or -1.
func (o *jsonObject) indexOf(name string) int {
	if o.typ != nil {
		if i, ok := o.typ.index[name]; ok {
			return i
		}
		return -1
	}
	if o.places != nil {
		if i, ok := o.places[name]; ok {
			return i
		}
		return -1
	}
	for i, n := range o.names {
		if n == name {
			return i
		}
	}
	return -1
}

// get returns a field by its name; errMissing if there is none.
func (o *jsonObject) get(name string) (ref.Val, error) {
	if i := o.indexOf(name); i >= 0 {
		return o.field(i)
	}
	return nil, errMissing
}

// fieldError names the field in an error of reading it.
func fieldError(name string, err error) error {
	if errors.Is(err, errMissing) {
		return fmt.Errorf("field %q %w", name, err)
	}
	return fmt.Errorf("field %q: %w", name, err)
}

// Find implements traits.Mapper.
func (o *jsonObject) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	v, err := o.get(string(name))
	switch {
	case errors.Is(err, errMissing):
		return nil, false
	case err != nil:
		return types.WrapErr(fieldError(string(name), err)), true
	}
	return v, true
}

// Get implements traits.Indexer.
func (o *jsonObject) Get(key ref.Val) ref.Val {
	v, found := o.Find(key)
	if !found && v == nil {
		return types.WrapErr(fieldError(fmt.Sprint(key.Value()), errMissing))
	}
	return v
}

// Contains implements traits.Container: the names that are there, null or not.
func (o *jsonObject) Contains(key ref.Val) ref.Val {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key)
	}
	i := o.indexOf(string(name))
	return types.Bool(i >= 0 && (o.fields[i].raw != nil || o.fields[i].val != nil))
}

// Size implements traits.Sizer.
func (o *jsonObject) Size() ref.Val {
	n := 0
	for _, f := range o.fields {
		if f.raw != nil || f.val != nil {
			n++
		}
	}
	return types.Int(n)
}

// name returns the name of the i-th field.
func (o *jsonObject) name(i int) string {
	if o.typ != nil {
		return o.typ.fields[i].name
	}
	return o.names[i]
}

// Iterator implements traits.Iterable: the names, in the order in which they stand in the record.
func (o *jsonObject) Iterator() traits.Iterator {
	names := make([]ref.Val, 0, len(o.fields))
	for i, f := range o.fields {
		if f.raw != nil || f.val != nil {
			names = append(names, types.String(o.name(i)))
		}
	}
	return types.NewRefValList(o.dec.adapter, names).Iterator()
}

// Equal implements ref.Val: the same names with equal values.
func (o *jsonObject) Equal(other ref.Val) ref.Val {
	m, ok := other.(traits.Mapper)
	if !ok || o.Size() != m.Size() {
		return types.False
	}
	for i, f := range o.fields {
		if f.raw == nil && f.val == nil {
			continue
		}
		mine, err := o.field(i)
		theirs, found := m.Find(types.String(o.name(i)))
		if errors.Is(err, errMissing) {
			if found {
				return types.False
			}
			continue
		}
		if err != nil {
			return types.WrapErr(fieldError(o.name(i), err))
		}
		if !found || equalValues(mine, theirs) != types.True {
			return types.False
		}
	}
	return types.True
}

// Type implements ref.Val.
func (o *jsonObject) Type() ref.Type {
	if o.typ != nil {
		return o.typ.celType
	}
	return types.MapType
}

// Value implements ref.Val.
func (o *jsonObject) Value() any { return o }

// ConvertToNative implements ref.Val.
func (o *jsonObject) ConvertToNative(t reflect.Type) (any, error) {
	if reflect.TypeOf(o).AssignableTo(t) {
		return o, nil
	}
	return nil, fmt.Errorf("an object is no %v", t)
}

// ConvertToType implements ref.Val.
func (o *jsonObject) ConvertToType(t ref.Type) ref.Val {
	switch t.TypeName() {
	case o.Type().TypeName():
		return o
	case types.TypeType.TypeName():
		return o.Type().(*types.Type)
	}
	return types.NewErr("an object is no %s", t.TypeName())
}

// equalValues is CEL's == with decimals on either side.
func equalValues(a, b ref.Val) ref.Val {
	if y, ok := b.(decimal); ok {
		return y.Equal(a)
	}
	return types.Equal(a, b)
}
