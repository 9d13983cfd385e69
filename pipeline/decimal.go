package pipeline

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/quagmt/udecimal"
)

const (
	// maxScale is how many digits after the point a decimal may have: the library's limit.
	maxScale = 19
	// maxDigits bounds a decimal, so that no sum or product grows without end.
	maxDigits = 100
	// averageScale is how many digits after the point an average has at most.
	averageScale = 10
)

// decimalTypeValue is the type of exact decimal numbers in expressions. It is never changed.
var decimalTypeValue = types.NewOpaqueType("decimal").WithTraits(traits.AdderType | traits.SubtractorType | traits.MultiplierType | traits.NegatorType | traits.ComparerType)

// isDecimal says whether a type is decimal: the type-checker hands out copies.
func isDecimal(t *types.Type) bool {
	return t == decimalTypeValue || t.Kind() == types.OpaqueKind && t.TypeName() == decimalTypeValue.TypeName()
}

// decimal is an exact decimal number as a CEL value.
type decimal struct {
	d udecimal.Decimal
	// scale is how many digits after the point are written: 10.10 + 0.90 is 11.00. It has no part in
	// comparisons. Invariant: d.Prec() <= scale <= maxScale.
	scale uint8
	// number: written as a JSON number, since it came as one in a value without a declared type.
	number bool
}

var (
	errDecimalInexact = fmt.Errorf("the result has more than %d digits after the point: use round(x, digits)", maxScale)
	errDecimalLarge   = fmt.Errorf("the number has more than %d digits", maxDigits)
)

// parseDecimal reads [+-]digits[.digits][(e|E)[+-]digits].
func parseDecimal(s string) (decimal, error) {
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		e, err := strconv.Atoi(s[i+1:])
		if err != nil || e > maxDigits || e < -maxDigits {
			return decimal{}, fmt.Errorf("%q is not a decimal number of at most %d digits", shorten(s), maxDigits)
		}
		mantissa, exponent = s[:i], e
	}
	if len(mantissa) > maxDigits+2 {
		return decimal{}, errDecimalLarge
	}
	if exponent != 0 {
		mantissa = shift(mantissa, exponent)
	}
	// udecimal takes 19 digits after the point; zeros at the end are no digits that matter.
	if i := strings.IndexByte(mantissa, '.'); i >= 0 && len(mantissa)-i-1 > maxScale {
		cut := strings.TrimRight(mantissa, "0")
		mantissa = mantissa[:max(len(cut), i+1+maxScale)]
	}
	d, err := udecimal.Parse(mantissa)
	switch {
	case errors.Is(err, udecimal.ErrPrecOutOfRange):
		return decimal{}, fmt.Errorf("%q has more than %d digits after the point", shorten(s), maxScale)
	case err != nil:
		return decimal{}, fmt.Errorf("%q is not a decimal number", shorten(s))
	}
	scale := 0
	if i := strings.IndexByte(mantissa, '.'); i >= 0 {
		scale = len(mantissa) - i - 1
	}
	return bounded(d, scale)
}

// shift moves the point of a number by e places: 1.25, 1 becomes 12.5.
func shift(s string, e int) string {
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	if e > 0 {
		if pad := e - len(fraction); pad > 0 {
			fraction += strings.Repeat("0", pad)
		}
		whole, fraction = whole+fraction[:e], fraction[e:]
	} else {
		if pad := -e - len(whole) + 1; pad > 0 {
			whole = strings.Repeat("0", pad) + whole
		}
		cut := len(whole) + e
		whole, fraction = whole[:cut], whole[cut:]+fraction
	}
	if fraction == "" {
		return sign + whole
	}
	return sign + whole + "." + fraction
}

// bounded makes a decimal of the number, with an error beyond maxDigits.
func bounded(d udecimal.Decimal, scale int) (decimal, error) {
	if _, _, _, _, small := d.ToHiLo(); !small && len(d.String()) > maxDigits {
		return decimal{}, errDecimalLarge
	}
	return decimal{d: d, scale: uint8(min(max(scale, d.Prec()), maxScale))}, nil
}

