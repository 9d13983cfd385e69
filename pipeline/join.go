package pipeline

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// The kinds of joins.
const (
	joinInner = "inner"
	joinLeft  = "left"
	joinOuter = "outer"
)

// What the other side of a join is called in its value.
const (
	varTable = "table" // the row
	varOther = "other" // the record of the other stream
)

// joinPlan is a join step: with a table, or with another stream, or of two tables. The step's key is what both sides go by, its value what
// is made of a pair.
type joinPlan struct {
	kind   string
	table  *tablePlan
	tables bool // this side is a table too

	other    *output // nil: the table
	otherKey *keyPlan
	within   topology.JoinWindows
	reach    time.Duration // how long a record may wait for a match
	onLate   topology.Action

	mine, theirs *types.Type // of the values of both sides
}

// joinPair is the other side of a pair, for the expressions of a join's value.
type joinPair struct {
	other  ref.Val
	absent string // the variable of the side that has no match; empty: both are there
}

// errNoMatch is what reading a field of a side that has no match comes to: null, in the value of a join.
var errNoMatch = fmt.Errorf("%w: the join has found no match", errMissing)

func (r *planner) join(s *stepPlan, n *yaml.Node, out *output) {
	d, in := r.d, s.in[0]
	out.value, out.format, out.positions, out.window, out.keyed = types.DynType, formatJSON, false, false, true
	o := d.object(s.node, n, opJoin)
	if o == nil {
		return
	}
	j := &joinPlan{kind: joinInner, mine: in.value, theirs: types.DynType}
	s.join = j
	tableKey, table := o.pair("table")
	streamKey, stream := o.pair("stream")
	on := o.get("on")
	kindNode := o.get("kind")
	switch {
	case (table == nil) == (stream == nil):
		d.errorf(s.node, RuleMissingField, "a join has exactly one of %s, this one has %s", quotedList([]string{"table", "stream"}), map[bool]string{true: "both", false: "none"}[table != nil]).
			hint("table: looks a row up; stream: pairs two records that are near in time")
	case table != nil:
		r.joinTable(o, j, tableKey, table, kindNode)
		if j.table != nil && j.table.from == s.in[0] {
			d.errorf(table, RuleInvalidValue, "%q is joined with itself: each record would be its own row", s.in[0].name)
		}
	default:
		r.joinStream(s, o, j, streamKey, stream, kindNode)
	}
	s.key = r.joinKey(s, on, "on", s.scope)
	value := o.need("value")
	o.finish()
	if s.key == nil {
		return
	}
	switch {
	case j.global():
		out.keyed = in.keyed // the record stays where it is
	case !s.direct() || j.other != nil:
		out.key = s.key.typ
	}
	r.sameKeys(j, s, on)
	if value != nil {
		r.joinValue(s, value, out)
	}
}

// joinTable reads the fields of a join with a table.
func (r *planner) joinTable(o *object, j *joinPlan, key, n, kind *yaml.Node) {
	if kind != nil {
		if word := r.d.choice(kind, "kind", joinInner, joinLeft, joinOuter); word == joinOuter {
			r.d.errorf(kind, RuleInvalidValue, "a join of a stream with a table is inner or left: a change of the table makes no record").
				hint("a join of two tables can be outer: a step reads a table with from: TABLE")
		} else if word != "" {
			j.kind = word
		}
	}
	for _, name := range streamOnly()[1:] {
		if k, _ := o.pair(name); k != nil {
			r.d.errorf(k, RuleInvalidValue, "%s has a meaning with stream only", name)
		}
	}
	if j.table = r.tableOf(n); j.table == nil {
		return
	}
	j.theirs = j.table.out().value
	if j.kind == joinLeft && j.theirs.Kind() == types.DynKind {
		r.d.errorf(key, RuleInvalidValue, "kind: left needs the type of table %q: where it has no row, the fields that the type names are null", j.table.out().name).
			hint("types: {Row: {name: string}}, and type: Row at the table")
	}
}

// joinStream reads the fields of a join with another stream.
func (r *planner) joinStream(s *stepPlan, o *object, j *joinPlan, key, n, kind *yaml.Node) {
	d := r.d
	if kind != nil {
		if word := d.choice(kind, "kind", joinInner, joinLeft, joinOuter); word != "" {
			j.kind = word
		}
	}
	otherOn := o.get("other_on")
	r.joinWithin(s, o, j)
	if late := o.get("on_late"); late != nil {
		j.onLate = d.action(late, "on_late", topology.Drop, topology.Stop, topology.DeadLetter)
		r.deadLetter(late, j.onLate == topology.DeadLetter)
	}
	if j.other = r.named(n, "stream"); j.other == nil {
		j.other = &output{key: types.DynType, value: types.DynType, format: formatJSON, keyed: true} // only the cause is reported
		return
	}
	if j.other == s.in[0] {
		d.errorf(n, RuleInvalidValue, "%q is joined with itself: each record would be its own match", j.other.name)
	}
	j.theirs = j.other.value
	j.otherKey = r.joinKey(s, otherOn, "other_on", r.c.scope(j.other))
	for _, side := range []struct {
		out   *output
		alone bool // the other side may stand alone, so that this one may be missing
	}{{j.other, j.kind != joinInner}, {s.in[0], j.kind == joinOuter}} {
		if side.alone && side.out.value.Kind() == types.DynKind && side.out.name != "" {
			d.errorf(key, RuleInvalidValue, "kind: %s needs the type of %q: without a match, the fields that the type names are null", j.kind, side.out.name).
				hint("declare a type for its source, or give it one with map")
		}
	}
}

