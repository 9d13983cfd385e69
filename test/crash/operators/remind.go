package operators

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// wallEvery is the interval of the schedule by the host's clock; longer than the steps in which package topologytest moves that.
const wallEvery = time.Second

// Longest is how far ahead a timer by the host's clock is set at most.
const Longest = 2 * time.Second

// Reminder is a record of Reminded. Its key is the partition of the input, so that a topic's reader gets all that a task did in its order.
type Reminder struct {
	Key string `json:"key"`
	// What is set or cancel, for each order, fired for a timer, and tick.
	What string `json:"what"`
	Of   string `json:"of,omitempty"` // the timer's key
	ID   string `json:"id,omitempty"` // of the order, or of the one that set what has fired
	At   int64  `json:"at,omitempty"` // for when the timer is set, or the tick's time; milliseconds since 1970
	Now  int64  `json:"now"`          // what the clock of the timers showed
	N    int64  `json:"n,omitempty"`  // of a tick: orders since the last one
}

// remind does with calls what timers does with orders, by the host's clock, and tells all that it does.
func remind(calls *topology.Stream[string, Event]) {
	due := topology.WallTimers("wall-due", serde.String())
	by, since := topology.KeyValue("set-by", serde.String(), serde.String()), topology.KeyValue("calls-since-tick", serde.String(), serde.Int64())
	tell := func(ctx topology.Context, emit topology.Emit[string, Reminder], r Reminder, errs ...error) error {
		now, err := due.Now(ctx)
		r.Now = now.UnixMilli()
		emit(record.Record[string, Reminder]{Key: r.Key, Value: r})
		return errors.Join(append(errs, err)...)
	}
	out := topology.Process(calls, "remind", func(ctx topology.Context, r event, emit topology.Emit[string, Reminder]) error {
		if r.Value.Do == "" { // the end of the partition
			return nil
		}
		part := partitionOf(r.Key)
		n, _, err := since.Get(ctx, part)
		err = errors.Join(err, since.Put(ctx, part, n+1))
		out := Reminder{Key: part, What: r.Value.Do, Of: r.Key, ID: r.Value.ID}
		if r.Value.Do == "cancel" {
			return tell(ctx, emit, out, err, due.Cancel(ctx, r.Key))
		}
		now, nowErr := due.Now(ctx)
		at := now.Add(time.Duration(r.Value.After) * time.Millisecond)
		out.At = at.UnixMilli()
		return tell(ctx, emit, out, err, nowErr, due.Set(ctx, r.Key, at), by.Put(ctx, r.Key, r.Value.ID))
	}, topology.WithStore(by, since), topology.OnTimer(due, func(ctx topology.Context, t topology.Timer[string], emit topology.Emit[string, Reminder]) error {
		id, _, err := by.Get(ctx, t.Key)
		return tell(ctx, emit, Reminder{Key: partitionOf(t.Key), What: "fired", Of: t.Key, ID: id, At: t.At.UnixMilli()}, err)
	}), topology.PunctuateWall(wallEvery, func(ctx topology.Context, tick time.Time, emit topology.Emit[string, Reminder]) error {
		part, n, err := takeAll(ctx, since)
		if part == "" {
			return err // nothing has come yet
		}
		return tell(ctx, emit, Reminder{Key: part, What: "tick", At: tick.UnixMilli(), N: n}, err)
	}))
	topology.To(out, Reminded, serde.String(), serde.JSON[Reminder]())
}

// takeAll takes what was counted for the one partition of a task.
func takeAll(ctx topology.Context, counts *topology.KeyValueStore[string, int64]) (part string, n int64, err error) {
	err = counts.All(ctx, func(p string, v int64) bool {
		part, n = p, v
		return true
	})
	if part != "" {
		err = errors.Join(err, counts.Put(ctx, part, 0))
	}
	return part, n, err
}

// partitionOf names the partition of a key of the input.
func partitionOf(key string) string {
	n, err := strconv.Atoi(strings.TrimPrefix(key, "key-"))
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("partition-%d", n%Partitions)
}

// called adds the orders of Calls, in their order: what must be told of each.
func called(out map[string][]string, input []Input) {
	for _, in := range input {
		if in.Topic == Calls && in.Value.ID != "end" {
			r := Reminder{Key: partitionOf(in.Key), What: in.Value.Do, Of: in.Key, ID: in.Value.ID}
			out[r.Key] = append(out[r.Key], lines([]Reminder{r})...)
		}
	}
}

// history is what one task has told. When an order comes, as the clock goes, is open; all else follows from what was told before:
//
//   - a timer fires once for each order that set it, if none came before which set it again or cancelled it; at the time that was told
//     when it was set, of all that are set first the one with the lowest time and key, never before that time;
//   - a tick is a multiple of the interval, later than the one before, never before its time; it has all the orders
//     since the one before, and no other.
type history struct {
	orders  []string // as they are told by called
	set     waiting
	setBy   map[string]string
	last    int64 // tick
	since   int64 // orders behind it
	skipped int   // ticks between the first and the last that did not come
}

