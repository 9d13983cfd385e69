package processor

// Busy says whether anything that a worker knows of is under way: a command, a restore, records that are queued or not
// committed. What a fetch would bring it does not know.
func (s *Stepper) Busy() bool {
	for _, w := range s.workers {
		if w.pendingCommand() || w.open && w.records {
			return true
		}
		for _, r := range w.runs {
			if r.state != TaskRunning || r.task.queued() > 0 {
				return true
			}
		}
	}
	return false
}
