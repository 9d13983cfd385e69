package demo

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	inputTopic  = "bills.raw"
	outputTopic = "account-totals"
	partitions  = 4
	accounts    = 25
)

// bill is what the generator sends. Amounts are whole cents, so that the expected sums are exact.
type bill struct {
	id      string
	account string
	cents   int64
}

func (b bill) json() []byte {
	return fmt.Appendf(nil, `{"bill_id":%q,"account":%q,"amount":%q}`, b.id, b.account, amount(b.cents))
}

// amount writes cents as a decimal.
func amount(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// parseAmount reads a decimal with up to two places.
func parseAmount(s string) (int64, error) {
	whole, part, _ := strings.Cut(s, ".")
	if whole == "" {
		return 0, fmt.Errorf("demo: %q is no amount", s)
	}
	if len(part) > 2 {
		return 0, fmt.Errorf("demo: amount %q has more than two decimal places", s)
	}
	cents, err := strconv.ParseInt(whole+(part + "00")[:2], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("demo: amount %q: %w", s, err)
	}
	return cents, nil
}

// sums are totals per account.
type sums map[string]total

type total struct {
	cents int64
	bills uint64
}

func (s sums) all() (t total) {
	for _, x := range s {
		t.cents += x.cents
		t.bills += x.bills
	}
	return t
}

// group writes a number with a space between thousands.
func group(digits string) string {
	whole, rest, dot := strings.Cut(digits, ".")
	var b strings.Builder
	for i, r := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	if dot {
		b.WriteString("." + rest)
	}
	return b.String()
}

func groupN(n uint64) string { return group(strconv.FormatUint(n, 10)) }
