package processor

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// This file is what joins ask of the runtime: inputs that are cut into partitions alike, and the order of time between them.

// alignJoins gives the repartition topics in front of a join the number of partitions of its other inputs, unless the
// topology says another one. It notes in aligned those that it has decided on.
func alignJoins(topo *topology.Topology, seen map[string]broker.Topic, counts map[string]int32, aligned map[string]bool) {
	free := map[string]bool{} // repartition topics whose number is ours to choose
	for _, s := range topo.Subtopologies() {
		for _, k := range s.Sinks {
			if k.Internal && k.Partitions == 0 {
				free[k.Topic] = true
			}
		}
	}
	for _, s := range topo.Subtopologies() {
		for _, j := range s.Joins {
			var fixed, widest int32
			for _, i := range j.Sources {
				n := partitionsOf(s.Sources[i], seen, counts)
				widest = max(widest, n)
				if !s.Sources[i].Internal || !free[s.Sources[i].Topic] {
					fixed = max(fixed, n)
				}
			}
			if fixed == 0 {
				fixed = widest
			}
			for _, i := range j.Sources {
				if src := s.Sources[i]; src.Internal && free[src.Topic] && fixed > 0 && counts[src.Topic] != fixed {
					counts[src.Topic], aligned[src.Topic] = fixed, true
				}
			}
		}
	}
}

// partitionsOf is the number of partitions of an input, 0 if it is not known yet.
func partitionsOf(src topology.Source, seen map[string]broker.Topic, counts map[string]int32) int32 {
	if src.Internal {
		return counts[src.Topic]
	}
	return seen[src.Topic].Partitions
}

// checkJoins refuses joins whose inputs have different numbers of partitions: records of one key would be in different
// tasks, and be joined with nothing, in silence.
func checkJoins(topo *topology.Topology, seen map[string]broker.Topic, counts map[string]int32) error {
	var wrong []error
	for _, s := range topo.Subtopologies() {
		for _, j := range s.Joins {
			var parts []string
			different, most := map[int32]bool{}, int32(0)
			for _, i := range j.Sources {
				n := partitionsOf(s.Sources[i], seen, counts)
				parts = append(parts, fmt.Sprintf("%q has %d", topo.SourceTopic(s.Sources[i]), n))
				different[n], most = true, max(most, n)
			}
			if len(different) > 1 {
				wrong = append(wrong, fmt.Errorf("join %q: its input topics have different numbers of partitions, so that records of one key would not meet: %s. "+
					"Put a KeyBy before the join for each that has another number than %d (its repartition topic gets that of the other inputs), or make the topic anew with it",
					j.Operator, strings.Join(parts, ", "), most))
			}
		}
	}
	if wrong != nil {
		return errors.Join(ErrTopics, errors.Join(wrong...))
	}
	return nil
}

// awaits is the first input from which a record must come before it is known which record is next: nothing of it is queued, and
// more of it is known to be committed. Only tasks with joins wait: in them the order between the inputs decides on the
// results. (Kafka Streams: max.task.idle.ms.) False: none.
func (t *Task) awaits() (record.TopicPartition, bool) {
	if len(t.cfg.sub.Joins) == 0 {
		return record.TopicPartition{}, false
	}
	for _, in := range t.inputs {
		if in != nil && in.lacks() && in.behind < maxBehind {
			return in.tp, true
		}
	}
	return record.TopicPartition{}, false
}

// maxBehind bounds the wait for an input. A reader cannot tell a leader that is away from a compacted topic whose last offsets hold
// nothing any more, of which nothing will ever come; and the other inputs must not stand still for ever.
const maxBehind = 2 * time.Minute

// lacks says whether there is more to read, and nothing of it has come.
func (in *input) lacks() bool { return in.empty() && in.read() < in.stable }

// wait lets time pass for inputs of which something is to come.
func (t *Task) wait(passed time.Duration) {
	for _, in := range t.inputs {
		if in != nil && in.lacks() {
			in.behind += passed
		}
	}
}

// ready says whether a record can be processed, or the outcome of a call.
func (t *Task) ready() bool {
	if t.waiting != nil {
		return false // it is asked again at the next step
	}
	if t.callsDue() {
		return true
	}
	if t.queued() == 0 || t.held() {
		return false
	}
	_, waits := t.awaits()
	return !waits
}

// heardOf notes how far the inputs are committed: what a task must have read before one of them can be called empty.
func (t *Task) heardOf(stable map[record.TopicPartition]record.Offset) {
	for _, in := range t.inputs {
		if in != nil {
			in.stable = max(in.stable, stable[in.tp])
		}
	}
}
