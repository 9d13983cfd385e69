package processor

import (
	"fmt"
	"strconv"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// This file is how event time gets through a repartition topic (docs/adr/0018). One partition of it mixes the records of
// many tasks, of which one may be a day ahead of another, so that records say nothing of the time of the others. So
// each task that writes there tells its own time: with each record, so that its reader does what is due before that record,
// and for the partitions into which it writes nothing as marks, records without key and value. Who reads goes by
// the lowest of them, and waits for a task that it has not heard of yet.

const (
	// counterUpstream is the time that a task has told that writes an input: of "@topic@task". Its highest bit is set while
	// that task is idle. The name is stored: never change it.
	counterUpstream topology.CounterKind = "time/upstream"
	idleBit                              = 1 << 63

	// A task writes marks for its progress at most once in markPace, and takes markCost for each of them: so it
	// writes no more than 200 of them a second, into however many partitions.
	markPace = 100 * time.Millisecond
	markCost = 5 * time.Millisecond
	// markAgain is how often an idle task says so again to readers without state, which know nothing after a restart.
	markAgain = 10 * time.Second
)

// telling is the writing side: what a task says of its event time.
type telling struct {
	sinks []int // of repartition topics whose readers go by marks; none: nothing is told
	again []int // those whose readers have no state
	pace  time.Duration
	idle  bool // all inputs are
	due   bool // something is to be said, also if nothing else is to be committed

	said, saying told
	at           time.Time // when said was said

	headers record.Headers // room for those of this transaction's outputs
	values  []byte         // and for what one of them says
	value   told           // of the last one of values; of sink
	sink    int
}

// told is what the readers know. The zero told: nothing, or it is not known what, as after a start.
type told struct {
	known, idle bool
	watermark   window.Millis
}

// startTelling finds the topics in which the task tells its time.
func (t *Task) startTelling() {
	partitions := 0
	for i, k := range t.cfg.sub.Sinks {
		if k.Marks {
			t.tells.sinks = append(t.tells.sinks, i)
			if t.cfg.forgetful[k.Topic] {
				t.tells.again = append(t.tells.again, i)
			}
			partitions += int(t.cfg.sinks[i].partitions)
		}
	}
	t.tells.pace = max(markPace, time.Duration(partitions)*markCost)
}

// news says whether there is something to tell, and whether that is worth a transaction of its own.
func (t *Task) news(now time.Time) (some, worth bool) {
	x := &t.tells
	switch {
	case len(x.sinks) == 0:
		return false, false
	case !x.said.known:
		// That it has begun will be told with its first records; what it knows of an earlier life may not have been told by that one.
		return true, x.idle || t.fired.time() > window.NoTime
	case x.idle != x.said.idle:
		return true, true
	case x.idle && x.value.known: // the records of this transaction say that it is not
		return true, true
	case x.idle:
		late := len(x.again) > 0 && now.Sub(x.at) >= markAgain
		return late, late
	}
	later := t.fired.time() > x.said.watermark && now.Sub(x.at) >= x.pace
	return later, later
}

// tell puts the marks behind the outputs of the transaction: what it says is true of all that comes later.
func (t *Task) tell(now time.Time) {
	if some, _ := t.news(now); !some {
		return
	}
	sinks := t.tells.sinks
	if x := &t.tells; x.idle && x.said.idle && !x.value.known {
		sinks = x.again // the others have not forgotten
	}
	t.tells.saying = told{known: true, idle: t.tells.idle, watermark: t.fired.time()}
	t.tells.at = now
	for _, i := range sinks {
		at := t.toldTo(i)
		h := record.Mark{Task: t.cfg.partition, Watermark: int64(at), Idle: t.tells.idle}.Headers()
		// A task with several inputs takes them in the order of time: a mark comes when it is the time that it tells.
		stamp := at.Time()
		if at < 0 {
			stamp = window.Millis(0).Time() // Kafka has no time before 1970
		}
		for p := range t.cfg.sinks[i].partitions {
			t.out = append(t.out, broker.Output{
				TopicPartition: record.TopicPartition{Topic: t.cfg.sinks[i].topic, Partition: record.Partition(p)},
				Timestamp:      stamp, Headers: h,
			})
		}
	}
}

// toldTo is the event time below which nothing comes into a sink any more.
func (t *Task) toldTo(sink int) window.Millis {
	at := t.fired.time()
	if at == window.NoTime {
		return at
	}
	return max(at.Add(-t.cfg.sub.Sinks[sink].Lag), window.NoTime)
}

// withTime returns the headers of an output of a sink whose readers go by marks, and the mark as the last one.
func (t *Task) withTime(h record.Headers, sink int) record.Headers {
	x := &t.tells
	now := told{known: true, watermark: t.toldTo(sink)}
	if x.value != now || x.sink != sink {
		x.value, x.sink = now, sink
		x.values = record.Mark{Task: t.cfg.partition, Watermark: int64(now.watermark)}.Append(t.Alloc(record.MarkBytes))
		t.Keep(record.MarkBytes)
	}
	from := len(x.headers)
	x.headers = append(append(x.headers, h...), record.Header{Key: record.MarkHeader, Value: x.values})
	return x.headers[from:len(x.headers):len(x.headers)]
}

// forgetHeaders lets go of what the outputs of the transaction had: its memory is used again.
func (t *Task) forgetHeaders() {
	x := &t.tells
	clear(x.headers)
	x.headers, x.values, x.value = x.headers[:0], nil, told{}
}

// upstream is the reading side: what the tasks that write an input have told.
type upstream struct {
	clocks []*uint64 // by task
	// lowest is the time of those that are not idle, highest that of all; active: there is one that is not idle.
	lowest, highest window.Millis
	active          bool
}

// startUpstream takes over what was told to the input before the committed point.
func (t *Task) startUpstream(in *input) {
	in.upstream = &upstream{}
	for i := range t.cfg.upstreams[in.source] {
		id := topology.CounterID{Kind: counterUpstream, Of: clockOf + in.tp.Topic + clockOf + strconv.Itoa(int(i))}
		in.upstream.clocks = append(in.upstream.clocks, t.counters.cell(id))
	}
	in.upstream.look()
}

// look finds lowest and highest.
func (u *upstream) look() {
	u.lowest, u.highest, u.active = window.MaxMillis, window.NoTime, false
	for _, c := range u.clocks {
		at := clock{c}.time()
		if u.highest = max(u.highest, at); *c&idleBit == 0 {
			u.active, u.lowest = true, min(u.lowest, at)
		}
	}
}

// hear takes over a mark. Time never goes back: a task without state begins anew after a restart. A task that the plan does not
// have is none to wait for: an earlier version of the topology, with more of them, has left what it said.
func (u *upstream) hear(m record.Mark) error {
	if int(m.Task) >= len(u.clocks) {
		return nil
	}
	at := window.Millis(m.Watermark)
	if at < window.NoTime || at > window.MaxMillis {
		return fmt.Errorf("a mark of task %d at %d ms", m.Task, m.Watermark)
	}
	c := clock{u.clocks[m.Task]}
	before := *c.cell
	c.set(max(at, c.time()))
	if m.Idle {
		*c.cell |= idleBit
	}
	switch now := *c.cell; {
	case now == before:
	case (now^before)&idleBit == 0 && clock{&before}.time() > u.lowest:
		u.highest = max(u.highest, at) // it was not the lowest, so that the others say what is
	default:
		u.look()
	}
	return nil
}

// takeMark takes the input's next record if it is a mark.
func (t *Task) takeMark(in *input) (took bool, err error) {
	src := &t.cfg.sub.Sources[in.source]
	if !src.Internal || src.External {
		return false, nil
	}
	r := in.head()
	if !record.IsMark(r.Key, r.Value, r.Headers) {
		if in.upstream == nil {
			withoutTime(r)
		}
		return false, nil
	}
	if in.upstream != nil { // else it is of an older topology, whose operators went by time
		m, err := record.ParseMark(r.Headers[0].Value)
		if err == nil {
			err = in.upstream.hear(m)
		}
		if err != nil {
			return false, fmt.Errorf("processor: task %s: %s: %w", t.name, record.Position{TopicPartition: in.tp, Offset: r.Offset}, err)
		}
		in.busy()
		t.moveWatermark()
	}
	in.advance()
	t.skipped = true
	return true, nil
}

// hearRecord takes over what a record of a repartition topic says of the time of who has written it.
func (t *Task) hearRecord(in *input, r *broker.Record) {
	if m, ok := withoutTime(r); ok && in.upstream.hear(m) == nil { // what is wrong is said of marks
		t.moveWatermark()
	}
}

// withoutTime takes the header off that says a writer's time. False: there is none, since an older version has written the
// record, and if there is one that is called so, it is the user's.
func withoutTime(r *broker.Record) (m record.Mark, ok bool) {
	last := len(r.Headers) - 1
	if last < 0 || r.Headers[last].Key != record.MarkHeader {
		return m, false
	}
	m, err := record.ParseMark(r.Headers[last].Value)
	if err != nil {
		return m, false
	}
	r.Headers = r.Headers[:last:last]
	return m, true
}

// reach is how far event time has come in an input. If the input holds nobody up, idle is for how long it has not; negative: it
// does.
func (in *input) reach(src *topology.Source) (at window.Millis, idle time.Duration) {
	limit := src.Idleness
	if at = in.newest.time(); in.upstream == nil {
		at = at.Add(-src.OutOfOrderness)
	} else {
		limit = src.MarkIdleness
		if at = in.upstream.lowest; !in.upstream.active {
			at, limit = in.upstream.highest, 0
		}
		at = at.Add(-src.MarkDelay)
	}
	if limit < 0 || in.idle < limit {
		return at, -1
	}
	return at, in.idle - limit
}
