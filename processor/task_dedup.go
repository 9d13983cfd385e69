package processor

import (
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
)

// idLog is a dedup operator's log in this task.
type idLog struct {
	name    string
	index   *dedup.Index
	mark    int // savepoint of the record in hand
	sealing bool
	current *record.Position // of the record in hand
	repeats repeatLog

	tapped bool        // somebody looks for an ID: note it in seen
	seen   record.Hash // of the record in hand

	meter *idMeter // nil: nothing is measured
	n     int      // lookups, for sampling
	ages  []time.Duration
}

// Limits of what is measured per transaction and how often.
const (
	lookupSample = 64
	agesPerTxn   = 64
)

// observer is what a histogram is to whoever measures.
type observer interface{ Observe(seconds float64) }

// idMeter measures a dedup operator. It holds the clock, which a task has none of.
type idMeter struct {
	now               func() time.Time
	age, memory, disk observer
}

// Check implements topology.IDLog.
func (l *idLog) Check(h record.Hash, payload uint64, at time.Time) (dedup.Answer, error) {
	a, err := l.check(h, payload, at)
	l.noteRepeat(h, a, at)
	return a, err
}

// check asks the index, and measures it.
func (l *idLog) check(h record.Hash, payload uint64, at time.Time) (dedup.Answer, error) {
	if l.tapped {
		l.seen = h
	}
	if l.meter == nil {
		return l.index.Check(h, payload, at)
	}
	l.n++
	if l.n%lookupSample != 0 {
		a, err := l.index.Check(h, payload, at)
		l.noteAge(a, at)
		return a, err
	}
	begin := l.meter.now()
	a, err := l.index.Check(h, payload, at)
	took := l.meter.now().Sub(begin).Seconds()
	if a.Bloom == dedup.TruePositive || a.Bloom == dedup.FalsePositive {
		l.meter.disk.Observe(took)
	} else {
		l.meter.memory.Observe(took)
	}
	l.noteAge(a, at)
	return a, err
}

// noteAge keeps how late a duplicate came, until the commit.
func (l *idLog) noteAge(a dedup.Answer, at time.Time) {
	fault.Point("dedup.checked")
	if (a.Verdict == dedup.Duplicate || a.Verdict == dedup.DuplicatePending) && len(l.ages) < agesPerTxn {
		l.ages = append(l.ages, max(0, at.Sub(a.SeenAt)))
	}
}

func (l *idLog) commit(now time.Time) {
	l.index.Commit()
	l.repeats.commit(now)
	for _, d := range l.ages {
		l.meter.age.Observe(d.Seconds())
	}
	l.ages = l.ages[:0]
}

func (l *idLog) abort() {
	l.index.Abort()
	l.repeats.abort()
	l.ages = l.ages[:0]
}

// meter is the operator's meter, made by the metrics of the process.
func (e *engine) meter(operator string) *idMeter {
	return &idMeter{now: e.now, age: e.metrics.DuplicateAge(operator), memory: e.metrics.Lookup(operator, "memory"), disk: e.metrics.Lookup(operator, "disk")}
}
