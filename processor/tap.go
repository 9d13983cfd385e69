package processor

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Limits of a tap, so that a look costs the pipeline next to nothing.
const (
	maxTaps      = 4
	maxTapRate   = 1000     // records a second that are handed over
	maxTapBytes  = 32 << 10 // of a key, of a value and of the headers
	tapQueue     = 128      // records that wait for whoever looks: 12 MiB at most
	defaultRate  = 100      // records a second
	tapOutputs   = 16       // outputs of one record at a sink
	tapErrorText = 1 << 10
)

// What became of a record at a step, besides what a counter is called.
const (
	TapOut      = "out"       // it left the step
	TapConsumed = "consumed"  // it was taken in, and nothing left yet: a window, a join, a timer
	TapError    = "error"     // it failed there
	TapUndone   = "undone"    // it passed, and failed in another step: nothing of it remains
	tapDup      = "duplicate" // of a dedup step, committed or open
)

// TapConfig says what is looked at.
type TapConfig struct {
	Step string
	// Results limits what is shown to these: out, consumed, error, undone, duplicate, conflict, too_late, filtered, ... Empty: all.
	Results []string
	// Key is that of the record; nil: any.
	Key []byte
	// ID is in a header of the record (record-id), or what a dedup step on its way finds; empty: any.
	ID record.ID
	// Rate is how many records a second are shown at most. Default 100, up to 1000.
	Rate int
	// Every shows one of so many of the records that are wanted, the first one first. 0 is 1: all.
	Every int
	// Quiet is after how long without a record fn is called without one, so that the caller sees whether somebody is still there: with Missed alone,
	// 0 or not. 0: never.
	Quiet time.Duration
	// Opened, if set, is called once the tap is open: what passes from then on is shown.
	Opened func() error
}

// Tapped is a record that reached a step. It was processed, and is not committed yet: if the transaction is run again, so is the tap.
type Tapped struct {
	Time     time.Time       `json:"time"` // when it was processed
	Task     string          `json:"task"`
	Position string          `json:"position"` // of the record that came in, topic/partition@offset
	Results  []string        `json:"results"`
	Error    string          `json:"error,omitempty"`
	To       string          `json:"to,omitempty"` // topic/partition of an output; then key, value and headers are the output's
	At       time.Time       `json:"timestamp"`    // the record's
	Key      []byte          `json:"key"`
	Value    []byte          `json:"value"`
	Headers  []record.Header `json:"headers"`
	Cut      bool            `json:"cut,omitempty"`    // key or value is longer
	Missed   uint64          `json:"missed,omitempty"` // that would have been shown since the one before
}

// tapPoint is where taps are hung. Nil, and without a tap, it costs a load for each record.
type tapPoint struct {
	mu   sync.Mutex // of writers
	list atomic.Pointer[[]*tap]
}

func (p *tapPoint) current() []*tap {
	if p == nil {
		return nil
	}
	if l := p.list.Load(); l != nil {
		return *l
	}
	return nil
}

// errTaps: enough is enough.
var errTaps = errors.New("processor: " + strconv.Itoa(maxTaps) + " taps are open already")

func (p *tapPoint) add(x *tap) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := append(slices.Clone(p.current()), x)
	if len(l) > maxTaps {
		return errTaps
	}
	p.list.Store(&l)
	return nil
}

func (p *tapPoint) remove(x *tap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := slices.DeleteFunc(slices.Clone(p.current()), func(y *tap) bool { return x == y })
	if len(l) == 0 {
		p.list.Store(nil)
		return
	}
	p.list.Store(&l)
}

// tap is one look at a step. Tasks of several workers use it at once.
//
// It needs nothing of the operators: a step keeps counters of what it does, and what they have grown by while a record ran is what
// became of that record there.
type tap struct {
	TapConfig
	hash record.Hash // of ID
	out  chan Tapped

	mu     sync.Mutex // guards the rest
	second time.Time  // of the rate
	shown  int        // in it
	wanted uint64     // for Every
	missed uint64
}

// tapView is a task's counters of a step, as they were before the record in hand.
type tapView struct {
	of     *tap
	known  int // counters that the task had when this was made
	kinds  []topology.CounterKind
	cells  []*uint64
	before []uint64
}

// tapBegin is called before a record runs.
func (t *Task) tapBegin(taps []*tap) {
	if len(t.tapViews) != len(taps) {
		t.tapViews = make([]tapView, len(taps))
	}
	looked := false // for an ID
	for i, x := range taps {
		v := &t.tapViews[i]
		if v.of != x || v.known != len(t.counters.cells) {
			*v = t.tapView(x)
		}
		for j, c := range v.cells {
			v.before[j] = *c
		}
		looked = looked || x.ID != ""
	}
	for _, l := range t.ids {
		l.tapped, l.seen = looked, record.Hash{}
	}
}

