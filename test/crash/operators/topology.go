package operators

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// App is the application's name.
const App = "operators"

// Partitions is how many partitions each input has.
const Partitions = 4

// The inputs.
const (
	Visits      = "visits"      // windows and sessions of users
	Impressions = "impressions" // the left side of the join
	Clicks      = "clicks"      // the right one
	Orders      = "orders"      // what sets timers
	Calls       = "calls"       // what sets timers by the host's clock
	Purchases   = "purchases"   // what is folded
	Bills       = "bills"       // some come again, changed, or late
	Rows        = "rows"        // of a table, see Prelude
)

// Rates are the rows of a global table, which each process reads as a whole and no task commits.
const Rates = "rates"

// Inputs are all inputs.
func Inputs() []string {
	return []string{Visits, Impressions, Clicks, Orders, Calls, Purchases, Bills, Rows}
}

// The outputs.
const (
	Tumbled  = "tumbled"
	Sessions = "sessions"
	Paged    = "paged" // windows behind a repartition topic
	Hopped   = "hopped"
	Slid     = "slid"
	Joined   = "joined"   // each impression with its clicks, or alone
	Inner    = "inner"    // without those that are alone
	Outer    = "outer"    // also the clicks that are alone
	Fired    = "fired"    // timers by key, and ticks
	Reminded = "reminded" // the same by the host's clock
	Folded   = "folded"   // aggregations, one result for each record
	Kept     = "kept"     // one record of a key
	Chained  = "chained"  // branch, flat map, map, merge
	Rowed    = "rowed"    // joins with tables
	Rated    = "rated"    // a join with a global table
	Looked   = "looked"   // without those that find no row
	Sifted   = "sifted"   // which way each bill went
)

// Outputs are all outputs.
func Outputs() []string {
	return []string{Tumbled, Sessions, Paged, Hopped, Slid, Joined, Inner, Outer, Fired, Reminded, Folded, Kept, Chained, Rowed, Rated, Looked, Sifted}
}

// How time is cut. Disorder is how much earlier than one before it a record may be: below each grace.
const (
	Disorder   = 3 * time.Second
	grace      = 4 * time.Second
	tumbleSize = 10 * time.Second
	hopEvery   = 5 * time.Second
	slideSize  = 3 * time.Second
	sessionGap = 5 * time.Second
	joinBefore = 2 * time.Second
	joinAfter  = 6 * time.Second
	tickEvery  = 2 * time.Second
)

// Event is the value of a record of any input.
type Event struct {
	ID string `json:"id"`
	// Do is what a record of Orders or Calls does to the timer of its key: set or cancel. A set one is due After milliseconds later. Of a
	// purchase or a bill After is what it costs, in cents.
	Do    string `json:"do,omitempty"`
	After int64  `json:"after,omitempty"`
}

// Group is a record of Tumbled, Sessions, Paged, Hopped and Slid: all records of a window, as they came.
type Group struct {
	Key  string   `json:"key"`
	From int64    `json:"from"` // milliseconds since 1970
	To   int64    `json:"to"`
	IDs  []string `json:"ids"`
}

// Pair is a record of Joined, Inner and Outer. What was not there is empty.
type Pair struct {
	Key        string `json:"key"`
	Impression string `json:"impression"`
	Click      string `json:"click"`
}

// Firing is a record of Fired: a timer that went off, or a tick.
type Firing struct {
	Key string `json:"key"`
	At  int64  `json:"at"` // for when the timer was set, or the tick's time; milliseconds since 1970
	N   int64  `json:"n"`  // which one of the key, from 1; of a tick: timers that went off since the last one
	// Early is how long before its time it came; never in an answer that is right.
	Early int64 `json:"early,omitempty"`
}

type (
	event = record.Record[string, Event]
	group = record.Record[window.Key[string], []string]
)

