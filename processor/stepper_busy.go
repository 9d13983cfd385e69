package processor

import "github.com/streamd/streamd/record"

// GlobalsBehind says whether a global table lacks what is committed, as stable tells it.
func (s *Stepper) GlobalsBehind(stable func(record.TopicPartition) record.Offset) bool {
	if s.engine.globals == nil {
		return false
	}
	for _, t := range s.engine.globals.tables {
		ends := map[record.TopicPartition]record.Offset{}
		for _, tp := range t.partitions() {
			ends[tp] = stable(tp)
		}
		if t.lacks(ends) != "" {
			return true
		}
	}
	return false
}

// Busy says whether anything that a worker knows of is under way: a command, a restore, records that are queued or not
// committed, outcomes of calls. Calls that Env.Call has, and records that wait for them, are not. What a fetch would bring it does not know.
func (s *Stepper) Busy() bool {
	for _, w := range s.workers {
		if w.pendingCommand() || w.open && w.records || w.pendingOutcome() {
			return true
		}
		for _, r := range w.runs {
			if r.state != TaskRunning || r.task.callsDue() || r.task.queued() > 0 && !r.task.held() {
				return true
			}
		}
	}
	return false
}
