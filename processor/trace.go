package processor

import "time"

// TransactionTrace is a transaction that is over: what a span of it needs.
type TransactionTrace struct {
	Worker     int
	Begin, End time.Time // by the host's clock: of its first record, and when it was applied to the local store or given up
	Records    int       // of the inputs
	// Aborted is why it was not committed, in the words of streamd_transaction_aborts_total; its records are run again. Empty: it was committed.
	Aborted string
	// Traced are records that came with a sampled trace context, at most 512 of each task; Untold is how many more there are.
	Traced []RecordTrace
	Untold int
}

// WithTraces calls fn with each transaction that had records, once it has ended, and makes outputs name streamd's own span as the parent of what
// comes of them: a record with a sampled W3C traceparent header leaves traceparent in all that is written for it while it runs.
// The span's ID follows from the record's position, so that outputs do not differ from run to run. Records without such a header, or of
// a trace that is not sampled, pass as without tracing, and what a timer or the end of a window writes has the headers that it has anyway.
//
// fn is called by the workers, several at once; they wait for it, and its argument is theirs again afterwards. Default nil: headers
// are not looked at.
func WithTraces(fn func(*TransactionTrace)) Option {
	return optionFunc(func(c *config) { c.traces = fn })
}

// trace hands over the open transaction.
func (w *worker) trace(aborted string) {
	if w.cfg.traces == nil || !w.records {
		return
	}
	x := TransactionTrace{Worker: w.id, Begin: w.opened, End: w.now(), Aborted: aborted}
	for _, r := range w.runs {
		if r.task == nil {
			continue
		}
		x.Records += r.task.consumed
		x.Traced = append(x.Traced, r.task.traces.told...)
		x.Untold += r.task.traces.untold
	}
	w.cfg.traces(&x)
}