// Topology makes the application.
func Topology() (*topology.Topology, error) {
	b := topology.New(App)
	from := func(topic string) *topology.Stream[string, Event] {
		return topology.From(b, topic, serde.String(), serde.JSON[Event](), topology.WithIdleness(-1))
	}
	visits := from(Visits)
	groups(visits, Tumbled, window.Tumbling(tumbleSize))
	groups(visits, Sessions, window.Session(sessionGap))
	groups(visits, Hopped, window.Hopping(tumbleSize, hopEvery))
	groups(visits, Slid, window.Sliding(slideSize))
	// Each page has records of all partitions, which kills set hours of event time apart.
	byPage := topology.KeyBy(visits, "pages", serde.String(), func(r event) (string, error) { return page(r.Key), nil }, topology.Partitions(Partitions))
	groups(byPage, Paged, window.Tumbling(tumbleSize))

	near := topology.JoinWithin(joinAfter).Before(joinBefore).Grace(grace)
	pair := func(key string, i, c *Event) (Pair, error) {
		p := Pair{Key: key}
		if i != nil {
			p.Impression = i.ID
		}
		if c != nil {
			p.Click = c.ID
		}
		return p, nil
	}
	impressions, clicks := from(Impressions), from(Clicks)
	joined := func(topic string, pairs *topology.Stream[string, Pair]) {
		topology.To(pairs, topic, serde.String(), serde.JSON[Pair](), topology.Name(topic+"-out"))
	}
	joined(Joined, topology.LeftJoin(impressions, clicks, "pairs", near, func(key string, i Event, c *Event) (Pair, error) { return pair(key, &i, c) }))
	joined(Inner, topology.Join(impressions, clicks, "inner-pairs", near, func(key string, i, c Event) (Pair, error) { return pair(key, &i, &c) }))
	joined(Outer, topology.OuterJoin(impressions, clicks, "outer-pairs", near, pair))

	timers(from(Orders))
	remind(from(Calls))
	sift(from(Bills))
	folds(b)
	return b.Build()
}

// page is what the visits of a key are visits of.
func page(key string) string { return "page-" + key[len(key)-2:] }

// groups collects the records of each key and window.
func groups(s *topology.Stream[string, Event], name string, w window.Windows) {
	all := topology.Aggregate(topology.WindowedBy(s, w.Grace(grace)), name, serde.JSON[[]string](),
		func(ids []string, r event) ([]string, error) { return append(ids[:len(ids):len(ids)], r.Value.ID), nil },
		topology.EmitOnClose(), topology.MergeWith(func(a, b []string) ([]string, error) { return append(a[:len(a):len(a)], b...), nil }))
	out := topology.Map(all, func(r group) (string, Group, error) {
		return r.Key.Key, Group{r.Key.Key, r.Key.Start.UnixMilli(), r.Key.End.UnixMilli(), r.Value}, nil
	}, topology.Name(name+"-values"))
	topology.To(out, name, serde.String(), serde.JSON[Group]())
}

// timers fires what orders have set, and counts for each key, and from tick to tick.
func timers(orders *topology.Stream[string, Event]) {
	due, fired := topology.Timers("due", serde.String()), topology.KeyValue("counts", serde.String(), serde.Int64())
	since := topology.KeyValue("fired-since-tick", serde.String(), serde.Int64()) // by partition
	tell := func(ctx topology.Context, emit topology.Emit[string, Firing], key string, at time.Time, n int64) {
		early := max(at.Sub(ctx.StreamTime()).Milliseconds(), 0)
		emit(record.Record[string, Firing]{Key: key, Value: Firing{Key: key, At: at.UnixMilli(), N: n, Early: early}})
	}
	count := func(ctx topology.Context, counts *topology.KeyValueStore[string, int64], key string, by int64) (int64, error) {
		n, _, err := counts.Get(ctx, key)
		return n + by, errors.Join(err, counts.Put(ctx, key, n+by))
	}
	out := topology.Process(orders, "watch", func(ctx topology.Context, r event, _ topology.Emit[string, Firing]) error {
		part := fmt.Sprintf("partition-%d", ctx.Position().Partition)
		if _, err := count(ctx, since, part, 0); err != nil {
			return err
		}
		switch r.Value.Do {
		case "set":
			return due.Set(ctx, r.Key, r.Timestamp.Add(time.Duration(r.Value.After)*time.Millisecond))
		case "cancel":
			return due.Cancel(ctx, r.Key)
		case "": // the end of the partition
			return nil
		}
		return fmt.Errorf("order %q: do %q", r.Value.ID, r.Value.Do)
	}, topology.WithStore(fired, since), topology.OnTimer(due, func(ctx topology.Context, t topology.Timer[string], emit topology.Emit[string, Firing]) error {
		n, err := count(ctx, fired, t.Key, 1)
		tell(ctx, emit, t.Key, t.At, n)
		_, sinceErr := count(ctx, since, partitionOf(t.Key), 1)
		return errors.Join(err, sinceErr)
	}), topology.Punctuate(tickEvery, func(ctx topology.Context, tick time.Time, emit topology.Emit[string, Firing]) error {
		part, n, err := takeAll(ctx, since)
		tell(ctx, emit, "ticks of "+part, tick, n)
		return err
	}))
	topology.To(out, Fired, serde.String(), serde.JSON[Firing]())
}
