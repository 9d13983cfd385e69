package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/quagmt/udecimal"
	"github.com/zeebo/xxh3"

	"github.com/streamd/streamd/record"
)

// maxDistinct is how many different values count_distinct counts exactly, for each key. The set is part of the
// state: 16 bytes a value are written to the changelog with each new one. One more is an error of the
// record, never an estimate.
const maxDistinct = 1000

// The functions of aggregate fields.
const (
	fnCount    = "count"
	fnSum      = "sum"
	fnMin      = "min"
	fnMax      = "max"
	fnAvg      = "avg"
	fnFirst    = "first"
	fnLast     = "last"
	fnDistinct = "count_distinct"
)

func aggregateFunctions() []string {
	return []string{fnCount, fnSum, fnMin, fnMax, fnAvg, fnFirst, fnLast, fnDistinct}
}

// aggregatePlan is the fields section of an aggregate step.
type aggregatePlan struct {
	fields []aggregateField
	out    *structType
	dec    *decoder
}

type aggregateField struct {
	name, function string
	arg            *expr
	typ            *types.Type // of the argument
	by             *expr       // first, last: what they go by; nil: the order of arrival
	byType         *types.Type
}

// resultType is the type of the field, nil if the function cannot be used on the argument's type.
func resultType(function string, t *types.Type) *types.Type {
	number := isDecimal(t) || t.Kind() == types.IntKind || t.Kind() == types.DoubleKind || t.Kind() == types.DynKind
	switch function {
	case fnCount:
		if t.Kind() == types.BoolKind {
			return types.IntType
		}
	case fnDistinct:
		if k := t.Kind(); number && k != types.DoubleKind || k == types.StringKind || k == types.BytesKind || k == types.BoolKind || k == types.TimestampKind {
			return types.IntType
		}
	case fnSum:
		switch {
		case t.Kind() == types.DynKind:
			return decimalTypeValue
		case number:
			return t
		}
	case fnAvg:
		switch {
		case t.Kind() == types.DoubleKind:
			return t
		case number:
			return decimalTypeValue
		}
	case fnMin, fnMax:
		if k := t.Kind(); number || k == types.StringKind || k == types.BytesKind || k == types.TimestampKind {
			return t
		}
	case fnFirst, fnLast:
		return t
	}
	return nil
}

// aggregateState is the state of one key: a cell for each field. It is never changed once it is made.
type aggregateState struct{ cells []aggregateCell }

type aggregateCell struct {
	n   int64         // count, avg
	val ref.Val       // all but count and count_distinct; nil: nothing yet
	by  ref.Val       // first and last with by: that of val
	set []record.Hash // count_distinct, sorted
}

// add returns the state after one more record.
func (p *aggregatePlan) add(old *aggregateState, r *event) (*aggregateState, error) {
	s := &aggregateState{cells: make([]aggregateCell, len(p.fields))}
	if old != nil {
		copy(s.cells, old.cells)
	}
	for i := range p.fields {
		f := &p.fields[i]
		v, err := f.arg.eval(r)
		if err == nil && f.by != nil {
			err = s.cells[i].addBy(f, v, r)
		} else if err == nil {
			err = s.cells[i].add(f, v)
		}
		if err != nil {
			return nil, fmt.Errorf("field %q: %s: %w", f.name, f.function, err)
		}
	}
	return s, nil
}

func (c *aggregateCell) add(f *aggregateField, v ref.Val) error {
	if f.function == fnCount {
		if v != types.True {
			return nil
		}
		c.n++
		return nil
	}
	if v == types.NullValue && f.function != fnFirst && f.function != fnLast {
		return errors.New("the value is null")
	}
	switch f.function {
	case fnFirst:
		if c.val == nil {
			c.val = v
		}
		return nil
	case fnLast:
		c.val = v
		return nil
	case fnSum:
		return c.sum(f, v)
	case fnAvg:
		c.n++
		return c.sum(f, v)
	case fnMin, fnMax:
		return c.extreme(f, v)
	}
	return c.distinct(v)
}

