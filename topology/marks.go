package topology

// markTime finds the repartition topics in which the tasks that write tell their event time, in marks between the
// records: those of whose readers an operator acts by event time, or a part further down. The others cost nothing. Without
// marks a reader would go by the newest record of any writer, and take all that a slower one sends for late.
func markTime(parts [][]*node) {
	readers := map[string]int{} // the part that reads an internal topic
	acts := make([]bool, len(parts))
	for i, part := range parts {
		for _, n := range part {
			if n.source != nil && n.source.Internal {
				readers[n.source.Topic] = i
			}
			acts[i] = acts[i] || n.byTime || n.actsByTime()
		}
	}
	// A part may stand before one that it reads from, so that one pass is not enough.
	for changed := true; changed; {
		changed = false
		for i, part := range parts {
			for _, n := range part {
				if n.sink == nil || !n.sink.Internal || n.sink.External || acts[i] || !acts[readers[n.sink.Topic]] {
					continue
				}
				acts[i], changed = true, true
			}
		}
	}
	for i, part := range parts {
		for _, n := range part {
			switch {
			case n.source != nil && n.source.Internal && !n.source.External:
				n.source.Marks = acts[i]
				n.source.MarkDelay, n.source.MarkIdleness = 0, -1
				if d := n.opts.outOfOrderness; d != nil {
					n.source.MarkDelay = *d
				}
				if d := n.opts.idleness; d != nil {
					n.source.MarkIdleness = *d
				}
			case n.sink != nil && n.sink.Internal && !n.sink.External:
				n.sink.Marks = acts[readers[n.sink.Topic]]
				n.sink.Lag = n.lag
			}
		}
	}
}

// actsByTime says whether an operator with timers or schedules goes by event time.
func (n *node) actsByTime() bool {
	for _, h := range n.opts.timers {
		if !h.timers.byWall() {
			return true
		}
	}
	for _, h := range n.opts.schedules {
		if !h.wall {
			return true
		}
	}
	return false
}
