package pipeline

import (
	"errors"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// tablePlan is a table: a topic of which joins look up the newest record of a key.
type tablePlan struct {
	src  *sourcePlan // what is read; no step can name it
	key  *keyPlan    // nil: the records' own
	used bool
}

// rowsSuffix is behind a table's name in that of the operator that reads its topic.
const rowsSuffix = "-rows"

// bySuffix and otherBySuffix are behind a name in that of the operator that brings records of one key together.
const (
	bySuffix      = "-by"
	otherBySuffix = "-other-by"
)

func (r *planner) tables(key, n *yaml.Node) {
	o := r.d.object(key, n, "tables")
	if o == nil {
		return
	}
	for i := range o.members {
		m := &o.members[i]
		m.used = true
		if r.d.checkName(m.key, m.key.Value, "the name of a table") {
			r.table(m.key, m.value)
		}
	}
	if len(o.members) == 0 {
		r.d.errorf(key, RuleInvalidValue, "tables is empty")
	}
}

func (r *planner) table(key, n *yaml.Node) {
	name := key.Value
	t := &tablePlan{src: newSourcePlan(key)}
	t.src.table = true
	if old := r.streams[name]; old != nil {
		r.d.errorf(key, RuleDuplicateName, "%q is the name of something at line %d already", name, old.node.Line)
	}
	r.plan.tables = append(r.plan.tables, t)
	o := r.d.object(key, n, "table "+`"`+name+`"`)
	if o == nil {
		return
	}
	format := r.sourceFields(o, t.src, func(sc *scope) {
		if n := o.get("key"); n != nil {
			if t.key = r.keyOf(n, "key", sc); t.key != nil {
				t.src.out.key = t.key.typ
			}
		}
	})
	o.notYet("global")
	o.finish()
	r.p.Sources = append(r.p.Sources, Source{Name: name, Topic: t.src.topic, Format: format, Start: t.src.start})
}

// tableOf finds a table by its name.
func (r *planner) tableOf(n *yaml.Node) *tablePlan {
	s, ok := r.d.scalar(n, "table")
	if !ok || s.unset {
		return nil
	}
	var names []string
	for _, t := range r.plan.tables {
		if t.src.out.name == s.text {
			t.used = true
			return t
		}
		names = append(names, t.src.out.name)
	}
	note := r.d.errorf(n, RuleUnknownName, "no table is called %s%s", r.d.shown(s), suggest(s.text, names))
	if r.streams[s.text] != nil {
		note.hint("it is a stream: join two streams with stream: %s and within", s.text)
	} else if len(names) == 0 {
		note.hint("a table is declared beside the sources: tables: {customers: {topic: customers, type: Customer}}")
	}
	return nil
}

// notStream adds to a report of an unknown name that a table has it.
func (r *planner) notStream(note note, name string) {
	for _, t := range r.plan.tables {
		if t.src.out.name == name {
			t.used = true
			note.hint("it is a table: a step looks a row of it up with join: {table: %s}", name)
		}
	}
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
func (p *plan) buildTable(b *topology.Builder, t *tablePlan) *topology.KTable[recKey, recValue] {
	name, rows := t.src.out.name, p.buildSource(b, t.src)
	if t.key != nil {
		rows = topology.KeyBy(rows, name+bySuffix, keySerde{t.key.typ}, func(r event) (recKey, error) {
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