// sum adds exactly: integers with a check of the overflow, decimals without rounding. A value of an undeclared type and the
// values of an average become decimals.
func (c *aggregateCell) sum(f *aggregateField, v ref.Val) error {
	if f.typ.Kind() == types.DynKind || f.function == fnAvg && f.typ.Kind() == types.IntKind {
		d, ok := asDecimal(v)
		if !ok {
			return fmt.Errorf("want a number, this is %s: declare the type of the field", v.Type().TypeName())
		}
		d.number = false
		v = d
	}
	if c.val == nil {
		c.val = v
		return nil
	}
	total := c.val.(traits.Adder).Add(v)
	if e, ok := total.(*types.Err); ok {
		return runtimeError(e)
	}
	c.val = total
	return nil
}

func (c *aggregateCell) extreme(f *aggregateField, v ref.Val) error {
	if c.val == nil {
		c.val = v
		return nil
	}
	n, err := compareValues(f.typ, v, c.val)
	if err != nil {
		return err
	}
	if n < 0 && f.function == fnMin || n > 0 && f.function == fnMax {
		c.val = v
	}
	return nil
}

// compareValues is below, at or above 0 as a comes before, beside or behind b; t is the type that the file knows of both.
func compareValues(t *types.Type, a, b ref.Val) (int, error) {
	if t.Kind() == types.DynKind {
		x, ok := asDecimal(a)
		y, ok2 := asDecimal(b)
		switch {
		case ok && ok2:
			a, b = x, y
		case a.Type() != b.Type():
			return 0, fmt.Errorf("%s cannot be compared with %s", a.Type().TypeName(), b.Type().TypeName())
		}
	}
	less, ok := a.(traits.Comparer)
	if !ok {
		return 0, fmt.Errorf("values of type %s have no order", a.Type().TypeName())
	}
	n, ok := less.Compare(b).(types.Int)
	if !ok {
		return 0, fmt.Errorf("%s cannot be compared with %s", a.Type().TypeName(), b.Type().TypeName())
	}
	return int(n), nil
}

// addBy puts a record to first or last that go by an expression: its value counts if its place is before, or not before, that
// of the value so far. Of equal places the one that came first is the first, and the one that came last the last.
func (c *aggregateCell) addBy(f *aggregateField, v ref.Val, r *event) error {
	by, err := f.by.eval(r)
	if err != nil {
		return fmt.Errorf("by: %w", err)
	}
	if by == types.NullValue {
		return errors.New("by: the value is null")
	}
	return c.place(f, v, by)
}

// place is addBy with both values.
func (c *aggregateCell) place(f *aggregateField, v, by ref.Val) error {
	if c.by == nil {
		c.val, c.by = v, by
		return nil
	}
	n, err := compareValues(f.byType, by, c.by)
	if err != nil {
		return fmt.Errorf("by: %w", err)
	}
	if n < 0 && f.function == fnFirst || n >= 0 && f.function == fnLast {
		c.val, c.by = v, by
	}
	return nil
}

// merge returns the state of the records of both, those of a being the earlier ones: of two sessions that have become one.
func (p *aggregatePlan) merge(a, b *aggregateState) (*aggregateState, error) {
	switch {
	case a == nil:
		return b, nil
	case b == nil:
		return a, nil
	}
	s := &aggregateState{cells: slices.Clone(a.cells)}
	for i := range p.fields {
		f := &p.fields[i]
		if err := s.cells[i].merge(f, &b.cells[i]); err != nil {
			return nil, fmt.Errorf("field %q: %s: %w", f.name, f.function, err)
		}
	}
	return s, nil
}

func (c *aggregateCell) merge(f *aggregateField, later *aggregateCell) error {
	c.n += later.n
	for _, h := range later.set {
		if err := c.insert(h); err != nil {
			return err
		}
	}
	switch {
	case later.val == nil:
		return nil
	case c.val == nil:
		c.val, c.by = later.val, later.by
		return nil
	case f.by != nil:
		return c.place(f, later.val, later.by)
	}
	switch f.function {
	case fnLast:
		c.val = later.val
	case fnSum, fnAvg:
		return c.sum(f, later.val)
	case fnMin, fnMax:
		return c.extreme(f, later.val)
	}
	return nil
}

func (c *aggregateCell) distinct(v ref.Val) error {
	text, err := keyText(v)
	if err != nil {
		return err
	}
	return c.insert(record.StringID(text).Hash())
}