func (t *Task) tapView(x *tap) tapView {
	v := tapView{of: x, known: len(t.counters.cells)}
	for id, i := range t.counters.index {
		if id.Of == x.Step {
			v.kinds, v.cells = append(v.kinds, id.Kind), append(v.cells, &t.counters.cells[i].now)
		}
	}
	v.before = make([]uint64, len(v.cells))
	return v
}

// results says what became of a record at the step; none: it did not get there.
func (v *tapView) results(step string, err error) (out []string, text string) {
	reached := false
	for j, c := range v.cells {
		if *c == v.before[j] {
			continue
		}
		switch k := v.kinds[j]; {
		case k == topology.CounterIn:
			reached = true
		case k == topology.CounterOut:
			out = append(out, TapOut)
		case k == topology.CounterDuplicateCommitted, k == topology.CounterDuplicateOpen:
			out = append(out, tapDup)
		case k == topology.CounterConflict, k == topology.CounterTooLate, strings.HasPrefix(string(k), "dropped/"):
			_, name, _ := strings.Cut(string(k), "/")
			out = append(out, name)
		}
	}
	slices.Sort(out) // the counters come in no order
	var oe *topology.OperatorError
	switch {
	case errors.As(err, &oe) && oe.Operator == step:
		return []string{TapError}, cutText(oe.Err.Error())
	case !reached:
		return nil, ""
	case err != nil:
		return []string{TapUndone}, cutText(err.Error())
	case len(out) == 0:
		return []string{TapConsumed}, ""
	}
	return out, ""
}

func cutText(s string) string {
	if len(s) > tapErrorText {
		return s[:tapErrorText] + "..."
	}
	return s
}

// tapEnd is called when a record has run, before its effects are kept or undone.
func (t *Task) tapEnd(taps []*tap, r *broker.Record, err error, now time.Time) {
	for i, x := range taps {
		if x.Key != nil && !bytes.Equal(r.Key, x.Key) {
			continue
		}
		results, text := t.tapViews[i].results(x.Step, err)
		if len(results) == 0 || len(x.Results) > 0 && !slices.ContainsFunc(results, func(s string) bool { return slices.Contains(x.Results, s) }) || !t.tapID(x, r) {
			continue
		}
		s := Tapped{Time: now, Task: t.name, Position: t.current.String(), Results: results, Error: text}
		outputs := 0
		for j := t.undoOut.outputs; j < len(t.out) && outputs < tapOutputs; j++ {
			o := &t.out[j]
			if !slices.ContainsFunc(t.cfg.sinks, func(k sinkTarget) bool { return k.operator == x.Step && k.topic == o.Topic }) {
				continue
			}
			outputs++
			to := s
			to.To = o.TopicPartition.String()
			x.show(to, o.Timestamp, o.Key, o.Value, o.Headers, now)
		}
		if outputs == 0 {
			x.show(s, r.Timestamp, r.Key, r.Value, r.Headers, now)
		}
	}
	for _, l := range t.ids {
		l.tapped = false
	}
}

// tapID says whether a record has the ID that is looked for.
func (t *Task) tapID(x *tap, r *broker.Record) bool {
	if x.ID == "" {
		return true
	}
	for _, h := range r.Headers {
		if (h.Key == topology.DefaultIDHeader || h.Key == "streamd-id") && string(h.Value) == string(x.ID) {
			return true
		}
	}
	return slices.ContainsFunc(t.ids, func(l *idLog) bool { return l.seen == x.hash })
}

// show hands a record over, or counts that it was not: it never waits. Bytes are copied, since they are the transaction's.
func (x *tap) show(s Tapped, at time.Time, key, value []byte, headers record.Headers, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wanted++
	if x.Every > 1 && (x.wanted-1)%uint64(x.Every) != 0 {
		return
	}
	if d := now.Sub(x.second); d < 0 || d >= time.Second {
		x.second, x.shown = now, 0
	}
	if x.shown >= x.Rate || len(x.out) == cap(x.out) {
		x.missed++
		return
	}
	x.shown++
	s.At, s.Missed = at, x.missed
	s.Key, s.Value, s.Cut = clip(key), clip(value), len(key) > maxTapBytes || len(value) > maxTapBytes
	left := maxTapBytes
	for _, h := range headers {
		if left -= len(h.Key) + len(h.Value); left < 0 {
			s.Cut = true
			break
		}
		s.Headers = append(s.Headers, record.Header{Key: strings.Clone(h.Key), Value: bytes.Clone(h.Value)})
	}
	x.missed = 0
	// There is room: only this, under the lock, fills it.
	x.out <- s
}

// takeMissed returns how many were not handed over, and begins again.
func (x *tap) takeMissed() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.missed
	x.missed = 0
	return n
}

func clip(b []byte) []byte { return bytes.Clone(b[:min(len(b), maxTapBytes)]) }
