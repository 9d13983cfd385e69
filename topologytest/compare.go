package topologytest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Comparison is how strictly a Fuzz compares an output topic. What may differ between two correct runs depends on the topology: where
// records of several tasks meet, in a repartition topic or in a join, their order depends on who was faster.
type Comparison uint8

// The comparisons, the strictest first. By default a Fuzz takes the strictest that holds for every correct application:
//
//   - InOrder where one task writes the topic, and its input has one possible order
//   - ByKey where several tasks write it, each with an input that has one possible order
//   - AsSet where tasks meet before it, and no operator has state but dedup
//   - LastByKey where tasks meet before it, and operators have state
//
// Behind an effect the order depends on when the other system answers: there it is AsSet, without the times of the records, or LastByKey if other operators
// have state.
//
// With Reordered it is AsSet without state, LastByKey with it: if that is not what the application promises, say so with Compare.
const (
	InOrder   Comparison = 1 + iota // each partition: the same records in the same order, with headers, IDs and times
	ByKey                           // each key: the same records in the same order, with headers, IDs and times
	AsSet                           // the same records in any order, with headers, IDs and times
	LastByKey                       // the same last value of each key
)

// line is a record as it is compared.
type line struct {
	at         record.Position
	key, value string
	rest       string // headers and, unless it may differ, time
}

func lineOf(m message, timed bool) line {
	l := line{at: m.Position, key: fmt.Sprintf("%q", m.rec.Key), value: fmt.Sprintf("%q", m.rec.Value)}
	if timed {
		l.rest = fmt.Sprintf("at %s", m.rec.Timestamp.UTC().Format("15:04:05.000"))
	}
	if m.rec.Key == nil {
		l.key = "null"
	}
	if m.rec.Value == nil {
		l.value = "null"
	}
	for _, h := range m.rec.Headers {
		l.rest += fmt.Sprintf(" %s=%q", h.Key, h.Value)
	}
	return l
}

// comparisons says how each output topic is compared.
func comparisons(topo *topology.Topology, conf config) func(string) Comparison {
	p := &planner{topo: topo, conf: conf}
	how := map[string]Comparison{}
	for _, s := range topo.Subtopologies() {
		for _, k := range s.Sinks {
			if k.Internal {
				continue
			}
			if c, ok := conf.compare[k.Topic]; ok {
				how[k.Topic] = c
				continue
			}
			how[k.Topic] = max(how[k.Topic], p.strictest(s, k.Topic))
		}
	}
	return func(topic string) Comparison { return how[topic] }
}

// planner finds out what has one possible order.
type planner struct {
	topo *topology.Topology
	conf config
}

func (p *planner) strictest(s *topology.Subtopology, topic string) Comparison {
	switch {
	case p.stateless(s, 0) && p.calls(s, 0):
		return AsSet
	case p.calls(s, 0):
		return LastByKey
	case p.conf.reorder == 0 && p.ordered(s, 0) && p.tasks(s, 0) == 1 && len(p.writers(topic)) == 1:
		return InOrder
	case p.conf.reorder == 0 && p.ordered(s, 0) && len(p.writers(topic)) == 1:
		return ByKey
	case p.stateless(s, 0):
		return AsSet
	}
	return LastByKey
}

// deepest bounds how far a chain of repartition topics is followed: a topology may have a circle through topics.
const deepest = 32

// ordered says whether each task's input has one possible order.
func (p *planner) ordered(s *topology.Subtopology, depth int) bool {
	if len(s.Sources) != 1 || depth > deepest {
		return false
	}
	topic := p.topo.SourceTopic(s.Sources[0])
	writers := p.writers(topic)
	switch {
	case len(writers) == 0:
		return true
	case len(writers) > 1:
		return false
	}
	return p.tasks(writers[0], depth+1) == 1 && p.ordered(writers[0], depth+1)
}

// writers are the sub-topologies that write a topic, once for each sink.
func (p *planner) writers(topic string) (out []*topology.Subtopology) {
	for _, s := range p.topo.Subtopologies() {
		for _, k := range s.Sinks {
			if p.topo.SinkTopic(k) == topic {
				out = append(out, s)
			}
		}
	}
	return out
}

