package pipeline

import (
	"errors"
	"fmt"
	"math/big"
	"testing"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"pgregory.net/rapid"
)

// testPlan is an aggregate of each function over each type that it takes.
func testPlan() (*aggregatePlan, []aggregateField) {
	plan := &aggregatePlan{dec: &decoder{adapter: types.DefaultTypeAdapter}}
	for _, fn := range aggregateFunctions() {
		for _, typ := range []*types.Type{types.StringType, types.IntType, types.DoubleType, types.BoolType, types.BytesType, types.TimestampType, types.DynType, decimalTypeValue} {
			if resultType(fn, typ) != nil {
				plan.fields = append(plan.fields, aggregateField{name: fmt.Sprintf("%s_%s", fn, typeText(typ)), function: fn, typ: typ})
			}
		}
	}
	return plan, plan.fields
}

// drawValue makes a value of a type.
func drawValue(t *rapid.T, typ *types.Type) ref.Val {
	d := func() decimal {
		x, err := parseDecimal(fmt.Sprintf("%d.%0*d", rapid.Int64Range(-1e12, 1e12).Draw(t, "whole"), rapid.IntRange(1, 9).Draw(t, "scale"), rapid.IntRange(0, 9).Draw(t, "digits")))
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	switch {
	case isDecimal(typ):
		return d()
	case typ.Kind() == types.StringKind:
		return types.String(rapid.String().Draw(t, "string"))
	case typ.Kind() == types.IntKind:
		return types.Int(rapid.Int64Range(-1e15, 1e15).Draw(t, "int"))
	case typ.Kind() == types.DoubleKind:
		return types.Double(rapid.Float64Range(-1e9, 1e9).Draw(t, "float"))
	case typ.Kind() == types.BoolKind:
		return types.Bool(rapid.Bool().Draw(t, "bool"))
	case typ.Kind() == types.BytesKind:
		return types.Bytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case typ.Kind() == types.TimestampKind:
		v, err := decodeTime(fmt.Append(nil, rapid.Int64Range(-1e12, 1e13).Draw(t, "time")))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if rapid.Bool().Draw(t, "whole number") {
		return types.Int(rapid.Int64Range(-1e15, 1e15).Draw(t, "int"))
	}
	x := d()
	x.number = true
	return x
}

// TestStateRoundTrip: a state that went through the store is the same state: it encodes to the same bytes and goes
// on to the same results.
func TestStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan, fields := testPlan()
		serde := aggregateSerde{plan: plan, fingerprint: plan.fingerprint()}
		live, stored := &aggregateState{cells: make([]aggregateCell, len(fields))}, &aggregateState{cells: make([]aggregateCell, len(fields))}
		for range rapid.IntRange(1, 8).Draw(t, "records") {
			for i := range fields {
				v := drawValue(t, fields[i].typ)
				if err := live.cells[i].add(&fields[i], v); err != nil {
					t.Fatalf("%s: %v", fields[i].name, err)
				}
				if err := stored.cells[i].add(&fields[i], v); err != nil {
					t.Fatalf("%s: %v", fields[i].name, err)
				}
			}
			a, err := serde.Append(nil, recValue{state: live})
			if err != nil {
				t.Fatal(err)
			}
			b, err := serde.Append(nil, recValue{state: stored})
			if err != nil || string(a) != string(b) {
				t.Fatalf("%q, stored and read %q, %v", a, b, err)
			}
			back, err := serde.Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			stored = back.state
		}
	})
}

