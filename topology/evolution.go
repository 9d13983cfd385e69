package topology

import (
	"fmt"
	"slices"
	"time"
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
		for _, d := range s.LeftOut {
			if next.BeginsEmpty(s, d.Name, d.By) {
				note(d.Name, EmptyLogRemedy(d.By, d.Config.Retention), "it had no log, and %q no longer keeps all repeats from it: what it has processed is new again", d.By)
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

// BeginsEmpty says whether a dedup operator, which had no log in a sub-topology of an earlier version, lacks what the operator that
// made the log superfluous knows: it does, unless that one still keeps all repeats from it. An operator that is gone lacks nothing.
func (t *Topology) BeginsEmpty(old *Subtopology, operator, by string) bool {
	for _, s := range t.subs {
		for _, d := range slices.Concat(s.Dedups, s.LeftOut) {
			if d.Name == operator {
				return s.Name != old.Name || !slices.Contains(d.Guards, by)
			}
		}
	}
	return false
}

// EmptyLogRemedy says how a log that was left out comes back without a loss.
func EmptyLogRemedy(by string, retention time.Duration) string {
	return fmt.Sprintf("leave %q as it was, and give this one its log (topology.Always, dedup: always) until it has run for %s; then make the change", by, short(retention))
}
