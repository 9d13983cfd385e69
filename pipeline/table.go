package pipeline

import (
	"errors"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// tablePlan is a table: of a topic, or of a source or step, of which joins look up the newest record of a key, or made of other tables.
type tablePlan struct {
	src  *sourcePlan // what is read. nil: from or made
	from *output     // the records of a source or step
	made *output     // the rows that a step makes of those of parents
	// parents are the tables that a step makes this one of; none: it is kept in a store of its own.
	parents []*tablePlan
	key     *keyPlan // nil: the records' own
	used    bool
	// global says that each process has all rows, outside of the tasks; maxBytes bounds them, 0: the default.
	global   bool
	maxBytes int
}

// globals are the global tables of a topology under way.
type globals map[*tablePlan]*topology.GlobalKTable[recKey, recValue]

// out is what the rows are.
func (t *tablePlan) out() *output {
	switch {
	case t.src != nil:
		return t.src.out
	case t.made != nil:
		return t.made
	}
	return t.from
}

// tableSuffix is behind the name of a source or step in that of the table of its records.
const tableSuffix = "-table"

// rowsSuffix is behind a table's name in that of the operator that reads its topic.
const rowsSuffix = "-rows"

// bySuffix and otherBySuffix are behind a name in that of the operator that brings records of one key together.
const (
	bySuffix      = "-by"
	otherBySuffix = "-other-by"
)

func (r *planner) table(key, n *yaml.Node) {
	name := key.Value
	t := &tablePlan{src: newSourcePlan(key)}
	t.src.table, t.src.out.table = true, t
	if old := r.streams[name]; old != nil {
		r.d.errorf(key, RuleDuplicateName, "%q is the name of something at line %d already", name, old.node.Line)
	}
	r.plan.tables = append(r.plan.tables, t)
	o := r.d.object(key, n, "table "+`"`+name+`"`)
	if o == nil {
		return
	}
	if n := o.get("global"); n != nil {
		t.global = r.d.boolean(n, "global")
	}
	r.globalFields(o, t)
	format := r.sourceFields(o, t.src, func(sc *scope) {
		if n := o.get("key"); n != nil && !t.global {
			if t.key = r.keyOf(n, "key", sc); t.key != nil {
				t.src.out.key = t.key.typ
			}
		}
	})
	o.finish()
	r.p.Sources = append(r.p.Sources, Source{Name: name, Topic: t.src.topic, Format: format, Start: t.src.start})
}

// globalFields reads what only a global table has, and reports what it does not have.
func (r *planner) globalFields(o *object, t *tablePlan) {
	limitKey, limit := o.pair("max_bytes")
	if !t.global {
		if limitKey != nil {
			r.d.errorf(limitKey, RuleInvalidValue, "max_bytes has a meaning with global: true only")
		}
		return
	}
	if limit != nil {
		t.maxBytes = r.d.count(limit, "max_bytes")
	}
	for _, name := range []string{"key", "timestamp", "out_of_orderness", "idleness"} {
		if k, _ := o.pair(name); k != nil {
			r.d.errorf(k, RuleInvalidValue, "%s has no meaning for a global table", name).
				hint("its rows have the keys of the topic's records, and no time; the join says by what they are looked up: on")
		}
	}
	if _, n := o.pair("on_error"); n != nil && n.Value == "dead_letter" {
		r.d.errorf(n, RuleInvalidValue, "a global table has no dead letters: each process would send them, at each start").hint("stop, or skip: then the row stays as it was")
	}
	if _, n := o.pair("format"); n != nil && slices.Contains([]string{formatCloudEvents, formatAvro, formatProtobuf, formatDebezium}, n.Value) {
		r.d.errorf(n, RuleNotAvailable, "format %q is not available for a global table", n.Value)
	}
}

// buildGlobal declares a global table.
func (p *plan) buildGlobal(b *topology.Builder, t *tablePlan) *topology.GlobalKTable[recKey, recValue] {
	opts := []topology.GlobalTableOption{topology.Name(t.src.out.name), topology.OnError(t.src.policy)}
	if t.maxBytes > 0 {
		opts = append(opts, topology.MaxBytes(int64(t.maxBytes)))
	}
	return topology.GlobalTable(b, t.src.topic, keySerde{t.src.out.key}, p.values(t.src.out, &sourceInfo{topic: t.src.topic}), opts...)
}

// tableOf finds a table by its name.
func (r *planner) tableOf(n *yaml.Node) *tablePlan {
	s, ok := r.d.scalar(n, "table")
	if !ok || s.unset {
		return nil
	}
	var names []string
	for _, t := range r.plan.tables {
		if t.out().name == s.text {
			t.used, t.out().used = true, true
			return t
		}
		names = append(names, t.out().name)
	}
	if out := r.streams[s.text]; out != nil {
		return r.tableOfStream(n, out)
	}
	for _, out := range r.order {
		names = append(names, out.name)
	}
	r.d.errorf(n, RuleUnknownName, "no table, source or earlier step is called %s%s", r.d.shown(s), suggest(s.text, names)).
		hint("a table is declared beside the sources: tables: {customers: {topic: customers, type: Customer}}")
	return nil
}

// tableOfStream takes the records of a source or step as the rows of a table.
func (r *planner) tableOfStream(n *yaml.Node, out *output) *tablePlan {
	out.used = true
	switch {
	case out.window:
		r.d.errorf(n, RuleInvalidValue, "the results of windows are no table: a key has many of them")
	case !out.keyed:
		r.d.errorf(n, RuleInvalidValue, "the records of %q are not brought together by their key", out.name).hint("put key_by behind it")
	}
	t := &tablePlan{from: out, used: true}
	r.plan.tables = append(r.plan.tables, t)
	return t
}

// readTable finds the table whose changes a step reads. named: somewhere in the file a table has that name; then what is wrong was reported.
func (r *planner) readTable(n *yaml.Node, what, name string) (out *output, named bool) {
	for _, t := range r.plan.tables {
		if t.from != nil || t.out().name != name {
			continue
		}
		t.used, t.out().used = true, true
		switch {
		case what != "from":
			r.d.errorf(n, RuleInvalidValue, "%s: %q is a table", what, name).
				hint("a step looks a row of it up with join: {table: %s}, or makes another table of it with from: %s", name, name)
			return nil, true
		case t.global:
			r.d.errorf(n, RuleInvalidValue, "from: %q is a global table: a change of it makes no record", name).
				hint("a step looks a row of it up with join: {table: %s}", name)
			return nil, true
		}
		return t.out(), true
	}
	return nil, false
}

// operator is the name of the operator that reads the topic: the table has the one in the file itself.
func (s *sourcePlan) operator() string {
	if s.table {
		return s.out.name + rowsSuffix
	}
	return s.out.name
}

func (r *planner) lintTables() {
	for _, t := range r.plan.tables {
		if !t.used && len(r.plan.steps) > 0 {
			r.d.warnf(t.src.out.node, RuleUnusedSource, "nothing reads table %q", t.src.out.name)
		}
	}
}

// buildTable keeps the table. A null value deletes its row.
func (p *plan) buildTable(b *topology.Builder, t *tablePlan, streams map[*output]*stream) *topology.KTable[recKey, recValue] {
	if t.src == nil {
		return topology.ToTable(streams[t.from], t.from.name+tableSuffix, p.values(t.from, nil))
	}
	name, rows := t.src.out.name, p.buildSource(b, t.src)
	if t.key != nil {
		rows = topology.KeyBy(rows, name+bySuffix, keySerde{t.key.typ}, func(r event) (recKey, error) {
			if r.Value.gone != nil {
				r.Value = recValue{val: r.Value.gone}
			}
			if r.Value.null() {
				return recKey{}, p.fail(name, t.src.out.node.Line, errors.New("a record without a value deletes a row, but does not say which: its key is computed of the value"))
			}
			k, err := t.key.make(p.dec, &r)
			return k, p.fail(name, t.src.out.node.Line, err)
		}, topology.OnError(t.src.policy))
	}
	return topology.ToTable(rows, name, p.values(t.src.out, nil), topology.OnError(t.src.policy))
}

// null says whether the value is a tombstone.
func (v recValue) null() bool { return v.raw == nil && (v.val == nil || v.val == types.NullValue) }

// null says whether there is no key.
func (k recKey) null() bool { return k.raw == nil && (k.val == nil || k.val == types.NullValue) }

// nullable is the type of a variable that may have nothing: a text that is null, or an object without fields.
func nullable(t *types.Type) *types.Type {
	switch t.Kind() {
	case types.StringKind, types.BytesKind, types.IntKind, types.DoubleKind, types.BoolKind:
		return cel.NullableType(plainType(t))
	case types.StructKind:
		return t
	}
	return types.DynType
}