// insert puts a value's hash to the set.
func (c *aggregateCell) insert(h record.Hash) error {
	i, found := slices.BinarySearchFunc(c.set, h, func(a, b record.Hash) int { return slices.Compare(a[:], b[:]) })
	if found {
		return nil
	}
	if len(c.set) >= maxDistinct {
		return fmt.Errorf("more than %d different values for one key", maxDistinct)
	}
	// A new slice: the old state keeps its own.
	set := make([]record.Hash, 0, len(c.set)+1)
	c.set = append(append(append(set, c.set[:i]...), h), c.set[i:]...)
	return nil
}

// result makes the step's output of a state.
func (p *aggregatePlan) result(s *aggregateState) (ref.Val, error) {
	o := &jsonObject{typ: p.out, dec: p.dec, open: true, fields: make([]jsonField, len(p.fields))}
	for i := range p.fields {
		c, f := &s.cells[i], &p.fields[i]
		v := c.val
		switch f.function {
		case fnCount:
			v = types.Int(c.n)
		case fnDistinct:
			v = types.Int(len(c.set))
		case fnAvg:
			switch sum := c.val.(type) {
			case decimal:
				avg, err := sum.divide(c.n)
				if err != nil {
					return nil, fmt.Errorf("field %q: avg: %w", f.name, err)
				}
				v = avg
			case types.Double:
				v = sum / types.Double(c.n)
			}
		}
		o.fields[i].val = v
	}
	return o, nil
}

// divide rounds half to even at averageScale digits after the point; zeros beyond the number's own scale
// are cut.
func (x decimal) divide(n int64) (decimal, error) {
	// sum/n = (digits * 10^(averageScale+1)) / (n * 10^scale) / 10^(averageScale+1), in integers.
	scale := int(x.scale)
	digits, ok := new(big.Int).SetString(strings.Replace(x.d.StringFixed(x.scale), ".", "", 1), 10)
	if !ok || n <= 0 {
		return decimal{}, fmt.Errorf("%s / %d has no value", x, n)
	}
	exp := func(e int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(e)), nil) }
	num := digits.Mul(digits, exp(averageScale))
	den := new(big.Int).Mul(big.NewInt(n), exp(scale))
	quo, rem := new(big.Int).QuoRem(num, den, new(big.Int))
	switch rem.Abs(rem).Lsh(rem, 1).Cmp(den) {
	case 1:
		quo.Add(quo, big.NewInt(int64(num.Sign())))
	case 0:
		if quo.Bit(0) == 1 {
			quo.Add(quo, big.NewInt(int64(num.Sign())))
		}
	}
	text := new(big.Int).Abs(quo).String()
	for len(text) <= averageScale {
		text = "0" + text
	}
	text = text[:len(text)-averageScale] + "." + text[len(text)-averageScale:]
	if quo.Sign() < 0 {
		text = "-" + text
	}
	d, err := udecimal.Parse(strings.TrimRight(strings.TrimRight(text, "0"), "."))
	if err != nil {
		return decimal{}, errDecimalLarge
	}
	return bounded(d, min(scale, averageScale))
}

// The state's encoding: version, a hash of the step's fields, then for each field
//
//	count           varint n
//	avg             varint n, value
//	count_distinct  uvarint number of hashes, the hashes
//	others          value; of first and last with by: value, value of by
//
// where a value is uvarint length+1 and its JSON, or 0 for none.
const aggregateVersion = 1

// fingerprint identifies the meaning of the cells: a state of other fields must not be read as one of these.
func (p *aggregatePlan) fingerprint() uint64 {
	var b strings.Builder
	for _, f := range p.fields {
		fmt.Fprintf(&b, "%q %s %s", f.name, f.function, typeText(f.typ))
		if f.by != nil {
			fmt.Fprintf(&b, " by %s", typeText(f.byType))
		}
		b.WriteByte('\n')
	}
	return xxh3.HashString(b.String())
}

// aggregateSerde encodes the state in a recValue for the store.
type aggregateSerde struct {
	plan        *aggregatePlan
	fingerprint uint64
}

