package topology

import (
	"fmt"
	"slices"
)

// Orphans says what of the state of t a next version of it would give up: logs of IDs, state stores and repartition topics that
// have another name there, or are gone. What processor finds at a start in the state that is there, this finds before. Empty:
// nothing.
func (t *Topology) Orphans(next *Topology) []Finding {
	var all []Finding
	note := func(operator, remedy, format string, args ...any) {
		all = append(all, Finding{Operator: operator, What: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if t.name != next.name {
		note(t.name, "name it back", "the application is called %q now: it begins with empty state, at the oldest records", next.name)
		return all
	}
	subs, topics := map[string]*Subtopology{}, map[string]bool{}
	for _, s := range next.subs {
		subs[s.Name] = s
		for _, src := range s.Sources {
			topics[next.SourceTopic(src)] = true
		}
	}
	for _, s := range t.subs {
		for _, src := range s.Sources {
			if topic := t.SourceTopic(src); src.Internal && !topics[topic] {
				note(src.Topic, "name it back, or let the last version process what is in the topic", "topic %s is read by nobody: records that are in it are lost", topic)
			}
		}
		n := subs[s.Name]
		switch {
		case !s.Stateful():
			continue
		case n == nil:
			note(s.Name, "name its first source (or the KeyBy before it) back", "the sub-topology is gone or has another name: IDs and commits in %s, and its state, are given up", t.IDLogTopic(s))
			continue
		}
		for _, d := range s.Dedups {
			is := func(x DedupSpec) bool { return x.Name == d.Name }
			switch {
			case slices.ContainsFunc(n.Dedups, is):
			case slices.ContainsFunc(n.LeftOut, is):
				note(d.Name, fmt.Sprintf("keep it (Always, dedup: always) until the operator before it has run for %s", short(d.Config.Retention)),
					"its log is left out, and the operator before it may not know all of the IDs in it")
			default:
				note(d.Name, "name it back", "the dedup operator is gone or has another name: repeats of what it has processed are new again")
			}
		}
		for _, st := range s.Stores {
			if !slices.ContainsFunc(n.Stores, func(x StoreSpec) bool { return x.Name == st.Name }) {
				note(st.Name, "name it back", "the state store is gone or has another name: what is in %s is given up, and it begins empty", t.StoreTopic(st.Name))
			}
		}
	}
	return all
}
