package operators

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Oracle says, by output, what must be committed of each key, in this order, when the input comes behind Prelude.
func Oracle(input []Input) map[string]map[string][]string {
	input = append(Prelude(), input...)
	out := map[string]map[string][]string{}
	for _, topic := range Outputs() {
		out[topic] = map[string][]string{}
	}
	byKey := func(topic string) map[string][]Input {
		m := map[string][]Input{}
		for _, in := range input {
			if in.Topic == topic && in.Value.ID != "end" {
				m[in.Key] = append(m[in.Key], in)
			}
		}
		return m
	}
	visits, clicks := byKey(Visits), byKey(Clicks)
	for key, all := range visits {
		out[Tumbled][key] = lines(tumbled(key, all))
		out[Sessions][key] = lines(sessions(key, all))
		out[Hopped][key] = lines(hopped(key, all))
		out[Slid][key] = lines(slid(key, all))
	}
	pages := map[string][]Input{}
	for _, in := range input {
		if in.Topic == Visits && in.Value.ID != "end" {
			pages[page(in.Key)] = append(pages[page(in.Key)], in)
		}
	}
	for key, all := range pages {
		groups := tumbled(key, all)
		sortIDs(groups)
		out[Paged][key] = lines(groups)
	}
	impressions := byKey(Impressions)
	keys := maps.Clone(impressions)
	maps.Copy(keys, clicks)
	for key := range keys {
		for _, p := range joined(key, impressions[key], clicks[key]) {
			line := lines([]Pair{p})[0]
			out[Outer][key] = append(out[Outer][key], line)
			if p.Impression != "" {
				out[Joined][key] = append(out[Joined][key], line)
			}
			if p.Impression != "" && p.Click != "" {
				out[Inner][key] = append(out[Inner][key], line)
			}
		}
	}
	folded(out, byKey(Purchases), byKey(Rows))
	looked(out[Looked], input)
	sifting(out[Sifted], input)
	called(out[Reminded], input)
	for p := range int32(Partitions) {
		for _, f := range fired(input, p) {
			out[Fired][f.Key] = append(out[Fired][f.Key], lines([]Firing{f})...)
		}
	}
	return out
}

// lines are values as they stand in a topic. No value here has anything in it that JSON could not write.
func lines[T any](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			b = []byte(err.Error())
		}
		out[i] = string(b)
	}
	return out
}

func tumbled(key string, visits []Input) []Group { return windowed(key, visits, tumbleSize) }

// hopped are windows of which each record is in several.
func hopped(key string, visits []Input) []Group { return windowed(key, visits, hopEvery) }

// slid are, for each time of a record, the records of that time and up to slideSize before it.
func slid(key string, visits []Input) []Group {
	groups := map[int64]Group{}
	for _, v := range visits {
		g := Group{Key: key, From: v.At.Add(-slideSize).UnixMilli(), To: v.At.UnixMilli() + 1} // its end is no part of a window
		for _, w := range visits {
			if at := w.At.UnixMilli(); at >= g.From && at < g.To {
				g.IDs = append(g.IDs, w.Value.ID)
			}
		}
		groups[g.To] = g
	}
	var out []Group
	for _, to := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, groups[to])
	}
	sortIDs(out)
	return out
}

// windowed are windows of tumbleSize that begin at each multiple of every.
func windowed(key string, visits []Input, every time.Duration) []Group {
	groups := map[int64]*Group{}
	for _, v := range visits {
		for from := v.At.Truncate(every); v.At.Sub(from) < tumbleSize; from = from.Add(-every) {
			at := from.UnixMilli()
			if groups[at] == nil {
				groups[at] = &Group{Key: key, From: at, To: at + tumbleSize.Milliseconds()}
			}
			groups[at].IDs = append(groups[at].IDs, v.Value.ID)
		}
	}
	var out []Group
	for _, from := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, *groups[from])
	}
	return out
}

// sessions are the longest runs of records of which none is more than the gap behind the one before. Their IDs are compared
// without an order: that of sessions which grew together is the engine's affair.
func sessions(key string, visits []Input) []Group {
	visits = slices.Clone(visits)
	slices.SortStableFunc(visits, func(a, b Input) int { return a.At.Compare(b.At) })
	var out []Group
	for i, v := range visits {
		end := v.At.Add(sessionGap).UnixMilli()
		if i == 0 || v.At.Sub(visits[i-1].At) > sessionGap {
			out = append(out, Group{Key: key, From: v.At.UnixMilli()})
		}
		g := &out[len(out)-1]
		g.To, g.IDs = end, append(g.IDs, v.Value.ID)
	}
	sortIDs(out)
	return out
}

// sortIDs is for groups whose records may come in any order.
func sortIDs(groups []Group) {
	for _, g := range groups {
		slices.Sort(g.IDs)
	}
}

// joined are the pairs of a key, and what is alone.
func joined(key string, impressions, clicks []Input) []Pair {
	var out []Pair
	taken := map[string]bool{}
	for _, i := range impressions {
		matched := false
		for _, c := range clicks {
			if d := c.At.Sub(i.At); d >= -joinBefore && d <= joinAfter {
				matched, taken[c.Value.ID] = true, true
				out = append(out, Pair{key, i.Value.ID, c.Value.ID})
			}
		}
		if !matched {
			out = append(out, Pair{Key: key, Impression: i.Value.ID})
		}
	}
	for _, c := range clicks {
		if !taken[c.Value.ID] {
			out = append(out, Pair{Key: key, Click: c.Value.ID})
		}
	}
	// Which pair came first depends on how the inputs were interleaved.
	slices.SortFunc(out, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(a.Impression, b.Impression), cmp.Compare(a.Click, b.Click))
	})
	return out
}