// add takes what a task did next. read is the time at which it was read, zero: not known.
func (h *history) add(r Reminder, read time.Time) error {
	if h.setBy == nil {
		h.setBy = map[string]string{}
	}
	at := time.UnixMilli(r.At).UTC()
	if r.What == "fired" || r.What == "tick" {
		switch {
		case r.Now < r.At:
			return fmt.Errorf("%s of %s is early: the task's clock showed %s", r.What, at, time.UnixMilli(r.Now).UTC())
		case !read.IsZero() && read.Before(at):
			return fmt.Errorf("%s of %s is early: it was read at %s", r.What, at, read.UTC())
		}
	}
	switch r.What {
	case "set":
		h.set.set(timer{r.Of, at})
		h.setBy[r.Of] = r.ID
	case "cancel":
		h.set.cancel(r.Of)
	case "fired":
		if len(h.set.order) == 0 {
			return fmt.Errorf("the timer of %s fired, set by %s for %s: none is set", r.Of, r.ID, at)
		}
		first := h.set.order[0]
		if first.compare(timer{r.Of, at}) != 0 || h.setBy[r.Of] != r.ID {
			return fmt.Errorf("the timer of %s fired, set by %s for %s: the next one is that of %s, set by %s for %s", r.Of, r.ID, at, first.key, h.setBy[first.key], first.at)
		}
		h.set.cancel(r.Of)
		return nil
	case "tick":
		every, before := wallEvery.Milliseconds(), h.last
		if h.last != 0 {
			h.skipped += int((r.At-h.last)/every) - 1
		}
		if r.At%every != 0 || r.At <= h.last || r.N != h.since {
			return fmt.Errorf("tick %d has %d orders; the one before was %d, and %d orders came since", r.At, r.N, before, h.since)
		}
		h.last, h.since = r.At, 0
		return nil
	default:
		return fmt.Errorf("%q was told", r.What)
	}
	h.since++
	r.At, r.Now = 0, 0
	h.orders = append(h.orders, lines([]Reminder{r})...)
	return nil
}

// settled is how many orders a tick has counted, less the timers that have to go off yet.
func (h *history) settled() int64 { return int64(len(h.orders)) - h.since - int64(len(h.set.order)) }

// remember adds a record of Reminded to the history of its task.
func (a *Answer) remember(value []byte) error {
	var r Reminder
	if err := json.Unmarshal(value, &r); err != nil {
		return err
	}
	if a.tasks[r.Key] == nil {
		a.tasks[r.Key] = &history{}
	}
	var read time.Time
	if a.now != nil {
		read = a.now()
	}
	if err := a.tasks[r.Key].add(r, read); err != nil {
		return fmt.Errorf("%s: %w", r.Key, err)
	}
	return nil
}

// reminded says what is wrong with the history of a task.
func (a *Answer) reminded(task string, want []string) error {
	h := a.tasks[task]
	switch {
	case h == nil:
		return fmt.Errorf("operators: %s: %s has told nothing", Reminded, task)
	case !slices.Equal(h.orders, want):
		return fmt.Errorf("operators: %s: orders of %s", Reminded, difference(task, h.orders, want))
	case len(h.set.order) > 0:
		t := h.set.order[0]
		return fmt.Errorf("operators: %s: %s: the timer of %s, set by %s for %s, has not fired", Reminded, task, t.key, h.setBy[t.key], t.at)
	case h.since > 0:
		return fmt.Errorf("operators: %s: %s: %d orders are in no tick", Reminded, task, h.since)
	}
	return nil
}

// Skipped is how many ticks by the host's clock did not come, of those between the first and the last.
func (a *Answer) Skipped() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.tasks {
		n += h.skipped
	}
	return n
}

// timer is one that is set.
type timer struct {
	key string
	at  time.Time
}

func (t timer) compare(o timer) int { return cmp.Or(t.at.Compare(o.at), cmp.Compare(t.key, o.key)) }

// waiting are the timers of a partition, at most one of a key.
type waiting struct {
	order []timer // as they go off
	at    map[string]time.Time
}

func (w *waiting) set(t timer) {
	w.cancel(t.key)
	if w.at == nil {
		w.at = map[string]time.Time{}
	}
	w.at[t.key] = t.at
	i, _ := slices.BinarySearchFunc(w.order, t, timer.compare)
	w.order = slices.Insert(w.order, i, t)
}

func (w *waiting) cancel(key string) {
	at, ok := w.at[key]
	if !ok {
		return
	}
	delete(w.at, key)
	i, _ := slices.BinarySearchFunc(w.order, timer{key, at}, timer.compare)
	w.order = slices.Delete(w.order, i, i+1)
}
