package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

func config() Config {
	return Config{Prefix: "p", Accounts: 3, Seed: 7, Rate: 1000}
}

// outputs are what a right pipeline makes of the first n bills of each account.
func outputs(c Config, n int32) []rawlog.Record {
	var out []rawlog.Record
	totals := make([]total, c.Accounts)
	var sums [regions]total
	offset := int64(0)
	put := func(topic, key string, value []byte) {
		out = append(out, rawlog.Record{Partition: rawlog.Partition{Topic: c.topic(topic)}, Offset: offset, Time: time.Now(), Key: []byte(key), Value: value})
		offset++
	}
	for i := range n {
		for a := range int32(c.Accounts) {
			b := bill{a, i}
			put("unique", accountName(a), b.json(c.Seed))
			t := totals[a].with(b.cents(c.Seed))
			totals[a] = t
			put("totals", accountName(a), fmt.Appendf(nil, `{"bills":%d,"cents":%d,"low":%d,"high":%d}`, t.Bills, t.Cents, t.Low, t.High))
			s := &sums[a%regions]
			s.Bills, s.Cents = s.Bills+1, s.Cents+b.cents(c.Seed)
			put("regions", fmt.Sprint("region-", a%regions), fmt.Appendf(nil, `{"bills":%d,"cents":%d,"last":%q}`, s.Bills, s.Cents, b.id()))
		}
	}
	return out
}

// A check that cannot fail shows nothing.
func TestTheChecksFindWhatIsWrong(t *testing.T) {
	c := config()
	const n = 5
	right := outputs(c, n)
	of := func(topic string, i int) int { // the i-th record of a topic
		for at, r := range right {
			if r.Topic == c.topic(topic) {
				if i == 0 {
					return at
				}
				i--
			}
		}
		panic("no such record")
	}
	without := func(at int) []rawlog.Record { return slices.Delete(slices.Clone(right), at, at+1) }
	twice := func(at int) []rawlog.Record { return slices.Insert(slices.Clone(right), at+3, right[at]) }
	changed := func(at int, from, to string) []rawlog.Record {
		out := slices.Clone(right)
		out[at].Value = []byte(strings.Replace(string(out[at].Value), from, to, 1))
		return out
	}
	late := right[0]
	late.Value = lateJSON(0, 3)
	for name, x := range map[string]struct {
		records []rawlog.Record
		red     string
	}{
		"right":                {right, ""},
		"a bill is lost":       {without(of("unique", 4)), "C3"},
		"the last one is lost": {without(of("unique", 3*n-1)), "C1"},
		"a bill came twice":    {twice(of("unique", 4)), "C1"},
		"a late one came":      {append(slices.Clone(right), late), "C1"},
		"a total is lost":      {without(of("totals", 4)), "C2"},
		"a total came twice":   {twice(of("totals", 4)), "C2"},
		"a wrong total":        {changed(of("totals", 4), `"cents":`, `"cents":1`), "C2"},
		"a wrong minimum":      {changed(of("totals", 4), `"low":`, `"low":1`), "C2"},
		"a region's is lost":   {without(of("regions", 4)), "C4"},
		"a region's twice":     {twice(of("regions", 4)), "C4"},
		"no total":             {changed(of("totals", 4), "{", ""), "C2"},
	} {
		k := newChecks(c)
		for _, r := range x.records {
			k.add(r)
		}
		k.complete([]int32{n, n, n})
		var red []string
		for _, r := range k.results() {
			if !r.OK() {
				red = append(red, r.Check)
			}
		}
		if got := strings.Join(red, " "); got != x.red {
			t.Errorf("%s: %q is red, want %q", name, got, x.red)
		}
	}
}

// What was sent is what the counts say, and copies are only of what was sent before.
func TestTheLoadCountsWhatItMakes(t *testing.T) {
	c := config()
	c.Accounts = 50
	l, err := newLoad(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	a := &arrivals{accounts: c.Accounts, next: make([]int32, c.Accounts)}
	now := time.Now()
	for i := range 200 {
		for _, r := range l.batch(50, now.Add(time.Duration(i)*time.Second)) {
			if err := a.add(rawlog.Record{Key: r.Key, Value: r.Value}); err != nil {
				t.Fatal(err)
			}
		}
	}
	next, counts := l.expected()
	if len(a.wrong) > 0 || a.copies != counts.Copies || a.lates != counts.Late || a.records != 10_000 || !slices.Equal(a.next, next) {
		t.Errorf("%+v, arrived %d copies, %d late of %d: %v", counts, a.copies, a.lates, a.records, a.wrong)
	}
	if counts.Copies < 1500 || counts.Late < 100 || counts.Distinct+counts.Copies+counts.Late != 10_000 {
		t.Errorf("%+v", counts)
	}
}

// C10 is red if a counter is off by one, or if Kafka has lost what it had acknowledged.
func TestDuplicatesAreCounted(t *testing.T) {
	for name, x := range map[string]struct {
		counters map[string]uint64
		lost     bool
		ok       bool
	}{
		"right":   {map[string]uint64{"dedup/checked:unique": 5, "dedup/dup_committed:unique": 1, "dedup/dup_open:unique": 1, "dedup/too_late:unique": 1}, false, true},
		"one off": {map[string]uint64{"dedup/checked:unique": 5, "dedup/dup_committed:unique": 1, "dedup/too_late:unique": 1}, false, false},
		"lost":    {map[string]uint64{"dedup/checked:unique": 5, "dedup/dup_committed:unique": 2, "dedup/too_late:unique": 1}, true, false},
	} {
		a := &arrivals{accounts: 1, next: make([]int32, 1)}
		second := bill{0, 1}
		if x.lost {
			second.n = 2
		}
		for _, v := range [][]byte{bill{0, 0}.json(1), second.json(1), bill{0, 0}.json(1), bill{0, 0}.json(1), lateJSON(0, 1)} {
			if err := a.add(rawlog.Record{Value: v}); err != nil {
				t.Fatal(err)
			}
		}
		r := a.duplicates(&proof.Tasks{Tasks: []proof.Task{{Counters: x.counters}}})
		if r.OK() != x.ok {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	if h.quantile(.5) != 0 {
		t.Error("nothing was counted")
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{.5: 500 * time.Millisecond, .99: 990 * time.Millisecond, 1: time.Second} {
		if got := h.quantile(q); got < want || got > want*11/10 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}
