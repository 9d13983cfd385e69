package sim

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	windows "github.com/streamd/streamd/window"
)

// Some runs count visits in windows of event time, behind one or two repartition topics. The partitions of the input are hours of
// event time apart, so that a window is right only if the marks are (docs/adr/0018): if whoever reads the topic took the time
// of one writer for that of all, or what a writer said without having committed what stands before it, records would be late.
const (
	visitsTopic   = "visits"
	countsTopic   = "visit-counts"
	visitCounts   = "counts"
	visitSites    = 6 // keys, each of them in every partition of the input
	visitWindow   = time.Second
	visitGrace    = 500 * time.Millisecond
	visitDisorder = 300 * time.Millisecond
	visitIdle     = 5 * time.Second
	// visitGap is the longest silence of a partition that surely makes it not idle: what comes behind a longer one may be late.
	visitGap = 3 * time.Second
	// visitsClose is how long it takes at most until all windows are closed, behind the last visit: all partitions become idle, and
	// then time goes on by itself.
	visitsClose = visitIdle + 5*time.Second
)

// countVisits adds the workload to a topology: so many repartition topics are before the windows. In front of two stands a dedup, so
// that the tasks that write the first one remember their time; those of one do not, as they have no state.
func countVisits(b *topology.Builder, hops int) {
	s := topology.From(b, visitsTopic, serde.String(), serde.String(), topology.IDHeader(idHeader), topology.OutOfOrderness(visitDisorder), topology.WithIdleness(visitIdle))
	if hops > 1 {
		s = topology.Dedup(s, "visits-unique", topology.Retention(window))
	}
	for i := range hops {
		s = topology.KeyBy(s, fmt.Sprintf("visits-by-%d", i), serde.String(), func(r record.Record[string, string]) (string, error) { return r.Key, nil })
	}
	counts := topology.Count(topology.WindowedBy(s, windows.Tumbling(visitWindow).Grace(visitGrace)), visitCounts, topology.EmitOnClose())
	topology.To(counts, countsTopic, windows.KeySerde(serde.String()), serde.Int64())
}

// visits is the input of the workload.
type visits struct {
	rng    *rand.Rand
	clocks []time.Time // of each partition, the event time that it has come to
	silent []bool      // such as never have a record: the others must not wait for them
	last   []time.Time // when something was sent to each, by the cluster's clock
	sent   int
	counts map[string]int64 // by site and window
	looked time.Time        // when open was found
	open   bool
	steady bool // no partition was silent for so long that it may have become idle
}

func newVisits(rng *rand.Rand, partitions int) *visits {
	v := &visits{rng: rng, counts: map[string]int64{}, steady: true}
	for p := range partitions {
		v.clocks = append(v.clocks, epoch.Add(-time.Duration(rng.Int64N(int64(6*time.Hour)))))
		v.silent = append(v.silent, p > 0 && rng.IntN(4) == 0)
		v.last = append(v.last, epoch)
	}
	return v
}

// burst sends some visits to each partition, in the order of their times but for visitDisorder, and some of them twice if there is a
// dedup.
func (v *visits) burst(b *simbroker.Broker, now time.Time, twice bool) {
	for p := range v.clocks {
		if v.silent[p] {
			continue
		}
		v.steady = v.steady && now.Sub(v.last[p]) < visitGap
		v.last[p] = now
		for range 1 + v.rng.IntN(4) {
			v.clocks[p] = v.clocks[p].Add(time.Duration(v.rng.IntN(800)) * time.Millisecond)
			at := v.clocks[p].Add(-time.Duration(v.rng.IntN(int(visitDisorder/time.Millisecond))) * time.Millisecond)
			site, id := fmt.Sprint("s", v.rng.IntN(visitSites)), fmt.Appendf(nil, "v%d-%d", p, v.sent)
			r := broker.Record{Timestamp: at, Key: []byte(site), Value: id, Headers: record.Headers{{Key: idHeader, Value: id}}}
			b.Append(record.TopicPartition{Topic: visitsTopic, Partition: record.Partition(p)}, r)
			if twice && v.rng.IntN(5) == 0 {
				b.Append(record.TopicPartition{Topic: visitsTopic, Partition: record.Partition(p)}, r)
			}
			v.counts[visitKey(site, at.Truncate(visitWindow))]++
			v.sent++
		}
	}
}

func visitKey(site string, start time.Time) string {
	return fmt.Sprintf("%s@%d", site, start.UnixMilli())
}

// counted is what stands in the results, by site and window; a window that is there twice is a failure.
func (w *world) counted() (got map[string]int64, all int) {
	got = map[string]int64{}
	keys := windows.KeySerde(serde.String())
	w.each([]string{countsTopic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			k, err := keys.Decode(r.Key)
			if err != nil || len(r.Value) != 8 {
				w.fail("C1: %s@%d: %q=%q is no count: %v", tp, r.Offset, r.Key, r.Value, err)
				continue
			}
			name := visitKey(k.Key, k.Start)
			if _, ok := got[name]; ok {
				w.fail("C1: %s@%d: the window %s was closed before", tp, r.Offset, name)
			}
			got[name] = int64(binary.BigEndian.Uint64(r.Value))
			all += int(got[name])
		}
	})
	return got, all
}

// lateVisits is how many visits were too late for their windows.
func (w *world) lateVisits() (n int) {
	for _, o := range w.owners {
		if o.resume == nil || o.stepper == nil {
			continue
		}
		for _, op := range o.stepper.Status().Operators {
			if op.Name == visitCounts {
				n += int(op.Counters[string(topology.CounterLate)])
			}
		}
	}
	return n
}

// windowsOpen says whether there are visits that stand in no result yet, and are not late.
func (w *world) windowsOpen() bool {
	v := w.load.visits
	if v == nil {
		return false
	}
	_, all := w.counted()
	return all+w.lateVisits() < v.sent
}

// windowsToWaitFor is windowsOpen for whoever asks at each step until the world is calm: it looks a few times a second only.
func (w *world) windowsToWaitFor() bool {
	v := w.load.visits
	if v == nil || !w.calm.IsZero() {
		return false
	}
	if now := w.now(); now.Sub(v.looked) >= calmFor/2 {
		v.looked, v.open = now, w.windowsOpen()
	}
	return v.open
}

// checkVisits is C2 for windows: each visit is counted once, in its window, or it is late and counted as that. None is late unless its
// partition was silent for long.
func (w *world) checkVisits() {
	v := w.load.visits
	if v == nil {
		return
	}
	got, all := w.counted()
	late := w.lateVisits()
	if all+late != v.sent {
		w.fail("C2: %d visits are counted and %d are late, of %d", all, late, v.sent)
	}
	if v.steady && late > 0 {
		w.fail("C2: %d of %d visits are late, though no partition was silent: their windows were closed too early", late, v.sent)
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if want := v.counts[k]; got[k] > want || v.steady && got[k] != want {
			w.fail("C2: %d visits in %s, want %d", got[k], k, want)
		}
	}
	if v.steady {
		w.hit("windows behind marks, none late")
	}
	w.hits["window behind marks"] += len(got)
	if slices.Contains(v.silent, true) {
		w.hit("idle writer of marks")
	}
}
