package topology

import (
	"fmt"
	"slices"
)

// Guarantee is what one topic gets, whatever the application's processing guarantee says: ExactlyOnce, its records are part of
// the transaction; or AtLeastOnce, they are sent and acknowledged before the transaction that has the IDs, the state and
// the positions behind them. Its readers wait for no transaction and need no read_committed; after a crash between the two
// the records come again, with the same IDs, which a Dedup that reads the topic drops. Default: as the application.
// AtMostOnce is not one topic's to choose: the positions are the same for all outputs.
func Guarantee(l Level) SinkSetting { return SinkSetting{func(o *options) { o.guarantee = l }} }

// ProcessingLevels are the levels that an application can run with (processor.WithGuarantee).
func ProcessingLevels() []Level { return []Level{ExactlyOnce, AtLeastOnce, AtMostOnce} }

// Ahead says whether the records of the sink are sent before the transaction, in an application with this guarantee.
// Those of internal topics never are: what the tasks behind them keep would not be exactly once.
func (s Sink) Ahead(application Level) bool {
	if s.Guarantee != "" {
		application = s.Guarantee
	}
	return application == AtLeastOnce && !s.Internal
}

// CheckGuarantee says why a topology cannot run with a processing guarantee: all problems at once, see Problems. What can run is
// what does what it says: an output that would get another level than was asked for is refused, not served.
func (t *Topology) CheckGuarantee(l Level) error {
	var problems []*Problem
	bad := func(operator, format string, args ...any) {
		problems = append(problems, &Problem{Operator: operator, Rule: ruleGuarantee, What: fmt.Sprintf(format, args...)})
	}
	if !slices.Contains(ProcessingLevels(), l) {
		bad(t.name, "has no processing guarantee %q: want one of %q", l, ProcessingLevels())
		return joinProblems(problems)
	}
	read := map[string]bool{}
	for _, n := range t.nodes {
		if n.source != nil && !n.source.Internal {
			read[n.source.Topic] = true
		}
	}
	ahead := false
	for _, n := range t.nodes {
		switch {
		case n.kind == kindEffect:
			if l == AtMostOnce {
				bad(n.name, "calls for each committed record, and the application may lose what it has read before that. Use another guarantee")
			}
		case n.ends != "":
			if l == AtMostOnce && n.ends != sinkIdempotent {
				bad(n.name, "%s", notAtMostOnce(n.ends))
			}
		case n.sink == nil || n.sink.Internal:
		case l == AtMostOnce && n.sink.Guarantee != "":
			bad(n.name, "has a guarantee of its own, and the application is %s: what is lost is lost for all outputs. Leave Guarantee out", l)
		case n.sink.Ahead(l) && read[n.sink.Topic]:
			bad(n.name, "writes topic %q, which the topology reads itself, %s: a repeat would come back and count again. Give it Guarantee(%q)", n.sink.Topic, AtLeastOnce, ExactlyOnce)
		default:
			ahead = ahead || n.sink.Ahead(l)
		}
	}
	if l == AtLeastOnce && !ahead && len(problems) == 0 {
		bad(t.name, "has no topic that %s could change: a sink outside of Kafka has the level of its class. Leave the guarantee out", l)
	}
	return joinProblems(problems)
}

// ruleGuarantee is the rule of problems with levels.
const ruleGuarantee = "guarantee"

// notAtMostOnce says why a sink outside of Kafka cannot be part of an application that may lose records.
func notAtMostOnce(c sinkClass) string {
	switch c {
	case sinkLedger:
		return "is a ledger, which is there so that nothing is lost, and the application may lose records before they get there. Use class idempotent, or another guarantee"
	case sinkTwoPhase:
		return "is of class two_phase, which is there so that nothing is lost, and the application may lose records before they get there. Use class idempotent, or another guarantee"
	}
	return fmt.Sprintf("is of class %s, which may write a row twice, so that it would be neither %s nor %s. Use class idempotent, or another guarantee", c, AtMostOnce, AtLeastOnce)
}
