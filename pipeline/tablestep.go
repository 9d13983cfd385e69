package pipeline

import (
	"slices"
	"strings"

	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// streamOnly are the fields of a join that have a meaning where a stream is joined; the first one also where it is joined with a table.
func streamOnly() []string {
	return []string{"on", "other_on", "within", "before", "after", "grace", "on_late"}
}

// tableStep reads a step whose input is a table: a filter, a map or a join makes another table of it, to writes its changes.
func (r *planner) tableStep(s *stepPlan, n, nameNode *yaml.Node) {
	in := s.in[0]
	s.scope = r.c.scope(in)
	t := &tablePlan{parents: []*tablePlan{in.table}, key: in.table.key, used: true}
	out := *in
	out.name, out.node, out.used, out.table = s.name, nameNode, false, t
	switch s.kind {
	case opFilter:
		if s.filter = r.c.expression(n, "filter", s.scope); s.filter != nil {
			r.wantType(n, "filter", s.filter.typ, types.BoolType)
			r.rowsOnly(s.filter, "a filter")
		}
	case opMap:
		out.value = types.DynType
		if s.value = r.template(n, "map", s.name+".value", s.scope, 0); s.value != nil {
			out.value, out.format = s.value.typ, computedFormat(in.format, s.value.typ)
			s.value.each(func(e *expr) { r.rowsOnly(e, "a map") })
		}
	case opJoin:
		r.joinTables(s, n, &out, t)
	case opTo:
		r.tableTo(s, n)
		r.operatorTo(s, &out, nameNode)
		return
	default:
		r.d.errorf(s.node, RuleInvalidValue, "%s reads the records of a stream, and %q is a table", s.kind, in.name).
			hint("of a table, filter, map and join: {table: ...} make another one, and to writes its changes").
			hint("for all else write them to a topic, and read that as a source")
		out.value, out.table, out.unknown, out.used = types.DynType, nil, true, true
	}
	t.made = &out
	if out.table != nil {
		r.plan.tables = append(r.plan.tables, t)
	}
	s.outs = []*output{&out}
	if s.name != "" {
		r.addStream(&out)
	}
}

// rowsOnly reports what an expression asks of a record that a row does not have. What is made of a table is not kept but computed when it is
// looked up: of key and value, at any time.
func (r *planner) rowsOnly(e *expr, where string) {
	r.notOfARecord(e, where+" of a table", "a row has a key and a value: put it into the value where the table's topic is written")
}

// joinTables reads a join of two tables.
func (r *planner) joinTables(s *stepPlan, n *yaml.Node, out *output, t *tablePlan) {
	d, in := r.d, s.in[0]
	out.value, out.format = types.DynType, formatJSON
	o := d.object(s.node, n, opJoin)
	if o == nil {
		return
	}
	j := &joinPlan{kind: joinInner, mine: in.value, theirs: types.DynType, tables: true}
	s.join = j
	tableKey, table := o.pair("table")
	if key, _ := o.pair("stream"); key != nil {
		d.errorf(key, RuleInvalidValue, "%q is a table: a table is joined with a table", in.name).
			hint("to look a row of it up for each record, read the stream: from: STREAM, join: {table: %s}", in.name)
	} else if table == nil {
		d.errorf(s.node, RuleMissingField, "missing field %q in %s", "table", o.what)
	}
	for _, name := range streamOnly() {
		if key, _ := o.pair(name); key != nil {
			note := d.errorf(key, RuleInvalidValue, "%s has no meaning for two tables: they are joined by the keys of their rows", name)
			if name == "on" {
				note.hint("a table of a topic may have rows by another key: tables: {%s: {key: ...}}", in.name)
			}
		}
	}
	if kind := o.get("kind"); kind != nil {
		if word := d.choice(kind, "kind", joinInner, joinLeft, joinOuter); word != "" {
			j.kind = word
		}
	}
	if table != nil {
		j.table = r.tableOf(table)
	}
	value := o.need("value")
	o.finish()
	if s.key = in.table.key; s.key == nil || !s.key.list {
		s.key = r.joinKey(s, nil, "on", s.scope)
	}
	if j.table == nil || s.key == nil {
		return
	}
	r.sameTables(s, t, tableKey, table)
	if value != nil {
		r.joinValue(s, value, out)
	}
}

// sameTables looks at what the other side of a join of two tables is.
func (r *planner) sameTables(s *stepPlan, t *tablePlan, tableKey, table *yaml.Node) {
	d, j, in := r.d, s.join, s.in[0]
	other := j.table.out()
	j.theirs = other.value
	t.parents = append(t.parents, j.table)
	switch common := in.table.common(j.table); {
	case j.table == in.table:
		d.errorf(table, RuleInvalidValue, "%q is joined with itself: each row would be its own match", in.name)
	case j.table.global:
		d.errorf(table, RuleInvalidValue, "%q is a global table: a change of it makes no record", other.name).
			hint("without global: true it is a table as the other one is; or look it up for the records of a stream")
	case common != nil:
		d.errorf(table, RuleInvalidValue, "%q and %q are both made of table %q: what one row has needs no join", in.name, other.name, common.out().name).
			hint("use map")
	case keyType(in.key).TypeName() != keyType(other.key).TypeName():
		d.errorf(table, RuleInvalidValue, "the keys of %q are %s, those of %q are %s: they are never equal", in.name, typeText(keyType(in.key)), other.name, typeText(keyType(other.key)))
	case !in.table.key.matches(j.table.key):
		d.errorf(table, RuleInvalidValue, "the keys of %q are %s, those of %q are %s: they are never equal", in.name, in.table.key.partsText(), other.name, j.table.key.partsText())
	}
	for _, side := range []struct {
		out   *output
		alone bool // the other side may stand alone, so that this one may be missing
	}{{other, j.kind != joinInner}, {in, j.kind == joinOuter}} {
		if side.alone && side.out.value.Kind() == types.DynKind {
			d.errorf(tableKey, RuleInvalidValue, "kind: %s needs the type of table %q: where it has no row, the fields that the type names are null", j.kind, side.out.name).
				hint("types: {Row: {name: string}}, and type: Row at the table")
		}
	}
}

// matches says whether keys of several parts can be equal: as many parts, each of the same type. Of one part their type says it, and what an aggregate's key is
// made of is not known here.
func (k *keyPlan) matches(o *keyPlan) bool {
	if k == nil || o == nil || !k.list || !o.list {
		return true
	}
	return slices.EqualFunc(k.parts, o.parts, func(a, b *expr) bool {
		x, y := plainType(a.typ), plainType(b.typ)
		return x.TypeName() == y.TypeName() || x.Kind() == types.DynKind || y.Kind() == types.DynKind
	})
}

// partsText names the types of a key's parts.
func (k *keyPlan) partsText() string {
	parts := make([]string, len(k.parts))
	for i, p := range k.parts {
		parts[i] = typeText(plainType(p.typ))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// common is a table of which both are made; nil: there is none.
func (t *tablePlan) common(o *tablePlan) *tablePlan {
	kept := map[*tablePlan]bool{}
	t.roots(func(x *tablePlan) { kept[x] = true })
	var common *tablePlan
	o.roots(func(x *tablePlan) {
		if kept[x] {
			common = x
		}
	})
	return common
}

// roots calls fn for the tables that are kept, of which this one is made.
func (t *tablePlan) roots(fn func(*tablePlan)) {
	for _, p := range t.parents {
		p.roots(fn)
	}
	if len(t.parents) == 0 {
		fn(t)
	}
}

// tableTo reads a step that writes the changes of a table.
func (r *planner) tableTo(s *stepPlan, n *yaml.Node) {
	r.to(s, n)
	v := r.d.visit(n)
	if v == nil || v.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(v.Content); i += 2 {
		switch key := v.Content[i]; {
		case key.Value == "key" || key.Value == "value":
			note := r.d.errorf(key, RuleInvalidValue, "%s has no meaning where a table is written: a row that goes has only its key", key.Value)
			if key.Value == "value" {
				note.hint("put a map step before")
			}
		case s.into != nil && key.Value == s.into.kind.name:
			r.d.errorf(key, RuleInvalidValue, "%q is a table, and its changes are written to topics only: a row that goes has no columns", s.in[0].name).
				hint("write them to a topic, and read that as a source")
		}
	}
}

// buildTableStep makes the table of a step, or writes its changes.
func (p *plan) buildTableStep(s *stepPlan, streams map[*output]*stream, tables map[*tablePlan]*topology.KTable[recKey, recValue]) {
	onError, name, in := topology.OnError(s.policy), topology.Name(s.name), tables[s.in[0].table]
	if s.kind == opTo {
		changes := topology.ToStream(in, topology.Name(s.name+changesSuffix))
		p.buildSink(s, topology.MapValues(changes, func(r record.Record[recKey, *recValue]) (recValue, error) {
			if r.Value == nil {
				return recValue{}, nil // a tombstone
			}
			return *r.Value, nil
		}, topology.Name(s.name+rowsSuffix)).WithValues(p.values(s.in[0], nil)))
		return
	}
	made := s.outs[0].table
	switch s.kind {
	case opFilter:
		tables[made] = topology.FilterTable(in, func(k recKey, v recValue) (bool, error) {
			ok, err := holds(s.filter, &event{Key: k, Value: v})
			return ok, s.fail(p, err)
		}, name, onError)
	case opMap:
		tables[made] = topology.MapTableValues(in, func(k recKey, v recValue) (recValue, error) {
			row, err := s.value.make(p.dec, &event{Key: k, Value: v})
			return row, s.fail(p, err)
		}, name, onError)
	case opJoin:
		right := p.tableOf(s.join.table, streams, tables)
		switch s.join.kind {
		case joinLeft:
			tables[made] = topology.LeftJoinTables(in, right, s.name, func(k recKey, l recValue, r *recValue) (recValue, error) { return s.pair(p, k, &l, r) }, onError)
		case joinOuter:
			tables[made] = topology.OuterJoinTables(in, right, s.name, func(k recKey, l, r *recValue) (recValue, error) { return s.pair(p, k, l, r) }, onError)
		default:
			tables[made] = topology.JoinTables(in, right, s.name, func(k recKey, l, r recValue) (recValue, error) { return s.pair(p, k, &l, &r) }, onError)
		}
	}
}

// tableOf is a table in the topology; that of a step's records is made when it is first asked for.
func (p *plan) tableOf(t *tablePlan, streams map[*output]*stream, tables map[*tablePlan]*topology.KTable[recKey, recValue]) *topology.KTable[recKey, recValue] {
	if t.from != nil && tables[t] == nil {
		tables[t] = p.buildTable(nil, t, streams)
	}
	return tables[t]
}
