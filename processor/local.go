package processor

import (
	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/txlog"
)

// logAdapter makes txlog's concrete types the interfaces that the runtime names.
type logAdapter struct{ *txlog.Log }

// Task implements LocalLog.
func (a logAdapter) Task(name string) (LocalStore, error) {
	t, err := a.Log.Task(name)
	if err != nil {
		return nil, err
	}
	return taskAdapter{t}, nil
}

// Compact implements LocalLog.
func (a logAdapter) Compact() error {
	for {
		left, err := a.Log.Sweep(sweepKeys)
		if err != nil {
			return err
		}
		if !left {
			return a.Log.Flatten()
		}
	}
}

// sweepKeys is how many leftover keys are deleted at a time: a commit waits for no more than that.
const sweepKeys = 4096

type taskAdapter struct{ *txlog.Task }

// IDs implements LocalStore.
func (t taskAdapter) IDs(operator string) dedup.Log { return t.Operator(operator) }

// sizeOf reads the sizes of the local log. Badger's value log stays empty: values are small.
func sizeOf(l *txlog.Log) sizer {
	return func() (lsm, valueLog uint64) {
		s, err := l.Sizes()
		if err != nil {
			return 0, 0
		}
		return uint64(s.Total), 0
	}
}
