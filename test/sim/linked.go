package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// Some runs have a second workload beside the bills: offers are joined with the takes that are near enough in time, and a
// timer of each offer reminds of it. Its task has two inputs, and stores that are read in their order.
const (
	offersTopic = "offers"
	takesTopic  = "takes"
	dealsTopic  = "deals"     // each pair of an offer and a take
	remindTopic = "reminders" // each offer, once its timer has fired
	dealWithin  = 2 * time.Second
	remindAfter = 700 * time.Millisecond
	linkedKeys  = 3 // of each partition
)

// link adds the second workload to a topology.
func link(b *topology.Builder) {
	offers := topology.Dedup(topology.From(b, offersTopic, serde.String(), serde.String(), topology.IDHeader(idHeader)),
		"offers-unique", topology.Retention(window))
	takes := topology.From(b, takesTopic, serde.String(), serde.String(), topology.IDHeader(idHeader))
	deals := topology.Join(offers, takes, "deals", topology.JoinWithin(dealWithin).Grace(window),
		func(_, offer, take string) (string, error) { return offer + "|" + take, nil })
	topology.To(deals, dealsTopic, serde.String(), serde.String())

	timers := topology.Timers("remind-timers", serde.String())
	reminders := topology.Process(offers, "remind",
		func(ctx topology.Context, r record.Record[string, string], _ topology.Emit[string, string]) error {
			return timers.Set(ctx, r.Value, r.Timestamp.Add(remindAfter))
		},
		topology.OnTimer(timers, func(ctx topology.Context, x topology.Timer[string], emit topology.Emit[string, string]) error {
			now, err := timers.Now(ctx)
			emit(record.Record[string, string]{Key: x.Key, Value: fmt.Sprintf("%s|%d", x.Key, now.Sub(x.At).Milliseconds())})
			return err
		}))
	topology.To(reminders, remindTopic, serde.String(), serde.String())
}

// linked is the input of the second workload, by partition.
type linked struct {
	rng           *rand.Rand
	keys          [][][]byte
	offers, takes [][]event
	last          [][2]time.Time // the newest time of each input, of whatever was sent
}

// event is an offer or a take.
type event struct {
	id, key string
	at      time.Time
}

func newLinked(rng *rand.Rand, partitions int) *linked {
	l := &linked{
		rng: rng, keys: make([][][]byte, partitions), offers: make([][]event, partitions), takes: make([][]event, partitions),
		last: make([][2]time.Time, partitions),
	}
	for i, missing := 0, partitions*linkedKeys; missing > 0; i++ {
		k := fmt.Append(nil, i)
		if p := record.PartitionForKey(k, int32(partitions)); len(l.keys[p]) < linkedKeys {
			l.keys[p] = append(l.keys[p], k)
			missing--
		}
	}
	return l
}

// burst makes some input of a partition: an offer, some of them again, and often a take within or beyond its reach.
func (l *linked) burst(b *simbroker.Broker, p int, now time.Time) {
	send := func(topic string, input int, e event) {
		if l.last[p][input].Before(e.at) {
			l.last[p][input] = e.at
		}
		b.Append(record.TopicPartition{Topic: topic, Partition: record.Partition(p)}, broker.Record{
			Timestamp: e.at, Key: []byte(e.key), Value: []byte(e.id), Headers: record.Headers{{Key: idHeader, Value: []byte(e.id)}},
		})
	}
	draw := func(kind string, n int, spread time.Duration) event {
		return event{
			id: fmt.Sprintf("%s%d-%d", kind, p, n), key: string(l.keys[p][l.rng.IntN(linkedKeys)]),
			at: now.Add(-time.Duration(l.rng.Int64N(int64(spread)))).Truncate(time.Millisecond),
		}
	}
	o := draw("o", len(l.offers[p]), time.Second)
	l.offers[p] = append(l.offers[p], o)
	send(offersTopic, 0, o)
	if l.rng.IntN(4) == 0 {
		again := l.offers[p][l.rng.IntN(len(l.offers[p]))]
		again.at = now.Truncate(time.Millisecond)
		send(offersTopic, 0, again)
	}
	for l.rng.IntN(3) > 0 {
		t := draw("t", len(l.takes[p]), 4*time.Second)
		l.takes[p] = append(l.takes[p], t)
		send(takesTopic, 1, t)
	}
}

// checkLinked is C1 for joins and timers: each pair that matches once and no other, and each timer once, none early, none
// left over that is due.
func (w *world) checkLinked() {
	l := w.load.linked
	if l == nil {
		return
	}
	want := map[string]bool{}
	for p := range w.partitions {
		for _, o := range l.offers[p] {
			for _, t := range l.takes[p] {
				if d := o.at.Sub(t.at); o.key == t.key && d.Abs() <= dealWithin {
					want[o.id+"|"+t.id] = true
				}
			}
		}
	}
	if got := w.onceEach(dealsTopic, false, want); len(got) != len(want) {
		w.fail("C1: %d of %d deals came", len(got), len(want))
	}
	w.hits["deal"] += len(want)
	w.checkReminders(l)
}

func (w *world) checkReminders(l *linked) {
	due, known := map[string]bool{}, map[string]bool{}
	for p := range w.partitions {
		for _, o := range l.offers[p] {
			known[o.id] = true
			// The watermark is that of the slower input at least.
			if at := o.at.Add(remindAfter); !at.After(l.last[p][0]) && !at.After(l.last[p][1]) {
				due[o.id] = true
			}
		}
	}
	got := w.onceEach(remindTopic, true, known)
	w.hits["timer fired"] += len(got)
	for _, id := range slices.Sorted(maps.Keys(due)) {
		if !got[id] {
			w.fail("C1: the timer of %s was due and has not fired", id)
		}
	}
}

// onceEach returns what stands in a topic; that of it which is not wanted, is there twice, or is a timer that fired early,
// is a failure.
func (w *world) onceEach(topic string, timers bool, want map[string]bool) map[string]bool {
	got := map[string]bool{}
	w.each([]string{topic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			what := string(r.Value)
			if timers {
				id, late, _ := strings.Cut(what, "|")
				if ms, err := strconv.Atoi(late); err != nil || ms < 0 {
					w.fail("C1: %s@%d: the timer of %s fired %s ms late", tp, r.Offset, id, late)
				}
				what = id
			}
			if got[what] || !want[what] {
				w.fail("C1: %s@%d: %s came again, or should not have come", tp, r.Offset, what)
			}
			got[what] = true
		}
	})
	return got
}
