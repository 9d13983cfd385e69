package soak

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// checks judges each output when it comes. Its methods are called by one goroutine at a time: the
// watch holds its lock over them.
type checks struct {
	Config
	echo    []int32 // next bill of each account in the output of the dedup
	totals  []total // of each account
	byWhom  []int32 // next bill of each account in the totals of its region
	regions [regions]total
	out     int64

	once, prefix, order, sums *proof.Result // C1, C2, C3, C4
	latency                   histogram
}

// total is what some bills come to.
type total struct{ Bills, Cents, Low, High int64 }

func (t total) with(cents int64) total {
	if t.Bills == 0 {
		return total{1, cents, cents, cents}
	}
	return total{t.Bills + 1, t.Cents + cents, min(t.Low, cents), max(t.High, cents)}
}

func newChecks(c Config) *checks {
	return &checks{
		Config: c, echo: make([]int32, c.Accounts), totals: make([]total, c.Accounts), byWhom: make([]int32, c.Accounts),
		once:   proof.NewResult("C1", "every bill comes out once, late ones never"),
		prefix: proof.NewResult("C2", "the i-th total of an account is what i bills come to"),
		order:  proof.NewResult("C3", "the bills of an account come out in order"),
		sums:   proof.NewResult("C4", "the totals of a region are the sums of its bills"),
	}
}

// add takes a record of any of the outputs.
func (c *checks) add(r rawlog.Record) {
	switch r.Topic {
	case c.topic("unique"):
		c.out++
		c.addEcho(r)
		c.latency.add(time.Since(r.Time))
	case c.topic("totals"):
		c.addTotal(r)
	case c.topic("regions"):
		c.addRegion(r)
	}
}

func (c *checks) addEcho(r rawlog.Record) {
	var v struct {
		ID string `json:"bill_id"`
	}
	c.once.Compared++
	err := json.Unmarshal(r.Value, &v)
	b, perr := parseID(v.ID, c.Accounts)
	if err != nil || perr != nil {
		c.once.Differ(r.Where(), "%q was never sent as a bill that counts", r.Value)
		return
	}
	c.order.Compared++
	switch next := c.echo[b.account]; {
	case b.n < next:
		c.once.Differ(r.Where(), "%s came again: the next of %s is %d", b.id(), accountName(b.account), next)
	case b.n > next:
		c.order.Differ(r.Where(), "%s came before number %d of %s: that one is lost or late", b.id(), next, accountName(b.account))
		c.echo[b.account] = b.n + 1
	default:
		c.echo[b.account]++
	}
}

func (c *checks) addTotal(r rawlog.Record) {
	c.prefix.Compared++
	var got total
	a, err := c.account(r.Key)
	if err == nil {
		err = json.Unmarshal(r.Value, &got)
	}
	if err != nil {
		c.prefix.Differ(r.Where(), "%v", err)
		return
	}
	before := c.totals[a]
	want := before.with(bill{a, int32(before.Bills)}.cents(c.Seed))
	if got != want {
		c.prefix.Differ(r.Where(), "%s: total %d is %+v, want %+v", accountName(a), want.Bills, got, want)
	}
	// From here on by what stands there: one mistake is told once.
	c.totals[a] = got
}

func (c *checks) account(key []byte) (int32, error) {
	var a int32
	text := string(bytes.Trim(key, `"`))
	if _, err := fmt.Sscanf(text, "account-%d", &a); err != nil || a < 0 || int(a) >= c.Accounts || accountName(a) != text {
		return 0, fmt.Errorf("%q is no account of this run", key)
	}
	return a, nil
}

