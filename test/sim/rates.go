package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// Some runs look each bill's rate up in a global table, whose rows change, are deleted and are compacted meanwhile. Which row a bill finds is
// left open (docs/adr/0020); that it is a committed one, and none that is older than what was seen before, is not.
const (
	ratesTopic = "rates"
	ratedTopic = "rated" // each bill with the row that it found
	rateKeys   = 3
	noRate     = "-"
	// ratesTombstones is how long deletions are kept in the topic: less than any time that is jumped over.
	ratesTombstones = 10 * time.Minute
)

// rateOf is the row of an account.
func rateOf(account string) string {
	return fmt.Sprint("rate-", record.PartitionForKey([]byte(account), rateKeys))
}

// lookUp adds the join to a topology.
func lookUp(b *topology.Builder, unique *topology.Stream[string, string]) {
	rates := topology.GlobalTable(b, ratesTopic, serde.String(), serde.String())
	rated := topology.LeftJoinGlobal(unique, rates, "rated", func(account, _ string) (string, error) { return rateOf(account), nil },
		func(account, bill string, rate *string) (string, error) {
			id, _, _ := strings.Cut(bill, "|")
			if rate == nil {
				return id + "|" + rateOf(account) + "|" + noRate, nil
			}
			return id + "|" + rateOf(account) + "|" + *rate, nil
		})
	topology.To(rated, ratedTopic, serde.String(), serde.String())
}

// rates are the rows that were committed.
type rates struct {
	rng     *rand.Rand
	version int
	history map[string][]string // of each row: its values in order, noRate where there is none
}

func newRates(rng *rand.Rand) *rates {
	r := &rates{rng: rng, history: map[string][]string{}}
	for i := range rateKeys {
		r.history[fmt.Sprint("rate-", i)] = []string{noRate}
	}
	return r
}

// burst changes some rows. A part of the changes is taken back: they stand in a transaction that is aborted.
func (r *rates) burst(l *loader, now time.Time, abort func(p broker.Producer)) {
	for r.rng.IntN(3) > 0 {
		r.version++
		key, value := fmt.Sprint("rate-", r.rng.IntN(rateKeys)), fmt.Sprint("v", r.version)
		rec := broker.Record{Timestamp: now, Key: []byte(key), Value: []byte(value)}
		if r.rng.IntN(4) == 0 {
			value, rec.Value = noRate, nil
		}
		tp := record.TopicPartition{Topic: ratesTopic, Partition: record.PartitionForKey(rec.Key, int32(l.partitions))}
		if r.rng.IntN(5) == 0 {
			l.producer.Add(broker.Output{TopicPartition: tp, Timestamp: now, Key: rec.Key, Value: rec.Value})
			abort(l.producer)
			continue
		}
		l.b.Append(tp, rec)
		r.history[key] = append(r.history[key], value)
	}
}

// ratesBehind says whether a process has not read all of its global table.
func (w *world) ratesBehind() bool {
	if w.load.rates == nil {
		return false
	}
	return slices.ContainsFunc(w.owners, func(o *owner) bool {
		return o.resume != nil && o.stepper != nil && o.stepper.GlobalsBehind(func(tp record.TopicPartition) record.Offset {
			_, stable, _ := w.b.Offsets(tp)
			return stable
		})
	})
}

// checkRates is C1 and C3 for the joined bills, and C5 for the table: each bill once and in order, with a row that was committed and is no
// older than what a bill of its partition has seen before it; and in the end each process has the rows of the topic.
func (w *world) checkRates(o *oracle) {
	r := w.load.rates
	if r == nil {
		return
	}
	for p := range w.partitions {
		at := map[string]int{} // the version of each row that was seen last
		var got, want []string
		for _, x := range w.b.Committed(record.TopicPartition{Topic: ratedTopic, Partition: record.Partition(p)}) {
			f := strings.Split(string(x.Value), "|")
			if len(f) != 3 || f[1] != rateOf(string(x.Key)) {
				w.fail("C1: %s/%d@%d: %q with the key %q", ratedTopic, p, x.Offset, x.Value, x.Key)
				return
			}
			got = append(got, f[0])
			key, value := f[1], f[2]
			ahead := slices.Index(r.history[key][at[key]:], value)
			if ahead < 0 {
				w.fail("C1: %s/%d@%d: bill %s has found %s as %s, after it was %s: that is older, or was never committed", ratedTopic, p, x.Offset, f[0], key, value, r.history[key][at[key]])
				return
			}
			if ahead > 0 && at[key] > 0 {
				w.hit("row of a global table seen to change")
			}
			at[key] += ahead
		}
		for _, x := range o.accepted[p] {
			want = append(want, x.id)
		}
		if !slices.Equal(got, want) {
			w.fail("C1: rated bills of partition %d: %s", p, firstDifference(got, want))
		}
	}
	w.checkTables(r)
}

// checkTables compares what the processes have of the table with the topic.
func (w *world) checkTables(r *rates) {
	rows, bytes := 0, int64(0)
	for _, key := range slices.Sorted(maps.Keys(r.history)) {
		if value := r.history[key][len(r.history[key])-1]; value != noRate {
			rows++
			bytes += topology.GlobalRowBytes([]byte(key), []byte(value))
		}
	}
	for _, x := range w.owners {
		if x.resume == nil || x.stepper == nil {
			continue
		}
		for _, g := range x.stepper.Status().Globals {
			if g.Rows != rows || g.Bytes != bytes {
				w.fail("C5: %s has %d rows of %d bytes of the global table, want %d of %d", x.instance, g.Rows, g.Bytes, rows, bytes)
			}
			if g.Reads > 1 {
				w.hit("global table read anew")
			}
		}
	}
}

// ratesTopicOf is the topic of the table.
func ratesTopicOf(partitions int) broker.Topic {
	return broker.Topic{Name: ratesTopic, Partitions: int32(partitions), Cleanup: broker.Compact, DeleteRetention: ratesTombstones}
}

// compactRates lets the broker compact the table's topic.
func (w *world) compactRates() {
	if w.load.rates != nil {
		w.each([]string{ratesTopic}, func(tp record.TopicPartition) { w.b.Compact(tp) })
	}
}
