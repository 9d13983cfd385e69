package soak

import (
	"fmt"
	"strconv"
	"strings"
)

// regions is how many regions the accounts belong to.
const regions = 7

// bill is the n-th bill of an account, counted from 0.
type bill struct{ account, n int32 }

// cents is its amount: the same function for whoever sends and whoever checks.
func (b bill) cents(seed uint64) int64 {
	z := seed ^ uint64(b.account)<<32 ^ uint64(b.n)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return 1 + int64((z^z>>31)%1000)
}

func (b bill) id() string { return fmt.Sprintf("b-%d-%d", b.account, b.n) }

func (b bill) json(seed uint64) []byte {
	return fmt.Appendf(nil, `{"bill_id":%q,"account":%q,"region":"region-%d","n":%d,"cents":%d}`,
		b.id(), accountName(b.account), b.account%regions, b.n, b.cents(seed))
}

// lateJSON is a bill that comes too late for the window. Its ID is its own, and it must never come out.
func lateJSON(account int32, number int64) []byte {
	return fmt.Appendf(nil, `{"bill_id":"%s%d","account":%q,"region":"region-%d","n":0,"cents":1}`, latePrefix, number, accountName(account), account%regions)
}

const latePrefix = "late-"

func accountName(number int32) string { return fmt.Sprintf("account-%d", number) }

// parseID is the reverse of id.
func parseID(s string, accounts int) (bill, error) {
	rest, ok := strings.CutPrefix(s, "b-")
	account, n, ok2 := strings.Cut(rest, "-")
	a, err := strconv.ParseInt(account, 10, 32)
	m, err2 := strconv.ParseInt(n, 10, 32)
	b := bill{int32(a), int32(m)}
	if !ok || !ok2 || err != nil || err2 != nil || a < 0 || int(a) >= accounts || m < 0 || b.id() != s {
		return bill{}, fmt.Errorf("soak: %q is no bill of this run", s)
	}
	return b, nil
}