func (c *checks) addRegion(r rawlog.Record) {
	c.sums.Compared++
	var got struct {
		total
		Last string `json:"last"`
	}
	err := json.Unmarshal(r.Value, &got)
	b, perr := parseID(got.Last, c.Accounts)
	if err != nil || perr != nil {
		c.sums.Differ(r.Where(), "%q is no total of a region", r.Value)
		return
	}
	n := b.account % regions
	before := c.regions[n]
	switch next := c.byWhom[b.account]; {
	case b.n != next:
		c.sums.Differ(r.Where(), "region %d: %s counts, the next of %s is %d", n, b.id(), accountName(b.account), next)
	case got.Bills != before.Bills+1 || got.Cents != before.Cents+b.cents(c.Seed):
		c.sums.Differ(r.Where(), "region %d: %s with %d cents made %d bills and %d cents of %d and %d", n, b.id(), b.cents(c.Seed), got.Bills, got.Cents, before.Bills, before.Cents)
	}
	c.byWhom[b.account] = max(c.byWhom[b.account], b.n+1)
	c.regions[n] = total{Bills: got.Bills, Cents: got.Cents}
}

// complete compares with everything that was sent. Nothing is under way.
func (c *checks) complete(sent []int32) {
	var want [regions]total
	for i, n := range sent {
		a := int32(i)
		if c.echo[a] != n {
			c.once.Differ("the end of "+accountName(a), "%d bills came out, %d were sent", c.echo[a], n)
		}
		if c.totals[a].Bills != int64(n) {
			c.prefix.Differ("the end of "+accountName(a), "the total counts %d bills, %d were sent", c.totals[a].Bills, n)
		}
		if c.byWhom[a] != n {
			c.sums.Differ("the end of "+accountName(a), "its region counts %d of its bills, %d were sent", c.byWhom[a], n)
		}
		want[a%regions].Bills += int64(n)
	}
	for n, w := range want {
		if c.regions[n].Bills != w.Bills {
			c.sums.Differ(fmt.Sprintf("the end of region %d", n), "%d bills, want %d", c.regions[n].Bills, w.Bills)
		}
	}
}

// ok says whether nothing differs so far.
func (c *checks) ok() bool { return proof.OK(c.results()) }

func (c *checks) results() []*proof.Result {
	return []*proof.Result{c.once, c.prefix, c.order, c.sums}
}

// arrivals counts what stands in the input: for C10, since a copy of an abandoned batch may have arrived
// or not. It also sees what Kafka has acknowledged and lost.
type arrivals struct {
	accounts               int
	next                   []int32
	records, copies, lates int64
	wrong                  []string
}

func (a *arrivals) add(r rawlog.Record) error {
	var v struct {
		ID string `json:"bill_id"`
	}
	if err := json.Unmarshal(r.Value, &v); err != nil {
		a.wrong = append(a.wrong, r.Where()+": no bill")
		return nil
	}
	a.records++
	if len(v.ID) > len(latePrefix) && v.ID[:len(latePrefix)] == latePrefix {
		a.lates++
		return nil
	}
	b, err := parseID(v.ID, a.accounts)
	switch {
	case err != nil:
		a.wrong = append(a.wrong, r.Where()+": "+err.Error())
	case b.n < a.next[b.account]:
		a.copies++
	case b.n > a.next[b.account]:
		a.wrong = append(a.wrong, fmt.Sprintf("%s: %s stands before number %d of its account: the cluster has lost an acknowledged record", r.Where(), b.id(), a.next[b.account]))
		a.next[b.account] = b.n + 1
	default:
		a.next[b.account]++
	}
	return nil
}

// duplicates is C10: the counters of the dedup against what stands in the input.
func (a *arrivals) duplicates(t *proof.Tasks) *proof.Result {
	r := proof.NewResult("C10", "counted duplicates = copies in the input")
	for _, w := range a.wrong {
		r.Differ("input", "%s", w)
	}
	const of = ":unique"
	for _, x := range []struct {
		what string
		got  uint64
		want int64
	}{
		{"checked", t.Counter("dedup/checked" + of), a.records},
		{"duplicates", t.Counter("dedup/dup_committed"+of) + t.Counter("dedup/dup_open"+of), a.copies},
		{"too late", t.Counter("dedup/too_late" + of), a.lates},
	} {
		r.Compared++
		if int64(x.got) != x.want {
			r.Differ("operator unique", "%s: %d were counted, %d stand in the input", x.what, x.got, x.want)
		}
	}
	return r
}