// joinWithin reads how near two records must be: within, or before and after, or within and the one that is different.
func (r *planner) joinWithin(s *stepPlan, o *object, j *joinPlan) {
	d := r.d
	withinKey, within := o.pair("within")
	beforeNode, afterNode, grace := o.get("before"), o.get("after"), o.get("grace")
	switch both := beforeNode != nil && afterNode != nil; {
	case within == nil && !both:
		d.errorf(s.node, RuleMissingField, "missing field %q in %s: how far apart in time the records of a pair may be", "within", o.what).
			hint("for example within: 10m; and before: 0s, if the other record never comes earlier")
		return
	case within != nil && both:
		d.errorf(withinKey, RuleInvalidValue, "within has no meaning where both before and after are given")
	}
	var before, after time.Duration
	if within != nil {
		before = d.duration(within, "within")
		after = before
	}
	if beforeNode != nil {
		before = d.duration(beforeNode, "before")
	}
	if afterNode != nil {
		after = d.duration(afterNode, "after")
	}
	j.reach, j.within = max(before, after), topology.JoinWithin(before).After(after)
	if grace != nil {
		j.within = j.within.Grace(d.duration(grace, "grace"))
	}
}

// joinKey reads what one side goes by; without the field it is the record's key.
func (r *planner) joinKey(s *stepPlan, n *yaml.Node, what string, sc *scope) *keyPlan {
	if n == nil {
		n = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: varKey, Line: s.node.Line, Column: s.node.Column}
	}
	return r.keyOf(n, what, sc)
}

// sameKeys reports keys that are never equal: one of several parts, and one of one.
func (r *planner) sameKeys(j *joinPlan, s *stepPlan, on *yaml.Node) {
	theirs := j.otherKey
	if j.table != nil {
		theirs = j.table.key
	}
	if on == nil || theirs == nil || s.key.list == theirs.list && len(s.key.parts) == len(theirs.parts) {
		return
	}
	r.d.errorf(on, RuleInvalidValue, "the keys of both sides are never equal: one has %s, the other %s", s.key.shape(), theirs.shape())
}

func (k *keyPlan) shape() string {
	if !k.list {
		return "one value"
	}
	return fmt.Sprintf("a list of %d", len(k.parts))
}

// joinValue reads what is made of a pair.
func (r *planner) joinValue(s *stepPlan, n *yaml.Node, out *output) {
	j, in := s.join, s.in[0]
	stays := j.global() || j.other == nil && s.direct() // the record is still the one that the source read
	mine, theirs := in.value, j.theirs
	if j.kind == joinOuter {
		mine = nullable(mine)
	}
	if j.kind != joinInner {
		theirs = nullable(theirs)
	}
	key := s.key.typ
	if stays {
		key = in.key
	}
	sc := r.c.scope(&output{key: key, value: mine, positions: stays && in.positions, window: stays && in.window})
	env, err := sc.env.Extend(cel.Variable(j.variable(), theirs))
	if err != nil {
		r.d.errorf(n, RuleExpression, "%v", err)
		return
	}
	sc.env = env
	if s.value = r.template(n, "value", s.name+".value", sc, 0); s.value == nil {
		return
	}
	s.value.each(func(e *expr) {
		switch {
		case j.tables:
			r.rowsOnly(e, "the value of a join")
		case j.other == nil:
			r.notOfARecord(e, "the value of a join", "a map step behind the join has that of the record")
		default:
			r.notOfARecord(e, "the value of a join", "put it into the value with a map step before")
		}
	})
	out.value, out.format = s.value.typ, computedFormat(in.format, s.value.typ)
	out.positions, out.window = stays && in.positions, stays && in.window
	out.told = stays && in.told || s.value.uses(varWindow)
}

// notOfARecord reports what an expression asks of a record, where there is none of which it could be.
func (r *planner) notOfARecord(e *expr, where, hint string) {
	for _, name := range []string{varHeaders, varTimestamp, varTopic, varPartition, varOffset, varPosition, varCloudEvent, varDebezium} {
		if e.uses[name] {
			shown := strings.NewReplacer(varCloudEvent, "cloudevent_id()", varDebezium, "debezium_id()", varPosition, "record_position()").Replace(name)
			r.d.errorf(e.node, RuleExpression, "%s is not known in %s", shown, where).hint("%s", hint)
		}
	}
}

// variable is what the other side is called.
func (j *joinPlan) variable() string {
	if j.other != nil {
		return varOther
	}
	return varTable
}

