package registry

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// maxDigits bounds the digits and the exponent of a number in JSON: a text of ten bytes can ask for a billion digits.
const maxDigits = 400

// exact is a number as it is written: n times 10 to the power of exp.
type exact struct {
	n   *big.Int
	exp int
}

// parseExact reads a number of JSON.
func parseExact(text string) (exact, error) {
	bad := func() (exact, error) { return exact{}, fmt.Errorf("%q is no number", short(text)) }
	mantissa, power, has := strings.Cut(strings.ToLower(text), "e")
	exp := 0
	if has {
		var err error
		if exp, err = strconv.Atoi(power); err != nil {
			return bad()
		}
	}
	whole, fraction, point := strings.Cut(mantissa, ".")
	digits := strings.TrimPrefix(whole, "-") + fraction
	if digits == "" || point && fraction == "" || strings.Trim(digits, "0123456789") != "" {
		return bad()
	}
	if len(digits) > maxDigits || exp > maxDigits || exp < -maxDigits {
		return exact{}, fmt.Errorf("%s has more than %d digits", short(text), maxDigits)
	}
	n, ok := new(big.Int).SetString(digits, 10)
	if !ok {
		return bad()
	}
	if strings.HasPrefix(whole, "-") {
		n.Neg(n)
	}
	return exact{n, exp - len(fraction)}, nil
}

func tenTo(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// unscaled is the number times 10 to the power of scale, if that is a whole one.
func (x exact) unscaled(scale int) (*big.Int, bool) {
	if x.n.Sign() == 0 {
		return x.n, true
	}
	if shift := x.exp + scale; shift >= 0 {
		return new(big.Int).Mul(x.n, tenTo(shift)), true
	}
	n, rest := new(big.Int).QuoRem(x.n, tenTo(-(x.exp + scale)), new(big.Int))
	return n, rest.Sign() == 0
}

func (x exact) int() (int64, bool) {
	n, whole := x.unscaled(0)
	return n.Int64(), whole && n.IsInt64()
}

func (x exact) cmp(y exact) int {
	low := min(x.exp, y.exp)
	return new(big.Int).Mul(x.n, tenTo(x.exp-low)).Cmp(new(big.Int).Mul(y.n, tenTo(y.exp-low)))
}
