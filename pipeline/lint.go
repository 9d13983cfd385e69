package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// lintScope warns of a dedup step that does not say whether copies of a record meet.
func (r *planner) lintScope(s *stepPlan) {
	from := fmt.Sprintf("%q", s.in[0].name)
	if s.in[0].name == "" {
		from = "its input"
	}
	for _, src := range r.plan.sources {
		if src.out == s.in[0] && src.topic != "" {
			from = fmt.Sprintf("%q", src.topic)
		}
	}
	r.d.warnf(s.node, RuleDedupScope, "duplicates are only found inside one partition of %s", from).
		hint(`if one record can arrive in two partitions, set "scope: stream"`).
		hint(`if records are keyed so that copies meet, say so: "scope: partition"`)
}

// lintID looks at what an ID is made of.
func (r *planner) lintID(s *stepPlan, p *dedupPlan) {
	uses, calls := map[string]bool{}, map[string]bool{}
	literals := 0
	for _, e := range p.id.parts {
		for v := range e.uses {
			uses[v] = true
		}
		for c := range e.calls {
			calls[c] = true
		}
		if e.literal != nil {
			literals++
		}
		if e.calls[operators.Add] && e.typ.Kind() == types.StringKind {
			r.d.warnf(e.node, RuleIDNotAList, "an ID made by joining texts: (%q, %q) and (%q, %q) give the same ID", "a", "bc", "ab", "c").
				hint("write a list: id: [a, b]; its parts are kept apart")
		}
	}
	first := p.id.parts[0].node
	identifying := uses[varKey] || uses[varValue] || uses[varHeaders] || uses[varPosition] || uses[varCloudEvent] || uses[varDebezium]
	switch {
	case literals == len(p.id.parts):
		r.d.errorf(first, RuleIDTooCoarse, "every record has the same ID: all but the first would be dropped")
	case !identifying && uses[varOffset] && !uses[varPartition]:
		r.d.warnf(first, RuleIDTooCoarse, "offsets repeat in every partition: different records have the same ID").
			hint("record_position() has cluster, topic, partition and offset")
	case !identifying && !uses[varOffset]:
		r.d.errorf(first, RuleIDTooCoarse, "many records have the same ID: all but the first would be dropped").
			hint("an ID comes from the value, the key or a header")
	}
	if uses[varPosition] && len(p.id.parts) == 1 {
		r.d.warnf(first, RuleIDPosition, "a position only finds records that Kafka delivers again, which transactions prevent already").
			hint("a record that its producer sends twice has two positions: take an ID from the value or a header")
	}
	if (calls["hash64"] || calls["to_json"]) && !uses[varHeaders] {
		r.d.warnf(first, RuleIDContentHash, "an ID from the content: two real records that are equal count as one").
			hint("take the ID that the producer gave; compare: payload finds records that share an ID but not their content")
	}
}

// lint looks at the pipeline as a whole.
func (r *planner) lint() {
	r.lintDeadLetter()
	r.lintLoop()
	for _, x := range r.d.diags {
		switch x.Rule {
		case RuleNotAvailable, RuleUnknownName, RuleFrom, RuleOneOperator, RuleWrongType, RuleTooLarge:
			return // what is missing or not understood may be what uses the rest
		}
	}
	r.lintUnused()
	r.lintTables()
	r.lintInstead()
	r.lintWindow()
}

// lintInstead looks for options that say what becomes of records which a step reads all the same.
func (r *planner) lintInstead() {
	for _, s := range r.plan.steps {
		for _, out := range s.outs {
			if out.used && out.instead != nil {
				r.d.errorf(out.instead, RuleInvalidValue, "%s has no meaning: a step reads %q", out.instead.Value, out.name)
			}
		}
	}
}