// each calls fn for all expressions of the template.
func (t *template) each(fn func(*expr)) {
	if t.expr != nil {
		fn(t.expr)
	}
	for _, part := range t.parts {
		part.each(fn)
	}
}

// side is what a side of a pair is for expressions: its value or, without a match, one that has nothing.
func (j *joinPlan) side(d *decoder, t *types.Type, v *recValue) ref.Val {
	if v != nil {
		return v.value()
	}
	if typ := d.structs[t.TypeName()]; typ != nil {
		return &jsonObject{typ: typ, dec: d, open: true, absent: true, fields: make([]jsonField, len(typ.fields))}
	}
	return types.NullValue
}

// pair makes the value of a pair; one of both may be nil.
func (s *stepPlan) pair(p *plan, k recKey, mine, theirs *recValue) (recValue, error) {
	pair := &joinPair{other: s.join.side(p.dec, s.join.theirs, theirs)}
	r := event{Key: k, Value: recValue{val: s.join.side(p.dec, s.join.mine, mine), pair: pair}}
	switch {
	case mine == nil:
		pair.absent = varValue
	case theirs == nil:
		pair.absent = s.join.variable()
	}
	if mine != nil {
		r.Value.raw, r.Value.src = mine.raw, mine.src
	}
	v, err := s.value.make(p.dec, &r)
	return v, s.fail(p, err)
}

// together brings records into the partition of the key, unless they are there.
func (p *plan) together(in *stream, from *output, key *keyPlan, name string, s *stepPlan) *stream {
	if key.direct(from) {
		return in
	}
	return topology.KeyBy(in, name, keySerde{key.typ}, func(r event) (recKey, error) {
		k, err := key.make(p.dec, &r)
		return k, s.fail(p, err)
	}, topology.OnError(s.policy))
}

// direct says whether the records of a stream have the key already, and are in its partition.
func (k *keyPlan) direct(in *output) bool {
	return !k.list && k.parts[0].text == varKey && in.keyed
}

func (p *plan) buildJoin(s *stepPlan, in *stream, streams map[*output]*stream, tables map[*tablePlan]*topology.KTable[recKey, recValue]) *stream {
	j, onError := s.join, topology.OnError(s.policy)
	left := p.together(in, s.in[0], s.key, s.name+bySuffix, s)
	var out *stream
	if j.other == nil {
		table := p.tableOf(j.table, streams, tables)
		if j.kind == joinLeft {
			out = topology.LeftJoinTable(left, table, s.name, func(k recKey, v recValue, row *recValue) (recValue, error) { return s.pair(p, k, &v, row) }, onError)
		} else {
			out = topology.JoinTable(left, table, s.name, func(k recKey, v, row recValue) (recValue, error) { return s.pair(p, k, &v, &row) }, onError)
		}
		return out.WithValues(p.values(s.outs[0], nil))
	}
	right := p.together(streams[j.other], j.other, j.otherKey, s.name+otherBySuffix, s)
	opts := []topology.JoinOption{onError, topology.OnLate(j.onLate)}
	switch j.kind {
	case joinLeft:
		out = topology.LeftJoin(left, right, s.name, j.within, func(k recKey, v recValue, other *recValue) (recValue, error) { return s.pair(p, k, &v, other) }, opts...)
	case joinOuter:
		out = topology.OuterJoin(left, right, s.name, j.within, func(k recKey, v, other *recValue) (recValue, error) { return s.pair(p, k, v, other) }, opts...)
	default:
		out = topology.Join(left, right, s.name, j.within, func(k recKey, v, other recValue) (recValue, error) { return s.pair(p, k, &v, &other) }, opts...)
	}
	return out.WithValues(p.values(s.outs[0], nil))
}

// global says whether the join looks into a global table.
func (j *joinPlan) global() bool { return j.table != nil && j.table.global }

func (p *plan) buildGlobalJoin(s *stepPlan, in *stream, table *topology.GlobalKTable[recKey, recValue]) *stream {
	by := func(k recKey, v recValue) (recKey, error) {
		key, err := s.key.make(p.dec, &event{Key: k, Value: v})
		return key, s.fail(p, err)
	}
	var out *stream
	if onError := topology.OnError(s.policy); s.join.kind == joinLeft {
		out = topology.LeftJoinGlobal(in, table, s.name, by, func(k recKey, v recValue, row *recValue) (recValue, error) { return s.pair(p, k, &v, row) }, onError)
	} else {
		out = topology.JoinGlobal(in, table, s.name, by, func(k recKey, v, row recValue) (recValue, error) { return s.pair(p, k, &v, &row) }, onError)
	}
	return out.WithValues(p.values(s.outs[0], nil))
}

// settle is how long after its last record all results of the join are there.
func (j *joinPlan) settle() time.Duration {
	if j.other == nil {
		return 0
	}
	return j.reach + j.within.GracePeriod() + time.Millisecond
}

// noMatch says whether an expression failed since a side of the pair is not there: it read a field of it, or computed with
// it where it is no object.
func (p *joinPair) noMatch(e *expr, err error) bool {
	return errors.Is(err, errNoMatch) || p != nil && e.uses[p.absent] && errors.Is(err, errOverload)
}
