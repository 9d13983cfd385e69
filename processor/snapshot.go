package processor

import (
	"maps"
	"slices"
	"strings"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// sizer tells the size of the local store on disk.
type sizer func() (lsm, valueLog uint64)

// snapshot turns the figures into what a scrape shows.
func (s *stats) snapshot(topo *topology.Topology, log sizer) metric.Snapshot {
	st := s.status(topo)
	out := metric.Snapshot{
		State: string(st.State), Started: st.Started, Tasks: map[string]int{},
		OldestOpen: st.Transactions.OldestOpen, LastCommit: st.Transactions.LastCommit,
	}
	for _, x := range states {
		out.States = append(out.States, string(x))
	}
	for _, x := range taskStates {
		out.Tasks[string(x)] = 0
	}
	for _, t := range st.Tasks {
		out.Tasks[string(t.State)]++
		if !t.StreamTime.IsZero() && (out.StreamTime.IsZero() || t.StreamTime.Before(out.StreamTime)) {
			out.StreamTime = t.StreamTime
		}
		for _, in := range t.Inputs {
			out.Inputs = append(out.Inputs, metric.Input{Topic: in.Topic, Partition: in.Partition, Lag: in.Lag})
		}
	}
	for _, o := range st.Operators {
		m := metric.Operator{Name: o.Name, Kind: o.Kind, Counters: o.Counters}
		if d := o.Dedup; d != nil {
			m.Dedup = &metric.Dedup{
				IDs: d.IDs, Retention: d.Retention, Oldest: d.Oldest, BloomBytes: d.BloomBytes, BloomFill: d.BloomFill,
				FalsePositiveRatio: d.FalsePositiveRate, Expired: d.Expired, Rebuilds: d.Rebuilds,
			}
		}
		if x := o.Effect; x != nil {
			m.Effect = &metric.Effect{Waiting: x.Waiting, Running: x.Running, Uncertain: x.Uncertain, Hanging: x.Hanging}
		}
		out.Operators = append(out.Operators, m)
	}
	for _, g := range st.Globals {
		out.Globals = append(out.Globals, g.metrics())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Where a process begins or ends, tasks come and go one by one, and none of that is a record.
	out.Unknown = !s.known || len(s.tasks) == 0 || s.state == Stopping || s.state == Failed
	out.Topics = s.volumes(topo)
	out.Stores = s.stores(topo, log)
	return out
}

// volumes sums what was consumed from and produced to each topic.
func (s *stats) volumes(topo *topology.Topology) []metric.Topic {
	consumed, produced := map[string]*metric.Volume{}, map[string]*metric.Volume{}
	for _, sub := range topo.Subtopologies() {
		for _, x := range sub.Sources {
			consumed[topo.SourceTopic(x)] = &metric.Volume{}
		}
		for _, x := range sub.Sinks {
			produced[topo.SinkTopic(x)] = &metric.Volume{}
		}
	}
	for _, v := range s.tasks {
		for _, c := range v.counters {
			kind, of, _ := strings.Cut(c.Name, separator)
			dir := consumed
			if strings.HasPrefix(kind, "produced/") {
				dir = produced
			}
			switch topology.CounterKind(kind) {
			case counterConsumedRecords, counterProducedRecords:
				volume(dir, of).Records += c.Value
			case counterConsumedBytes, counterProducedBytes:
				volume(dir, of).Bytes += c.Value
			}
		}
	}
	var out []metric.Topic
	for _, n := range slices.Sorted(maps.Keys(consumed)) {
		out = append(out, metric.Topic{Name: n, Consumed: consumed[n]})
	}
	for _, n := range slices.Sorted(maps.Keys(produced)) {
		out = append(out, metric.Topic{Name: n, Produced: produced[n]})
	}
	return out
}

func volume(m map[string]*metric.Volume, topic string) *metric.Volume {
	if m[topic] == nil {
		m[topic] = &metric.Volume{} // a dead letter topic
	}
	return m[topic]
}

// stores lists the stateful sub-topologies: each has one log of IDs and commits and its state stores.
// The size on disk is the process's, shown at the first one: the store is shared.
func (s *stats) stores(topo *topology.Topology, log sizer) []metric.Store {
	var out []metric.Store
	for _, sub := range topo.Subtopologies() {
		if !sub.Stateful() {
			continue
		}
		m := metric.Store{Name: sub.Name, RestoredRecords: s.restored[sub.Name]}
		if len(out) == 0 && log != nil {
			m.LSM, m.ValueLog = log()
		}
		for _, v := range s.tasks {
			if v.sub != sub {
				continue
			}
			m.RestoreRemaining += v.status.Remaining
			m.WrittenRecords += counterValue(v.counters, counterChangelogRecords, sub.Name)
			m.WrittenBytes += counterValue(v.counters, counterChangelogBytes, sub.Name)
		}
		out = append(out, m)
	}
	return out
}

func counterValue(all []record.Counter, kind topology.CounterKind, of string) uint64 {
	name := string(kind) + separator + of
	for _, c := range all {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}
