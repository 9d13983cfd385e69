package crash

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
)

// Bill is one record of the workload.
type Bill struct {
	ID      string `json:"bill_id"`
	Account string `json:"account"`
	N       int64  `json:"n"` // of its account, from 0: in which order it was first sent
	Cents   int64  `json:"cents"`
}

// Workload is a deterministic sequence of bills, some of them sent again.
type Workload struct {
	Seed     uint64
	Records  int // in all, the repeats included
	Accounts int // some have many bills, most have few
	// RepeatPercent of the records are an earlier one again: nine in ten of these one of the last 10,000, so that it
	// meets the first one in the same transaction, the next one or after a crash, the others one of all before.
	RepeatPercent int
	// Reach is how many records back a repeat reaches at most; 0: any.
	Reach int
}

// MaxCents bounds the amount of a bill.
const MaxCents = 100_000

// repeatWindow is how far back most repeats reach.
const repeatWindow = 10_000

// Expectation is what a workload must come to.
type Expectation struct {
	Distinct int64
	Repeats  int64
	Bills    []int64 // by number of the account
	Cents    []int64 // likewise
}

// Generate calls send for each record in order and returns what must come of them. It stops at the first error.
func (w Workload) Generate(send func(b Bill) error) (Expectation, error) {
	type bill struct{ account, n, cents int32 }
	random := rand.New(rand.NewPCG(w.Seed, 0))
	e := Expectation{Bills: make([]int64, w.Accounts), Cents: make([]int64, w.Accounts)}
	var sent []bill
	for range w.Records {
		var b bill
		if len(sent) > 0 && random.IntN(100) < w.RepeatPercent {
			from := len(sent)
			if random.IntN(10) > 0 {
				from = min(from, repeatWindow)
			}
			if w.Reach > 0 {
				from = min(from, w.Reach)
			}
			b = sent[len(sent)-1-random.IntN(from)]
			e.Repeats++
		} else {
			u := random.Float64()
			a := int(u * u * float64(w.Accounts))
			b = bill{account: int32(a), n: int32(e.Bills[a]), cents: 1 + random.Int32N(MaxCents)}
			e.Bills[a]++
			e.Cents[a] += int64(b.cents)
			e.Distinct++
			sent = append(sent, b)
		}
		err := send(Bill{
			ID:      fmt.Sprintf("bill-%d-%d", b.account, b.n),
			Account: AccountName(int(b.account)), N: int64(b.n), Cents: int64(b.cents),
		})
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// AccountName returns the name of an account.
func AccountName(number int) string { return fmt.Sprintf("account-%d", number) }

// accountNumber is the inverse of AccountName.
func accountNumber(name string, accounts int) (int, error) {
	var n int
	if _, err := fmt.Sscanf(name, "account-%d", &n); err != nil || n < 0 || n >= accounts || AccountName(n) != name {
		return 0, fmt.Errorf("crash: %q is no account of the workload", name)
	}
	return n, nil
}

// Encode returns the bill as the JSON that is sent.
func (b Bill) Encode() ([]byte, error) { return json.Marshal(b) }
