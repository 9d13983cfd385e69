package web

import (
	"time"

	"github.com/streamd/streamd/processor"
)

type globalRow struct {
	Name, Topic, State, Reason, Rows, Size, Lag, AsOf string
	Bad                                               bool
}

// globals lists the global tables.
func globals(now time.Time, all []processor.GlobalStatus) (out []globalRow) {
	for _, g := range all {
		row := globalRow{
			Name: g.Name, Topic: g.Topic, State: string(g.State), Reason: g.Reason, Rows: Count(g.Rows),
			Size: Size(uint64(g.Bytes)) + " of " + Size(uint64(g.MaxBytes)), Lag: Count(g.Lag), AsOf: "–", Bad: g.State == processor.GlobalStale,
		}
		if !g.AsOf.IsZero() {
			row.AsOf = Since(now, g.AsOf) + " ago"
		}
		if g.State == processor.GlobalReading {
			row.Lag = Short(float64(g.Remaining)) + " left"
		}
		out = append(out, row)
	}
	return out
}

// EffectDetail says in a line which calls of an effect are not settled.
func EffectDetail(e *processor.EffectStatus) string {
	s := Count(e.Waiting) + " calls wait, " + Count(e.Running) + " run"
	if e.Uncertain > 0 {
		s += ", " + Count(e.Uncertain) + " of them uncertain"
	}
	if e.Hanging > 0 {
		s += ", " + Count(e.Hanging) + " given up and not back"
	}
	return s
}

// effect adds what the panel of an effect says more than its counters.
func (p *stepView) effect(e *processor.EffectStatus) {
	p.Facts = append(p.Facts,
		fact{"calls waiting", Count(e.Waiting), "to be made"},
		fact{"calls running", Count(e.Running), ""},
		fact{"calls uncertain", Count(e.Uncertain), "of both: an earlier process may have made them"},
		fact{"calls hanging", Count(e.Hanging), "given up, but their functions have not returned"})
}