var (
	errStateDefinition = errors.New("the state was written by other fields of this step: give the step a new name, or reset the pipeline")
	errStateCorrupt    = errors.New("the state is damaged")
)

// Append implements serde.Serde.
func (s aggregateSerde) Append(dst []byte, v recValue) ([]byte, error) {
	dst = append(dst, aggregateVersion)
	dst = binary.BigEndian.AppendUint64(dst, s.fingerprint)
	if v.state == nil {
		return nil, errors.New("no state")
	}
	for i, c := range v.state.cells {
		f := &s.plan.fields[i]
		switch f.function {
		case fnCount:
			dst = binary.AppendVarint(dst, c.n)
			continue
		case fnDistinct:
			dst = binary.AppendUvarint(dst, uint64(len(c.set)))
			for _, h := range c.set {
				dst = append(dst, h[:]...)
			}
			continue
		case fnAvg:
			dst = binary.AppendVarint(dst, c.n)
		}
		var err error
		if dst, err = appendStateValue(dst, c.val); err == nil && f.by != nil {
			dst, err = appendStateValue(dst, c.by)
		}
		if err != nil {
			return nil, fieldError(f.name, err)
		}
	}
	return dst, nil
}

func appendStateValue(dst []byte, v ref.Val) ([]byte, error) {
	if v == nil {
		return append(dst, 0), nil
	}
	text, err := appendJSON(nil, v, 0)
	if err != nil {
		return nil, err
	}
	return append(binary.AppendUvarint(dst, uint64(len(text))+1), text...), nil
}

// Decode implements serde.Serde.
func (s aggregateSerde) Decode(b []byte) (recValue, error) {
	const header = 9
	switch {
	case b == nil:
		return recValue{}, nil
	case len(b) < header:
		return recValue{}, errStateCorrupt
	case b[0] != aggregateVersion:
		return recValue{}, fmt.Errorf("the state has format %d, this version reads %d", b[0], aggregateVersion)
	case binary.BigEndian.Uint64(b[1:]) != s.fingerprint:
		return recValue{}, errStateDefinition
	}
	r := stateReader{b: b[header:]}
	state := &aggregateState{cells: make([]aggregateCell, len(s.plan.fields))}
	for i := range state.cells {
		c, f := &state.cells[i], &s.plan.fields[i]
		switch f.function {
		case fnCount:
			c.n = r.varint()
			continue
		case fnDistinct:
			c.set = r.hashes()
			continue
		case fnAvg:
			c.n = r.varint()
		}
		c.val = r.value(s.plan.dec, resultType(f.function, f.typ))
		if f.by != nil {
			c.by = r.value(s.plan.dec, f.byType)
		}
	}
	if r.bad || len(r.b) != 0 {
		return recValue{}, errStateCorrupt
	}
	return recValue{state: state}, nil
}

// stateReader reads the cells of a state; after the first mistake everything is zero.
type stateReader struct {
	b   []byte
	bad bool
}

func (r *stateReader) varint() int64 {
	v, n := binary.Varint(r.b)
	return v * int64(b2i(r.skip(n)))
}

func (r *stateReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	return v * uint64(b2i(r.skip(n)))
}

func (r *stateReader) skip(n int) bool {
	if r.bad || n <= 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return false
	}
	r.b = r.b[n:]
	return true
}

func (r *stateReader) hashes() []record.Hash {
	n := r.uvarint()
	if n > maxDistinct || int(n)*record.HashBytes > len(r.b) {
		r.bad = true
		return nil
	}
	out := make([]record.Hash, n)
	for i := range out {
		copy(out[i][:], r.b)
		r.skip(record.HashBytes)
	}
	return out
}

func (r *stateReader) value(d *decoder, t *types.Type) ref.Val {
	n := r.uvarint()
	if r.bad || n == 0 || n-1 > uint64(len(r.b)) {
		r.bad = r.bad || n != 0
		return nil
	}
	// A copy: what is decoded may share memory with it, and the state outlives the store's bytes.
	text := slices.Clone(r.b[:n-1])
	if n > 1 {
		r.skip(int(n - 1))
	}
	v, err := d.root(text, t)
	if err != nil {
		r.bad = true
		return nil
	}
	return v
}