// fired goes through a partition as a task does: what is due before a record from that time goes off first, and what a record
// sets for a time that has passed goes off behind it. A tick comes behind the timers that are due with it, one for all
// that have passed since the last one; the first is that behind the first record.
func fired(input []Input, partition int32) (out []Firing) {
	var newest, last time.Time
	var since int64
	counts := map[string]int64{}
	var due waiting
	fire := func() {
		for len(due.order) > 0 && !due.order[0].at.After(newest) {
			t := due.order[0]
			due.cancel(t.key)
			counts[t.key]++
			since++
			out = append(out, Firing{Key: t.key, At: t.at.UnixMilli(), N: counts[t.key]})
		}
	}
	tick := func() {
		at := newest.Truncate(tickEvery)
		if !last.IsZero() && at.After(last) {
			out = append(out, Firing{Key: fmt.Sprintf("ticks of partition-%d", partition), At: at.UnixMilli(), N: since})
			since = 0
		}
		last = at
	}
	for _, in := range input {
		if in.Topic != Orders || in.Partition != partition {
			continue
		}
		if in.At.After(newest) {
			newest = in.At
		}
		fire()
		tick()
		switch in.Value.Do {
		case "set":
			due.set(timer{in.Key, in.At.Add(time.Duration(in.Value.After) * time.Millisecond)})
		case "cancel":
			due.cancel(in.Key)
		}
		fire()
	}
	return out
}

// Answer collects what is committed. It is safe for concurrent use.
type Answer struct {
	mu    sync.Mutex // guards the rest
	count map[string]int64
	lines map[string]map[string][]string
	rates map[string]int64    // see sight
	tasks map[string]*history // of Reminded, by partition
	err   error
	now   func() time.Time // nil: not known
}

// NewAnswer makes an empty one. now is the clock by which records come to be read, if it is the one of the application's hosts; else nil.
func NewAnswer(now func() time.Time) *Answer {
	a := &Answer{count: map[string]int64{}, lines: map[string]map[string][]string{}, rates: map[string]int64{}, tasks: map[string]*history{}, now: now}
	for _, topic := range Outputs() {
		a.lines[topic] = map[string][]string{}
	}
	return a
}

// Add takes the next record of an output.
func (a *Answer) Add(topic string, value []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var key struct{ Key string }
	if err := json.Unmarshal(value, &key); err != nil && a.err == nil {
		a.err = fmt.Errorf("operators: %s: %w", topic, err)
	}
	line := string(value)
	if topic == Sessions || topic == Paged || topic == Slid {
		var g Group
		if err := json.Unmarshal(value, &g); err == nil {
			sortIDs([]Group{g})
			line = lines([]Group{g})[0]
		}
	}
	var err error
	switch topic {
	case Rated, Looked:
		line, err = sight(value, a.rates)
	case Reminded:
		err = a.remember(value)
	}
	if err != nil && a.err == nil {
		a.err = fmt.Errorf("operators: %s: %w", topic, err)
	}
	a.count[topic]++
	a.lines[topic][key.Key] = append(a.lines[topic][key.Key], line)
}

// Rates is how many versions of rows came to be seen at most, by one key.
func (a *Answer) Rates() (newest int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.rates {
		newest = max(newest, v)
	}
	return newest
}

// Count is how many records of an output there are, but for those that Total does not count.
func (a *Answer) Count(topic string) (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if topic == Reminded {
		for _, h := range a.tasks {
			n += h.settled()
		}
		return n
	}
	return a.count[topic]
}

// Verify says, for each output that is wrong, what is missing, too much, or in another order, of the first key with that.
func (a *Answer) Verify(want map[string]map[string][]string) []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var wrong []error
	if a.err != nil {
		wrong = append(wrong, a.err)
	}
	for _, topic := range Outputs() {
		got := a.lines[topic]
		keys := maps.Clone(got)
		maps.Copy(keys, want[topic])
		bad, first := 0, ""
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			g, w := got[key], want[topic][key]
			switch {
			case topic == Reminded:
				if err := a.reminded(key, w); err != nil {
					wrong = append(wrong, err)
				}
				continue
			case topic == Looked && strings.HasSuffix(key, rateKey(lateRate)) && len(g) < len(w):
				w = w[len(w)-len(g):] // from some moment on
			case topic == Sifted:
				g = slices.Clone(g)
				for i := range min(len(g), len(w)) {
					g[i] = eitherWay(g[i], w[i])
				}
			case unordered(topic):
				g, w = sorted(g), sorted(w)
			}
			if !slices.Equal(g, w) {
				if bad++; bad == 1 {
					first = difference(key, g, w)
				}
			}
		}
		if bad > 0 {
			wrong = append(wrong, fmt.Errorf("operators: %s: %d of %d keys are wrong: %s", topic, bad, len(keys), first))
		}
	}
	return wrong
}

// unordered says of which outputs the order of a key's records is not determined.
func unordered(topic string) bool { return topic == Joined || topic == Inner || topic == Outer }

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// difference tells the first place at which two lists differ.
func difference(key string, got, want []string) string {
	at := func(s []string, i int) string {
		if i < len(s) {
			return s[i]
		}
		return "nothing"
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("%s, record %d of %d, want %d: got %s, want %s", key, i, len(got), len(want), at(got, i), at(want, i))
}

// Total is how many records must be committed, by output. Those of Reminded are its orders; those that look for the row which comes late
// are not counted.
func Total(want map[string]map[string][]string) map[string]int64 {
	out := map[string]int64{}
	for topic, keys := range want {
		for key, l := range keys {
			if topic != Looked || !strings.HasSuffix(key, rateKey(lateRate)) {
				out[topic] += int64(len(l))
			}
		}
	}
	return out
}