// FuzzState: damaged state is an error, never a panic and never a large allocation.
func FuzzState(f *testing.F) {
	plan, fields := testPlan()
	serde := aggregateSerde{plan: plan, fingerprint: plan.fingerprint()}
	state := &aggregateState{cells: make([]aggregateCell, len(fields))}
	good, err := serde.Append(nil, recValue{state: state})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:9])
	f.Add(append(append([]byte{}, good[:9]...), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := serde.Decode(b)
		if err != nil || v.state == nil {
			return
		}
		if _, err := serde.Append(nil, v); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}

// TestStateOfOtherFields is refused: its numbers mean something else.
func TestStateOfOtherFields(t *testing.T) {
	plan := &aggregatePlan{fields: []aggregateField{{name: "n", function: fnCount, typ: types.BoolType}}}
	other := &aggregatePlan{fields: []aggregateField{{name: "m", function: fnCount, typ: types.BoolType}}}
	b, err := aggregateSerde{plan, plan.fingerprint()}.Append(nil, recValue{state: &aggregateState{cells: []aggregateCell{{n: 5}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (aggregateSerde{other, other.fingerprint()}).Decode(b); !errors.Is(err, errStateDefinition) {
		t.Errorf("got %v", err)
	}
	b[0] = 9
	if _, err := (aggregateSerde{plan, plan.fingerprint()}).Decode(b); err == nil {
		t.Error("a newer format was read")
	}
}

func TestCountDistinctIsExactOrRefused(t *testing.T) {
	f := &aggregateField{name: "d", function: fnDistinct, typ: types.IntType}
	var c aggregateCell
	for i := range 3 * maxDistinct {
		before := c.set
		err := c.add(f, types.Int(i%maxDistinct))
		if err != nil || len(c.set) != min(i+1, maxDistinct) {
			t.Fatalf("%d values: %d, %v", i, len(c.set), err)
		}
		if len(before) > 0 && len(c.set) > len(before) && &before[0] == &c.set[0] {
			t.Fatal("the old set was changed")
		}
	}
	if err := c.add(f, types.Int(maxDistinct)); err == nil {
		t.Error("one more was accepted")
	}
}

// TestDecimalAgainstBigRat compares arithmetic and averages with exact fractions.
func TestDecimalAgainstBigRat(t *testing.T) {
	text := rapid.StringMatching(`-?[0-9]{1,25}(\.[0-9]{1,9})?`)
	rat := func(t *rapid.T, s string) *big.Rat {
		r, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%q", s)
		}
		return r
	}
	rapid.Check(t, func(t *rapid.T) {
		x, y := text.Draw(t, "x"), text.Draw(t, "y")
		a, err := parseDecimal(x)
		b, err2 := parseDecimal(y)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		ra, rb := rat(t, x), rat(t, y)
		same := func(what string, d decimal, err error, want *big.Rat) {
			if err != nil {
				t.Fatalf("%s %s %s: %v", x, what, y, err)
			}
			if rat(t, d.String()).Cmp(want) != 0 || rat(t, d.canonical()).Cmp(want) != 0 {
				t.Fatalf("%s %s %s = %s, want %s", x, what, y, d, want)
			}
		}
		sum, err := a.add(b)
		same("+", sum, err, new(big.Rat).Add(ra, rb))
		diff, err := a.sub(b)
		same("-", diff, err, new(big.Rat).Sub(ra, rb))
		product, err := a.mul(b)
		same("*", product, err, new(big.Rat).Mul(ra, rb))
		if got, want := a.Compare(b), ra.Cmp(rb); got != types.Int(want) {
			t.Fatalf("%s cmp %s = %v, want %d", x, y, got, want)
		}
		n := rapid.Int64Range(1, 1000).Draw(t, "n")
		avg, err := a.divide(n)
		if err != nil {
			t.Fatal(err)
		}
		exact := new(big.Rat).Quo(ra, new(big.Rat).SetInt64(n))
		// FloatString rounds half away from zero; half to even differs only for exact halves.
		off := new(big.Rat).Sub(rat(t, avg.String()), exact)
		if half := big.NewRat(1, 2*1e10); off.Abs(off).Cmp(half) > 0 {
			t.Fatalf("%s / %d = %s, off by %s", x, n, avg, off)
		}
	})
}

func TestDecimalTexts(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "0.00": "0.00", "10.10": "10.10", "1e3": "1000", "1.5E1": "15", "1.25e1": "12.5", "12e-1": "1.2", "-12.5e-3": "-0.0125", "1E0": "1",
		"1.50000000000000000000000": "1.5000000000000000000", "123456789012345678901234567890.5": "123456789012345678901234567890.5",
		"": "!", "-": "!", ".5": "!", "5.": "!", "1e": "!", "1e999": "!", "0.00000000000000000001": "!", "abc": "!", "1 ": "!", "NaN": "!", "1_0": "!",
	} {
		x, err := parseDecimal(in)
		got := x.String()
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q: got %s, %v, want %s", in, got, err, want)
		}
	}
	for sum, want := range map[[2]string]string{{"10", "4"}: "2.5", {"10.00", "4"}: "2.50", {"1", "3"}: "0.3333333333", {"2", "3"}: "0.6666666667", {"-2", "3"}: "-0.6666666667", {"0.0000000001", "2"}: "0.0000000000", {"0.0000000003", "2"}: "0.0000000002", {"0", "7"}: "0"} {
		x, err := parseDecimal(sum[0])
		if err != nil {
			t.Fatal(err)
		}
		n, err := parseDecimal(sum[1])
		if err != nil {
			t.Fatal(err)
		}
		by, _ := n.int64()
		if got, err := x.divide(by); err != nil || got.String() != want {
			t.Errorf("%v: got %s, %v, want %s", sum, got, err, want)
		}
	}
}