// tasks is the number of tasks: of the partitions of the widest input.
func (p *planner) tasks(s *topology.Subtopology, depth int) (n int32) {
	n = 1
	for _, x := range s.Sources {
		topic := p.topo.SourceTopic(x)
		n = max(n, p.conf.partitions[topic])
		for _, w := range p.writers(topic) {
			if !x.Internal || depth > deepest {
				continue
			}
			for _, k := range w.Sinks {
				switch {
				case p.topo.SinkTopic(k) != topic:
				case k.Partitions > 0:
					n = max(n, k.Partitions)
				default:
					n = max(n, p.tasks(w, depth+1))
				}
			}
		}
	}
	return n
}

// stateless says whether neither the sub-topology nor any before it has a store, but for those of effects.
func (p *planner) stateless(s *topology.Subtopology, depth int) bool {
	return p.all(s, depth, func(s *topology.Subtopology) bool { return len(s.Stores) == len(s.Effects) })
}

// calls says whether the sub-topology or one before it has an effect.
func (p *planner) calls(s *topology.Subtopology, depth int) bool {
	return !p.all(s, depth, func(s *topology.Subtopology) bool { return len(s.Effects) == 0 })
}

// all says whether something holds for the sub-topology and all before it.
func (p *planner) all(s *topology.Subtopology, depth int, holds func(*topology.Subtopology) bool) bool {
	if !holds(s) || depth > deepest {
		return false
	}
	for _, x := range s.Sources {
		for _, w := range p.writers(p.topo.SourceTopic(x)) {
			if !p.all(w, depth+1, holds) {
				return false
			}
		}
	}
	return true
}

// diff says in what the second result is not as the first; empty: in nothing.
func diff(want, got result, how func(topic string) Comparison) string {
	if got.failed != "" {
		return got.failed
	}
	for _, topic := range want.topics {
		var what string
		switch how(topic) {
		case InOrder:
			what = diffGroups(want.logs[topic], got.logs[topic], func(l line) string { return fmt.Sprintf("partition %d", l.at.Partition) })
		case ByKey:
			what = diffGroups(want.logs[topic], got.logs[topic], func(l line) string { return "key " + l.key })
		case AsSet:
			what = diffSets(want.logs[topic], got.logs[topic])
		default:
			what = diffLast(want.logs[topic], got.logs[topic])
		}
		if what != "" {
			return fmt.Sprintf("topic %q, %s", topic, what)
		}
	}
	return ""
}

// diffGroups compares the sequences of each group. The groups are looked at in the order in which they come.
func diffGroups(want, got []line, group func(line) string) string {
	split := func(all []line) (names []string, by map[string][]line) {
		by = map[string][]line{}
		for _, l := range all {
			g := group(l)
			if by[g] == nil {
				names = append(names, g)
			}
			by[g] = append(by[g], l)
		}
		return names, by
	}
	names, a := split(want)
	more, b := split(got)
	for _, g := range slices.Compact(slices.Sorted(slices.Values(append(names, more...)))) {
		for i := range max(len(a[g]), len(b[g])) {
			switch {
			case i >= len(b[g]):
				return fmt.Sprintf("%s: %d records, without faults %d: %s is missing", g, len(b[g]), len(a[g]), a[g][i])
			case i >= len(a[g]):
				return fmt.Sprintf("%s: %d records, without faults %d: %s is one too many", g, len(b[g]), len(a[g]), b[g][i])
			case !a[g][i].same(b[g][i]):
				return fmt.Sprintf("%s, record %d is\n\t%s\nand without faults\n\t%s", g, i+1, b[g][i], a[g][i])
			}
		}
	}
	return ""
}

func diffSets(want, got []line) string {
	sorted := func(all []line) []line {
		return slices.SortedFunc(slices.Values(all), func(a, b line) int {
			return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.value, b.value), cmp.Compare(a.rest, b.rest))
		})
	}
	return diffGroups(sorted(want), sorted(got), func(l line) string { return "key " + l.key })
}

func diffLast(want, got []line) string {
	last := func(all []line) (out []line) {
		at := map[string]int{}
		for _, l := range all {
			l.rest = "" // which of several records is the last one, with its time and its ID, may differ
			if i, ok := at[l.key]; ok {
				out[i] = l
				continue
			}
			at[l.key] = len(out)
			out = append(out, l)
		}
		return out
	}
	return diffGroups(last(want), last(got), func(l line) string { return "the last record of key " + l.key })
}

func (l line) same(m line) bool { return l.key == m.key && l.value == m.value && l.rest == m.rest }

// String is the record with its position.
func (l line) String() string { return fmt.Sprintf("%s %s = %s %s", l.at, l.key, l.value, l.rest) }