// lintUnused looks for what nobody reads.
func (r *planner) lintUnused() {
	d, p := r.d, r.plan
	sinks := 0
	for _, s := range p.steps {
		if s.kind == opTo {
			sinks++
		}
		for _, out := range s.outs {
			if out.used || out.optional || s.name == "" {
				continue
			}
			note := d.errorf(out.node, RuleUnusedStep, "nothing reads %q", out.name)
			if s.kind == opBranch {
				note.hint("records that no case takes are dropped: leave the case out, or read it with from: %s", out.name)
			} else {
				note.hint("end it with a step of kind to, or remove it")
			}
		}
	}
	if sinks == 0 && !d.failed() {
		d.errorf(r.stepsNode, RuleNoSink, "the pipeline writes nothing: it has no step of kind to")
	}
	for _, s := range p.sources {
		if !s.out.used && len(p.steps) > 0 {
			d.warnf(s.out.node, RuleUnusedSource, "nothing reads source %q", s.out.name)
		}
	}
	names := make([]string, 0, len(p.structs))
	for name := range p.structs {
		names = append(names, name)
	}
	for _, name := range sorted(names) {
		if t := p.structs[name]; t.key != nil && !t.used {
			d.warnf(t.key, RuleUnusedType, "nothing uses type %q", name)
		}
	}
}

// lintDeadLetter looks for dead letters without a topic to go to.
func (r *planner) lintDeadLetter() {
	d := r.d
	for _, s := range r.plan.steps {
		if s.kind == opTo && s.topic != "" && s.topic == r.p.Errors.DeadLetterTopic {
			d.errorf(r.errorsKey, RuleInvalidValue, "dead_letter_topic %q is what %q writes: whoever reads its results would take dead letters for some", s.topic, s.name)
		}
	}
	if r.hasDeadLetter {
		return
	}
	if r.p.Errors.Policy == topology.PolicyDeadLetter {
		d.errorf(r.errorsKey, RuleNoDeadLetter, "on_error is dead_letter, but there is no dead_letter_topic")
	}
	for _, n := range r.deadEnds {
		d.errorf(n, RuleNoDeadLetter, "dead_letter without a dead letter topic").hint("add errors: {dead_letter_topic: NAME}")
	}
}

// lintLoop looks for outputs that the pipeline would read again.
func (r *planner) lintLoop() {
	sources := slices.Clone(r.plan.sources)
	for _, t := range r.plan.tables {
		if t.src != nil && !t.global { // a change of a global table makes no record
			sources = append(sources, t.src)
		}
	}
	for _, src := range sources {
		if src.topic == "" {
			continue
		}
		if src.topic == r.p.Errors.DeadLetterTopic {
			r.d.errorf(r.errorsKey, RuleLoop, "dead_letter_topic %q is the topic of %q: each dead letter would come back as a record, and fail again", src.topic, src.out.name)
		}
		for _, s := range r.plan.steps {
			if s.kind == opTo && s.topic == src.topic {
				r.d.errorf(s.node, RuleLoop, "topic %q is that of %q: what is written would come back as a record, without end", s.topic, src.out.name)
			}
		}
	}
}

// tryBuild reports what only the topology as a whole can know, such as a topic that two sources read.
func (r *planner) tryBuild() {
	t, err := r.plan.build()
	if err == nil {
		err = t.CheckGuarantee(r.p.Processing.Level())
	}
	if err == nil {
		return
	}
	problems := topology.Problems(err)
	if len(problems) == 0 {
		r.d.errorf(r.stepsNode, RuleTopology, "%v", err)
	}
	for _, p := range problems {
		node := r.nodeOf(p.Operator)
		if p.Operator == r.p.Name && r.processingKey != nil {
			node = r.processingKey // it is about the pipeline as a whole
		}
		note := r.d.errorf(node, RuleTopology, "%q %s", p.Operator, p.What)
		if p.Rule != "" {
			note.hint("topology rule %s", p.Rule)
		}
	}
}

// nodeOf finds the source or step that an operator was made of.
func (r *planner) nodeOf(operator string) *yaml.Node {
	for _, suffix := range []string{"", "-record", resultSuffix, dataSuffix, changesSuffix, rowsSuffix, rowsSuffix + dataSuffix, bySuffix, otherBySuffix, timersSuffix, valuesSuffix, tableSuffix, "-left", "-right", "-repartition", "-by-repartition", "-other-by-repartition", "-by-id", "-sink"} {
		name, ok := strings.CutSuffix(operator, suffix)
		if !ok {
			continue
		}
		for _, s := range r.plan.sources {
			if s.out.name == name {
				return s.out.node
			}
		}
		for _, t := range r.plan.tables {
			if t.out().name == name {
				return t.out().node
			}
		}
		for _, s := range r.plan.steps {
			if s.name == name {
				return s.node
			}
		}
	}
	return r.stepsNode
}
