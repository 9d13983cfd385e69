package pipeline

import (
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// The operators of steps.
const (
	opDedup     = "dedup"
	opFilter    = "filter"
	opMap       = "map"
	opFlatMap   = "flat_map"
	opKeyBy     = "key_by"
	opAggregate = "aggregate"
	opBranch    = "branch"
	opMerge     = "merge"
	opJoin      = "join"
	opTimer     = "timer"
	opTo        = "to"
)

// otherwise is the case of a branch for what no other case takes.
const otherwise = "otherwise"

func operatorNames() []string {
	return []string{opDedup, opFilter, opMap, opFlatMap, opKeyBy, opAggregate, opBranch, opMerge, opJoin, opTimer, opTo}
}

func (r *planner) steps(n *yaml.Node) {
	list := r.d.list(n, "steps", false)
	if v := r.d.visit(n); v != nil && v.Kind == yaml.SequenceNode && len(list) == 0 {
		r.d.errorf(n, RuleInvalidValue, "steps is empty")
	}
	for i, e := range list {
		r.step(i, e)
	}
}

func (r *planner) step(i int, n *yaml.Node) {
	d := r.d
	o := d.object(n, n, fmt.Sprintf("step %d", i+1))
	if o == nil {
		return
	}
	s := &stepPlan{line: n.Line}
	nameNode := o.need("name")
	if nameNode != nil {
		if s.name = d.name(nameNode, "the name of a step"); s.name != "" {
			o.what = fmt.Sprintf("step %q", s.name)
		}
	} else {
		nameNode = n
	}
	fromKey, from := o.pair("from")
	if on := o.get("on_error"); on != nil {
		s.policy = d.policy(on)
		r.deadLetter(on, s.policy == topology.PolicyDeadLetter)
	}
	var value *yaml.Node
	var extra int
	for _, op := range operatorNames() {
		if key, v := o.pair(op); v != nil {
			if s.kind == "" {
				s.kind, s.node, value = op, key, v
			}
			extra++
		}
	}
	o.finish()
	switch {
	case extra > 1:
		d.errorf(n, RuleOneOperator, "%s has %d operators, a step has exactly one of %s", o.what, extra, quotedList(operatorNames()))
	case extra == 0:
		d.errorf(n, RuleOneOperator, "%s has no operator, a step has exactly one of %s", o.what, quotedList(operatorNames()))
		r.unknownOutput(s, nameNode)
		return
	}
	if s.kind == opMerge {
		if from != nil {
			d.errorf(fromKey, RuleFrom, "merge names its inputs itself, from has no meaning beside it")
		}
		r.merge(s, value, nameNode)
	} else {
		in := r.input(i, from, o)
		if in == nil {
			// Where it reads from was reported; what else is wrong with it is, too.
			in = unknown("", nameNode)
		}
		s.in = []*output{in}
		r.operator(s, value, nameNode)
	}
	r.plan.steps = append(r.plan.steps, s)
}

// unknownOutput gives the steps behind a broken one something to read from, so that only the cause is reported.
func (r *planner) unknownOutput(s *stepPlan, n *yaml.Node) {
	if s.name != "" {
		r.addStream(unknown(s.name, n))
	}
}

// unknown is a stream of which nothing is known, since a mistake was reported.
func unknown(name string, n *yaml.Node) *output {
	return &output{name: name, key: types.DynType, value: types.DynType, format: formatJSON, positions: true, keyed: true, unknown: true, node: n, used: true}
}

// input finds the stream that a step reads: the one that "from" names, or the one before it in the file.
func (r *planner) input(i int, from *yaml.Node, o *object) *output {
	if from != nil {
		return r.named(from, "from")
	}
	if i == 0 || len(r.order) == len(r.plan.sources) {
		if len(r.plan.sources) == 1 {
			in := r.plan.sources[0].out
			in.used = true
			return in
		}
		if len(r.plan.sources) > 1 {
			r.d.errorf(o.node, RuleFrom, "%s needs a from: there are %d sources", o.what, len(r.plan.sources))
		}
		if len(r.plan.sources) == 0 && len(r.plan.tables) > 0 {
			r.d.errorf(o.node, RuleFrom, "%s needs a from: there are no sources", o.what).hint("for example from: %s", r.plan.tables[0].out().name)
		}
		return nil
	}
	last := r.order[len(r.order)-1]
	var before *stepPlan
	if n := len(r.plan.steps); n > 0 {
		before = r.plan.steps[n-1]
	}
	switch {
	case before != nil && before.kind == opTo:
		r.d.errorf(o.node, RuleFrom, "%s needs a from: the step before it, %q, has no output", o.what, before.name)
		return nil
	case before != nil && before.kind == opBranch:
		r.d.errorf(o.node, RuleFrom, "%s needs a from: the step before it, %q, has several outputs", o.what, before.name).
			hint("for example from: %s", last.name)
		return nil
	}
	last.used = true
	return last
}

// named finds a stream by its name.
func (r *planner) named(n *yaml.Node, what string) *output {
	s, ok := r.d.scalar(n, what)
	if !ok || s.unset {
		return nil
	}
	out := r.streams[s.text]
	if out == nil {
		out = r.alias(s.text)
	}
	if out == nil || out.table != nil {
		if t, ok := r.readTable(n, what, s.text); ok {
			return t
		}
	}
	if out != nil {
		out.used = true
		return out
	}
	names := make([]string, 0, len(r.order))
	for _, out := range r.order {
		names = append(names, out.name)
	}
	for _, t := range r.plan.tables {
		if t.src != nil {
			names = append(names, t.src.out.name)
		}
	}
	for _, b := range r.plan.steps {
		if b.name != s.text {
			continue
		}
		switch b.kind {
		case opBranch:
			note := r.d.errorf(n, RuleUnknownName, "%s: step %s has several outputs", what, r.d.shown(s))
			for _, out := range b.outs {
				note.hint("for example %s", out.name)
				break
			}
			return nil
		case opTo:
			r.d.errorf(n, RuleUnknownName, "%s: step %s has no output: it writes to a topic", what, r.d.shown(s))
			return nil
		}
	}
	note := r.d.errorf(n, RuleUnknownName, "%s: no source or earlier step is called %s%s", what, r.d.shown(s), suggest(s.text, names))
	if base, ok := strings.CutSuffix(s.text, "."+conflictName); ok && r.streams[base+"."+duplicateName] != nil {
		note.hint("there are conflicts with compare: payload only")
	}
	return nil
}

// operator reads the operator of a step with one input.
func (r *planner) operator(s *stepPlan, n, nameNode *yaml.Node) {
	in := s.in[0]
	if in.table != nil {
		r.tableStep(s, n, nameNode)
		return
	}
	s.scope = r.c.scope(in)
	out := *in
	out.name, out.node, out.used, out.optional, out.instead = s.name, nameNode, in.unknown, false, nil
	switch s.kind {
	case opDedup:
		s.dedup = r.dedup(s, n)
		if s.dedup.stream {
			out.positions, out.keyed, out.window = false, false, false
			out.key = keyType(in.key)
		}
		r.dedupOutputs(s, out)
	case opFilter:
		if s.filter = r.c.expression(n, "filter", s.scope); s.filter != nil {
			r.wantType(n, "filter", s.filter.typ, types.BoolType)
			r.notePositions(s.filter)
		}
	case opMap:
		if s.value = r.template(n, "map", s.name+".value", s.scope, 0); s.value != nil {
			out.value, out.format = s.value.typ, computedFormat(in.format, s.value.typ)
			out.told = in.told || s.value.uses(varWindow)
		} else {
			out.value = types.DynType
		}
	case opFlatMap:
		r.flatMap(s, n, &out)
	case opKeyBy:
		if s.key = r.keyOf(n, "key_by", s.scope); s.key != nil {
			out.key = s.key.typ
		}
		out.positions, out.keyed, out.window = false, true, false
	case opAggregate:
		r.aggregate(s, n, &out)
		if s.window != nil {
			r.addLate(s, nameNode)
		}
	case opJoin:
		r.join(s, n, &out)
	case opTimer:
		r.timer(s, n, &out)
	case opBranch:
		r.branch(s, n, &out)
		return
	case opTo:
		r.to(s, n)
		r.operatorTo(s, &out, nameNode)
		return
	}
	s.outs = append([]*output{&out}, s.outs...)
	if s.name != "" {
		r.addStream(&out)
	}
}

// operatorTo reports a step of kind to whose name something has already; out is not read by anybody.
func (r *planner) operatorTo(s *stepPlan, out *output, nameNode *yaml.Node) {
	if s.name != "" && r.streams[s.name] != nil {
		r.addStream(out) // reports the double name
	}
	for _, other := range r.plan.steps {
		if other.name == s.name && other.kind == opTo && s.name != "" {
			r.d.errorf(nameNode, RuleDuplicateName, "%q is the name of something at line %d already", s.name, other.line)
		}
	}
}

// computedFormat is the format of a computed value: the source's own for a text of a text source, else JSON.
func computedFormat(in string, t *types.Type) string {
	if in == formatString && t.Kind() == types.StringKind || in == formatBytes && t.Kind() == types.BytesKind {
		return in
	}
	return formatJSON
}

func (r *planner) dedup(s *stepPlan, n *yaml.Node) *dedupPlan {
	d, p := r.d, &dedupPlan{}
	o := d.object(s.node, n, "dedup")
	if o == nil {
		return p
	}
	if n := o.need("id"); n != nil {
		p.id = r.id(n, s.scope)
	}
	if n := o.need("retention"); n != nil {
		if p.retention = d.duration(n, "retention"); p.retention > 0 && p.retention < time.Second {
			d.errorf(n, RuleInvalidValue, "retention %v is too short, at least 1s", p.retention)
		}
	}
	if n := o.get("expected_ids"); n != nil {
		p.expected = d.count(n, "expected_ids")
	}
	if n := o.get("false_positive_rate"); n != nil {
		p.rate = d.ratio(n, "false_positive_rate", 1e-9, 0.5)
	}
	scope := o.get("scope")
	if scope != nil {
		p.stream = d.choice(scope, "scope", "partition", "stream") == "stream"
	}
	if n := o.get("compare"); n != nil {
		p.payload = d.choice(n, "compare", "id", "payload") == "payload"
	}
	r.dedupActions(o, p)
	o.finish()
	if scope == nil && !d.tooMuch {
		r.lintScope(s)
	}
	if p.id != nil {
		r.lintID(s, p)
	}
	return p
}

func (r *planner) dedupActions(o *object, p *dedupPlan) {
	d := r.d
	p.given = map[string]*yaml.Node{}
	read := func(name string, allowed ...topology.Action) topology.Action {
		key, n := o.pair(name)
		if n == nil {
			return topology.ActionDefault
		}
		p.given[name] = key
		a := d.action(n, name, allowed...)
		r.deadLetter(n, a == topology.DeadLetter)
		return a
	}
	p.onConflict = read("on_conflict", topology.Stop, topology.DeadLetter, topology.Drop)
	if key, _ := o.pair("on_conflict"); key != nil && !p.payload {
		d.errorf(key, RuleInvalidValue, "on_conflict has a meaning with compare: payload only")
	}
	p.onMissing = read("on_missing_id", topology.Stop, topology.DeadLetter, topology.Forward)
	p.onTooLate = read("on_too_late", topology.DeadLetter, topology.Forward, topology.Drop, topology.Stop)
	p.onDuplicate = read("on_duplicate", topology.Drop, topology.Forward)
	if p.onTooLate == topology.ActionDefault {
		// A record that nobody can judge must not be lost or counted twice in silence.
		p.onTooLate = topology.Stop
		if r.hasDeadLetter {
			p.onTooLate = topology.DeadLetter
		}
	}
}

func (r *planner) flatMap(s *stepPlan, n *yaml.Node, out *output) {
	out.value, out.format = types.DynType, formatJSON
	if s.items = r.c.expression(n, "flat_map", s.scope); s.items == nil {
		return
	}
	r.notePositions(s.items)
	if !r.wantType(n, "flat_map", s.items.typ, types.NewListType(types.DynType)) {
		return
	}
	if s.items.typ.Kind() == types.ListKind {
		out.value = plainType(s.items.typ.Parameters()[0])
		out.format = computedFormat(s.in[0].format, out.value)
	}
}

func (r *planner) aggregate(s *stepPlan, n *yaml.Node, out *output) {
	d := r.d
	out.value, out.format, out.positions, out.keyed = types.DynType, formatJSON, false, true
	o := d.object(s.node, n, "aggregate")
	if o == nil {
		return
	}
	if n := o.need("by"); n != nil {
		if s.key = r.keyOf(n, "by", s.scope); s.key != nil {
			out.key = s.key.typ
		}
	}
	s.window = r.window(o)
	out.window, out.told = s.window != nil, false
	plan := &aggregatePlan{dec: r.c.dec}
	var fields []structField
	if key, n := o.pair("fields"); n != nil {
		f := d.object(key, n, "fields")
		if f != nil {
			if len(f.members) == 0 {
				d.errorf(key, RuleInvalidValue, "fields is empty")
			}
			for i := range f.members {
				m := &f.members[i]
				m.used = true
				fields = append(fields, r.aggregateField(s, plan, m.key, m.value))
			}
		}
	} else {
		d.errorf(s.node, RuleMissingField, "missing field %q in %s", "fields", o.what)
	}
	o.finish()
	plan.out = newStructType(s.name+".value", fields)
	r.plan.structs[plan.out.name] = plan.out
	out.value = plan.out.celType
	s.agg = plan
}

// aggregateField reads one field: a mapping with the function as its only key.
func (r *planner) aggregateField(s *stepPlan, plan *aggregatePlan, key, n *yaml.Node) structField {
	d := r.d
	unknown := structField{key.Value, types.DynType}
	o := d.object(key, n, fmt.Sprintf("field %q", key.Value))
	if o == nil {
		return unknown
	}
	f := aggregateField{name: key.Value}
	var arg, fn *yaml.Node
	count := 0
	for _, name := range aggregateFunctions() {
		if k, v := o.pair(name); v != nil {
			f.function, arg, fn = name, v, k
			count++
		}
	}
	byKey, by := o.pair("by")
	o.finish()
	if count != 1 {
		if count > 1 || len(o.members) == 0 {
			d.errorf(key, RuleInvalidValue, "field %q needs exactly one function of %s", key.Value, quotedList(aggregateFunctions()))
		}
		return unknown
	}
	if f.arg = r.c.expression(arg, f.function, s.scope); f.arg == nil {
		return unknown
	}
	r.notePositions(f.arg)
	f.typ = plainType(f.arg.typ)
	if by != nil && !r.aggregateBy(s, &f, byKey, by) {
		return unknown
	}
	t := resultType(f.function, f.typ)
	if t == nil {
		note := d.errorf(arg, RuleExpression, "%s cannot be used on %s", f.function, typeText(f.typ))
		if f.function == fnCount {
			note.hint("count: true counts every record; count: CONDITION those for which it holds")
		}
		return unknown
	}
	if f.typ.Kind() == types.DoubleKind && (f.function == fnSum || f.function == fnAvg) {
		d.warnf(fn, RuleFloatMoney, "%s over a float: the result depends on the order of the records and is not exact", f.function).
			hint("declare the field as decimal")
	}
	plan.fields = append(plan.fields, f)
	return structField{key.Value, t}
}

// aggregateBy reads what first and last go by instead of the order of arrival.
func (r *planner) aggregateBy(s *stepPlan, f *aggregateField, key, n *yaml.Node) bool {
	if f.function != fnFirst && f.function != fnLast {
		r.d.errorf(key, RuleInvalidValue, "by has a meaning with first and last only")
		return false
	}
	if f.by = r.c.expression(n, "by", s.scope); f.by == nil {
		return false
	}
	r.notePositions(f.by)
	if f.byType = plainType(f.by.typ); resultType(fnMax, f.byType) == nil {
		r.d.errorf(n, RuleExpression, "by needs values with an order, this is %s", typeText(f.byType))
		return false
	}
	return true
}

func (r *planner) branch(s *stepPlan, n *yaml.Node, like *output) {
	o := r.d.object(s.node, n, "branch")
	if o == nil {
		return
	}
	var rest *output
	for i := range o.members {
		m := &o.members[i]
		m.used = true
		if !r.d.checkName(m.key, m.key.Value, "the name of a case") {
			continue
		}
		out := *like
		out.name, out.node = s.name+"."+m.key.Value, m.key
		if s.name != "" {
			r.addStream(&out)
		}
		if v := r.d.visit(m.value); v != nil && v.Kind == yaml.ScalarNode && v.Value == otherwise {
			if rest != nil {
				r.d.errorf(m.value, RuleInvalidValue, "%s stands twice in this branch", otherwise)
			}
			rest = &out
			continue
		}
		e := r.c.expression(m.value, "case "+m.key.Value, s.scope)
		if e != nil {
			r.wantType(m.value, "a case", e.typ, types.BoolType)
			r.notePositions(e)
		}
		s.cases = append(s.cases, e)
		s.outs = append(s.outs, &out)
	}
	if len(s.cases) == 0 {
		r.d.errorf(s.node, RuleInvalidValue, "branch needs at least one case beside %s", otherwise)
	}
	if rest != nil {
		s.rest = true
		s.outs = append(s.outs, rest)
	}
}

func (r *planner) merge(s *stepPlan, n, nameNode *yaml.Node) {
	for _, e := range r.d.list(n, "merge", false) {
		in := r.named(e, "merge")
		if in == nil {
			continue
		}
		for _, other := range s.in {
			if other == in {
				r.d.errorf(e, RuleInvalidValue, "%q stands twice: every record would count again", in.name)
			}
		}
		s.in = append(s.in, in)
	}
	if len(s.in) == 0 {
		if v := r.d.visit(n); v != nil && v.Kind == yaml.SequenceNode && len(v.Content) == 0 {
			r.d.errorf(n, RuleInvalidValue, "merge is empty")
		}
		r.unknownOutput(s, nameNode)
		return
	}
	out := *s.in[0]
	out.name, out.node, out.used, out.optional, out.instead = s.name, nameNode, false, false, nil
	for _, in := range s.in[1:] {
		out.positions = out.positions && in.positions
		out.window = out.window && in.window
		out.told = out.told && in.told
		out.keyed = out.keyed && in.keyed
		if in.value.TypeName() != out.value.TypeName() || in.value.Kind() == types.ListKind {
			out.value = types.DynType
		}
		if in.format != out.format {
			out.format = formatJSON
		}
		if keyType(in.key).TypeName() != keyType(out.key).TypeName() {
			r.d.errorf(n, RuleWrongType, "the keys of %q are %s, those of %q are %s: a stream has keys of one type",
				s.in[0].name, typeText(keyType(out.key)), in.name, typeText(keyType(in.key)))
		}
	}
	s.outs = []*output{&out}
	if s.name != "" {
		r.addStream(&out)
	}
}

func (r *planner) to(s *stepPlan, n *yaml.Node) {
	d := r.d
	o := d.object(s.node, n, "to")
	if o == nil {
		return
	}
	for _, k := range targetKinds() {
		key, v := o.pair(k.name)
		switch {
		case key == nil:
		case s.into != nil:
			d.errorf(key, RuleInvalidValue, "a second target: a step of kind to has one")
		default:
			if s.into = r.into(s, k, key, v); s.into == nil {
				s.into = &intoPlan{kind: k} // it is there, whatever is wrong with it
			}
		}
	}
	if t := o.get("topic"); t != nil {
		s.topic = d.topic(t, "topic")
	} else if s.into == nil {
		d.errorf(s.node, RuleMissingField, "missing field %q in %s", "topic", o.what).hint("or a target outside of Kafka: %s", quotedList(targetNames()))
	}
	if s.into != nil {
		for _, name := range []string{"topic", "key", "value", "guarantee", "format", "schema", "subject", "message", "register"} {
			if key, _ := o.pair(name); key != nil {
				note := d.errorf(key, RuleInvalidValue, "%s has no meaning beside %s", name, s.into.kind.name)
				if name == "guarantee" {
					note.hint("what a table promises is its class: see docs/concepts/sinks.md")
				}
			}
		}
	}
	if g := o.get("guarantee"); g != nil {
		s.guarantee = d.level(g, topology.ExactlyOnce, topology.AtLeastOnce)
	}
	if k := o.get("key"); k != nil {
		s.key = r.keyOf(k, "key", s.scope)
	}
	if v := o.get("value"); v != nil {
		s.value = r.template(v, "value", s.name+".value", s.scope, 0)
	}
	if s.into == nil {
		r.sinkFormat(o, s)
	}
	o.finish()
}