func shorten(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

func decimalFromInt(n int64) decimal {
	// A scale of 0 is within the range: no error is possible.
	d, _ := udecimal.NewFromInt64(n, 0)
	return decimal{d: d, number: true}
}

// String is the number with its scale: "10.10".
func (x decimal) String() string { return x.d.StringFixed(x.scale) }

// canonical is the number without zeros at its end: equal numbers have equal texts.
func (x decimal) canonical() string { return x.d.String() }

// trimmed is the number without zeros at its end: it is written as canonical is.
func (x decimal) trimmed() decimal {
	x.scale = uint8(len(fraction(x.d)))
	x.d = x.d.Trunc(x.scale)
	return x
}

func (x decimal) add(y decimal) (decimal, error) {
	out, err := bounded(x.d.Add(y.d), int(max(x.scale, y.scale)))
	out.number = x.number && y.number
	return out, err
}

func (x decimal) sub(y decimal) (decimal, error) {
	out, err := bounded(x.d.Sub(y.d), int(max(x.scale, y.scale)))
	out.number = x.number && y.number
	return out, err
}

// mul is exact or an error: udecimal itself would cut the product at 19 digits.
func (x decimal) mul(y decimal) (decimal, error) {
	a, b := x.d, y.d
	if a.Prec()+b.Prec() > maxScale {
		a, b = a.Trunc(uint8(len(fraction(a)))), b.Trunc(uint8(len(fraction(b))))
		if a.Prec()+b.Prec() > maxScale {
			return decimal{}, errDecimalInexact
		}
	}
	out, err := bounded(a.Mul(b), int(x.scale)+int(y.scale))
	out.number = x.number && y.number
	return out, err
}

// fraction returns the digits after the point that matter.
func fraction(d udecimal.Decimal) string {
	_, f, _ := strings.Cut(d.String(), ".")
	return f
}

// round rounds half to even.
func (x decimal) round(scale int) (decimal, error) {
	if scale < 0 || scale > maxScale {
		return decimal{}, fmt.Errorf("round to %d digits, want 0 to %d", scale, maxScale)
	}
	return decimal{d: x.d.RoundBank(uint8(scale)), scale: uint8(scale), number: x.number}, nil
}

// int64 returns the number if it is an integer of 64 bits.
func (x decimal) int64() (int64, bool) {
	if fraction(x.d) != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(x.d.String(), 10, 64)
	return n, err == nil
}

// asDecimal takes a decimal or an integer for a decimal.
func asDecimal(v ref.Val) (decimal, bool) {
	switch v := v.(type) {
	case decimal:
		return v, true
	case types.Int:
		return decimalFromInt(int64(v)), true
	case types.Uint:
		d, _ := udecimal.NewFromUint64(uint64(v), 0)
		return decimal{d: d, number: true}, true
	}
	return decimal{}, false
}

// decimalResult turns a result of arithmetic into a CEL value.
func decimalResult(d decimal, err error) ref.Val {
	if err != nil {
		return types.WrapErr(err)
	}
	return d
}

func (x decimal) with(other ref.Val, op func(decimal, decimal) (decimal, error)) ref.Val {
	y, ok := asDecimal(other)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	return decimalResult(op(x, y))
}

// The methods below are what CEL asks of a value with the traits of decimalTypeValue.

// Add implements traits.Adder.
func (x decimal) Add(other ref.Val) ref.Val { return x.with(other, decimal.add) }

// Subtract implements traits.Subtractor.
func (x decimal) Subtract(other ref.Val) ref.Val { return x.with(other, decimal.sub) }

// Multiply implements traits.Multiplier.
func (x decimal) Multiply(other ref.Val) ref.Val { return x.with(other, decimal.mul) }

// Negate implements traits.Negater.
func (x decimal) Negate() ref.Val { return decimal{d: x.d.Neg(), scale: x.scale, number: x.number} }

// Compare implements traits.Comparer.
func (x decimal) Compare(other ref.Val) ref.Val {
	y, ok := asDecimal(other)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	return types.Int(x.d.Cmp(y.d))
}

// Equal implements ref.Val: numbers are equal whatever their scale.
func (x decimal) Equal(other ref.Val) ref.Val {
	y, ok := asDecimal(other)
	return types.Bool(ok && x.d.Equal(y.d))
}

// Type implements ref.Val.
func (x decimal) Type() ref.Type { return decimalTypeValue }

// Value implements ref.Val.
func (x decimal) Value() any { return x }

// ConvertToNative implements ref.Val.
func (x decimal) ConvertToNative(t reflect.Type) (any, error) {
	if reflect.TypeOf(x).AssignableTo(t) {
		return x, nil
	}
	if t.Kind() == reflect.String {
		return x.String(), nil
	}
	return nil, fmt.Errorf("a decimal is no %v", t)
}

// ConvertToType implements ref.Val.
func (x decimal) ConvertToType(t ref.Type) ref.Val {
	switch t.TypeName() {
	case decimalTypeValue.TypeName():
		return x
	case types.StringType.TypeName():
		return types.String(x.String())
	case types.DoubleType.TypeName():
		return types.Double(x.d.InexactFloat64())
	case types.IntType.TypeName():
		if n, ok := x.int64(); ok {
			return types.Int(n)
		}
		return types.NewErr("%s is not an integer of 64 bits: use round(x, 0) first", x)
	case types.TypeType.TypeName():
		return decimalTypeValue
	}
	return types.NewErr("a decimal is no %s", t.TypeName())
}

// toDecimal is the function decimal(x). A double is refused: it is no exact number any more.
func toDecimal(v ref.Val) ref.Val {
	switch v := v.(type) {
	case decimal:
		v.number = false
		return v
	case types.String:
		return decimalResult(parseDecimal(string(v)))
	case types.Int, types.Uint:
		d, _ := asDecimal(v)
		d.number = false
		return d
	case types.Double:
		if f := float64(v); f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return types.NewErr("decimal(%v): a float is not exact, write the number as a text or declare the field as decimal", f)
		}
		d := decimalFromInt(int64(v))
		d.number = false
		return d
	}
	return types.MaybeNoSuchOverloadErr(v)
}
