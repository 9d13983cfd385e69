package registry

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
)

// avroWriter writes Avro's binary encoding of what parseJSON gives.
type avroWriter struct {
	b     []byte
	tries int // branches of unions that were tried
}

// maxTries bounds the search for the branches of unions in one value.
const maxTries = 1 << 20

func mismatch(t *avroType, v any) error {
	return fmt.Errorf("want %s, this is %s", t.name, kindName(v))
}

func kindName(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "the number " + short(string(v))
	case string:
		return "the text " + strconv.Quote(short(v))
	case []any:
		return "a list"
	}
	return "an object"
}

// short bounds what a message shows of a value.
func short(s string) string {
	const most = 40
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

func (w *avroWriter) long(v int64) { w.b = binary.AppendVarint(w.b, v) }

func (w *avroWriter) counted(b []byte) {
	w.long(int64(len(b)))
	w.b = append(w.b, b...)
}

// data writes the bytes of a type on bytes or fixed.
func (w *avroWriter) data(t *avroType, b []byte) error {
	if t.size == 0 && t.kind != kindFixed {
		w.counted(b)
		return nil
	}
	if len(b) != t.size {
		return fmt.Errorf("want %d bytes for %s, these are %d", t.size, t.name, len(b))
	}
	w.b = append(w.b, b...)
	return nil
}

func (w *avroWriter) value(t *avroType, v any, depth int) error {
	if depth > maxDepth {
		return errDeep
	}
	if len(w.b) > maxValueBytes {
		return errLarge
	}
	switch t.kind {
	case kindNull:
		if v != nil {
			return mismatch(t, v)
		}
		return nil
	case kindBoolean:
		b, ok := v.(bool)
		if !ok {
			return mismatch(t, v)
		}
		if w.b = append(w.b, 0); b {
			w.b[len(w.b)-1] = 1
		}
		return nil
	case kindInt, kindFloat, kindDouble, kindDecimal:
		return w.number(t, v)
	case kindRecord:
		return w.record(t, v, depth)
	case kindArray:
		list, ok := v.([]any)
		if !ok {
			return mismatch(t, v)
		}
		return w.array(t, list, depth)
	case kindMap:
		object, ok := v.(map[string]any)
		if !ok {
			return mismatch(t, v)
		}
		return w.object(t, object, depth)
	case kindUnion:
		return w.union(t, v, depth)
	case kindDuration:
		return w.duration(t, v)
	case kindMoment, kindLocal, kindDate, kindTime:
		return w.time(t, v)
	}
	text, ok := v.(string)
	if !ok {
		return mismatch(t, v)
	}
	return w.text(t, text)
}

// text writes a value whose JSON is a text.
func (w *avroWriter) text(t *avroType, text string) error {
	switch t.kind {
	case kindString:
		w.counted([]byte(text))
		return nil
	case kindEnum:
		i := slices.Index(t.symbols, text)
		if i < 0 {
			return fmt.Errorf("%q is no symbol of %s", short(text), t.name)
		}
		w.long(int64(i))
		return nil
	case kindUUID:
		b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(b) != t.size || uuidText(b) != strings.ToLower(text) {
			return fmt.Errorf("%q is no UUID", short(text))
		}
		return w.data(t, b)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return fmt.Errorf("bytes are written in base64: %w", err)
	}
	return w.data(t, b)
}

// number writes a number. A text that is one is taken for it, since that is how JSON keeps the digits of a decimal.
func (w *avroWriter) number(t *avroType, v any) error {
	text, ok := numberText(v)
	if !ok {
		return mismatch(t, v)
	}
	x, err := parseExact(text)
	if err != nil {
		return err
	}
	switch t.kind {
	case kindInt:
		n, ok := x.int()
		if !ok || n < t.low || n > t.top {
			return fmt.Errorf("%s is no %s", short(text), t.name)
		}
		w.long(n)
		return nil
	case kindDecimal:
		return w.decimal(t, x, text)
	}
	bits := 64
	if t.kind == kindFloat {
		bits = 32
	}
	f, err := strconv.ParseFloat(text, bits)
	if err != nil {
		return fmt.Errorf("%s does not fit a %s", short(text), t.name)
	}
	// The digits that come out again must be those that went in.
	back, err := parseExact(strconv.FormatFloat(f, 'g', -1, bits))
	if err != nil || back.cmp(x) != 0 {
		return fmt.Errorf("%s loses digits as a %s: a decimal keeps them", short(text), t.name)
	}
	if bits == 32 {
		w.b = binary.LittleEndian.AppendUint32(w.b, math.Float32bits(float32(f)))
	} else {
		w.b = binary.LittleEndian.AppendUint64(w.b, math.Float64bits(f))
	}
	return nil
}

// numberText is the text of a number, or of a text that may be one.
func numberText(v any) (string, bool) {
	switch v := v.(type) {
	case json.Number:
		return string(v), true
	case string:
		return v, v != ""
	}
	return "", false
}

func (w *avroWriter) decimal(t *avroType, x exact, text string) error {
	n, ok := x.unscaled(t.scale)
	if !ok {
		return fmt.Errorf("%s has more than %d digits behind the point", short(text), t.scale)
	}
	if len(new(big.Int).Abs(n).String()) > t.digits {
		return fmt.Errorf("%s has more than %d digits", short(text), t.digits)
	}
	b := twosComplement(n)
	if t.size == 0 {
		return w.data(t, b)
	}
	if len(b) > t.size {
		return fmt.Errorf("%s needs more than %d bytes", short(text), t.size)
	}
	fill := byte(0)
	if n.Sign() < 0 {
		fill = 0xff
	}
	return w.data(t, append(slices.Repeat([]byte{fill}, t.size-len(b)), b...))
}

// twosComplement is a number in as few bytes as hold it and its sign, the highest first.
func twosComplement(n *big.Int) []byte {
	m := n
	if n.Sign() < 0 {
		m = new(big.Int).Not(n) // -n-1 has the bits of n turned over
	}
	b := m.Bytes()
	if len(b) == 0 || b[0]&0x80 != 0 {
		b = append([]byte{0}, b...)
	}
	if n.Sign() < 0 {
		for i := range b {
			b[i] = ^b[i]
		}
	}
	return b
}

// time writes a date, a time of day or a moment. A number is taken as it stands: it is in the type's own unit.
func (w *avroWriter) time(t *avroType, v any) error {
	text, ok := v.(string)
	if !ok {
		number, ok := v.(json.Number)
		if !ok {
			return mismatch(t, v)
		}
		raw := avroType{kind: kindInt, name: t.name, low: t.low, top: t.top}
		return w.number(&raw, number)
	}
	layout := t.layout()
	at, err := time.Parse(layout, text)
	if err != nil {
		return fmt.Errorf("%q is no %s such as %s", short(text), t.name, strings.Replace(layout, ".999999999", "", 1))
	}
	switch t.kind {
	case kindDate:
		w.long(at.Unix() / (24 * 60 * 60))
		return nil
	case kindTime:
		at = time.Unix(int64(at.Hour())*3600+int64(at.Minute())*60+int64(at.Second()), int64(at.Nanosecond()))
	}
	if int64(at.Nanosecond())%t.unit != 0 {
		return fmt.Errorf("%q is finer than the type: it counts units of %v", short(text), time.Duration(t.unit))
	}
	perSecond := int64(time.Second) / t.unit
	if s := at.Unix(); s > math.MaxInt64/perSecond-1 || s < math.MinInt64/perSecond+1 {
		return fmt.Errorf("%q does not fit %s", short(text), t.name)
	}
	w.long(at.Unix()*perSecond + int64(at.Nanosecond())/t.unit)
	return nil
}

// layout is how a type of time is written.
func (t *avroType) layout() string {
	switch t.kind {
	case kindDate:
		return time.DateOnly
	case kindTime:
		return timeLayout
	case kindLocal:
		return localLayout
	}
	return time.RFC3339Nano
}

// duration writes {"months": 1, "days": 2, "millis": 3}.
func (w *avroWriter) duration(t *avroType, v any) error {
	object, ok := v.(map[string]any)
	if !ok {
		return mismatch(t, v)
	}
	if len(object) != 3 {
		return errors.New("want months, days and millis")
	}
	for _, name := range []string{"months", "days", "millis"} {
		number, ok := object[name].(json.Number)
		n, err := strconv.ParseUint(string(number), 10, 32)
		if !ok || err != nil {
			return fmt.Errorf("%s: want a number from 0 to %d", name, uint32(math.MaxUint32))
		}
		w.b = binary.LittleEndian.AppendUint32(w.b, uint32(n))
	}
	return nil
}

func (w *avroWriter) record(t *avroType, v any, depth int) error {
	object, ok := v.(map[string]any)
	if !ok {
		return mismatch(t, v)
	}
	found := 0
	for i := range t.fields {
		f := &t.fields[i]
		x, there := object[f.name]
		switch {
		case there:
			found++
		case f.has:
			x = f.fallback
		case f.typ.nullable():
		default:
			return fmt.Errorf("field %q is missing, and %s has no default for it", f.name, t.name)
		}
		if err := w.value(f.typ, x, depth+1); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if found == len(object) {
		return nil
	}
	for _, name := range sortedNames(object) {
		if !slices.ContainsFunc(t.fields, func(f avroField) bool { return f.name == name }) {
			return fmt.Errorf("%s has no field %q: it would be lost", t.name, short(name))
		}
	}
	return nil
}

func sortedNames(object map[string]any) []string {
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// nullable says whether null is a value of the type.
func (t *avroType) nullable() bool {
	return t.kind == kindNull || slices.ContainsFunc(t.branches, func(b *avroType) bool { return b.kind == kindNull })
}

func (w *avroWriter) array(t *avroType, list []any, depth int) error {
	if len(list) > 0 {
		w.long(int64(len(list)))
	}
	for i, x := range list {
		if err := w.value(t.element, x, depth+1); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	w.long(0)
	return nil
}

// object writes a map, in the order of its names: the same value always gives the same bytes.
func (w *avroWriter) object(t *avroType, object map[string]any, depth int) error {
	if len(object) > 0 {
		w.long(int64(len(object)))
	}
	for _, name := range sortedNames(object) {
		w.counted([]byte(name))
		if err := w.value(t.element, object[name], depth+1); err != nil {
			return fmt.Errorf("%q: %w", short(name), err)
		}
	}
	w.long(0)
	return nil
}

// union writes the first branch that takes the value; one that would read a text as a number comes after those that
// take texts.
func (w *avroWriter) union(t *avroType, v any, depth int) error {
	order := make([]int, len(t.branches))
	for i := range order {
		order[i] = i
	}
	if _, ok := v.(string); ok {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.branches[a].late(), t.branches[b].late()) })
	}
	mark, errs := len(w.b), []error(nil)
	for _, i := range order {
		if w.tries++; w.tries > maxTries {
			return errors.New("too many branches of unions fit or nearly fit the value")
		}
		w.long(int64(i))
		err := w.value(t.branches[i], v, depth+1)
		if err == nil {
			return nil
		}
		w.b = w.b[:mark]
		if t.branches[i].kind != kindNull {
			errs = append(errs, err)
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return fmt.Errorf("no branch of the union takes %s", kindName(v))
}

func (t *avroType) late() int {
	switch t.kind {
	case kindInt, kindFloat, kindDouble, kindDecimal:
		return 1
	}
	return 0
}
