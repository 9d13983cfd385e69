package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/files"
	"github.com/streamd/streamd/sink/mysql"
	"github.com/streamd/streamd/sink/postgres"
	"github.com/streamd/streamd/sink/redis"
	"github.com/streamd/streamd/sink/sqlite"
	"github.com/streamd/streamd/sink/webhook"
	"github.com/streamd/streamd/topology"
)

// targetKind is a kind of targets that a step of kind to can name instead of a topic.
type targetKind struct {
	name string
	// section is its name in the reference; empty: name.
	section string
	// address is the field that says where, and want what it looks like. It may hold a password.
	address, want string
	// classes says that the class and the version column can be chosen.
	classes bool
	// prepares says that class two_phase is one of them.
	prepares bool
	// applied says that it has no transactions: what it gets comes from the sink's topic until it is confirmed, see sink.Applier.
	applied bool
	// own is what it has instead of a table, a key and a progress of a name; nil: it has those.
	own  *ownFields
	open func(address string, p *intoPlan) (sink.Target, error)
}

// ownFields are the fields of a target that is no table.
type ownFields struct {
	doc    string
	fields []Field
	read   func(o *object, p *intoPlan)
}

func targetKinds() []targetKind {
	return []targetKind{
		{name: "postgres", address: "dsn", want: "postgres://user:password@host:5432/database, or key=value pairs", classes: true, prepares: true, open: func(address string, p *intoPlan) (sink.Target, error) {
			return postgres.Open(postgres.Config{DSN: address, Table: p.table, Class: p.class, Progress: p.progress, Version: p.version})
		}},
		{name: "mysql", address: "dsn", want: "user:password@tcp(host:3306)/database", classes: true, prepares: true, open: func(address string, p *intoPlan) (sink.Target, error) {
			return mysql.Open(mysql.Config{DSN: address, Table: p.table, Class: p.class, Progress: p.progress, Version: p.version})
		}},
		{name: "sqlite", address: "file", want: "the path of a file", classes: true, open: func(address string, p *intoPlan) (sink.Target, error) {
			return sqlite.Open(sqlite.Config{File: address, Table: p.table, Class: p.class, Progress: p.progress, Version: p.version})
		}},
		{name: "redis", address: "url", want: "redis://user:password@host:6379/0", open: func(address string, p *intoPlan) (sink.Target, error) {
			return redis.Open(redis.Config{URL: address, Table: p.table, Progress: p.progress})
		}},
		filesKind(),
		httpKind(),
	}
}

// classNames are the classes that can be chosen.
func (k targetKind) classNames() []string {
	names := []string{string(sink.Ledger), string(sink.Idempotent), string(sink.Plain)}
	if k.prepares {
		names = append(names, string(sink.TwoPhase))
	}
	return names
}

func targetNames() []string {
	var names []string
	for _, k := range targetKinds() {
		names = append(names, k.name)
	}
	return names
}

// intoPlan is a table that a step writes to.
type intoPlan struct {
	kind              targetKind
	address           string
	table             sink.Table
	class             sink.Class
	progress, version string
	// What the own fields of these kinds say.
	files files.Config
	http  webhook.Config

	columns []*template // by column
	key     *keyPlan    // of the primary key: what the records are brought together by; nil: none
	row     *structType // a record of the sink's topic: the columns, and whether the row is to be deleted
}

// into reads the target of a step.
func (r *planner) into(s *stepPlan, k targetKind, key, n *yaml.Node) *intoPlan {
	d := r.d
	o := d.object(key, n, k.name)
	if o == nil {
		return nil
	}
	shown := []string{"file", "directory", "table", "primary_key", "columns", "class", "progress", "version"}
	if k.own != nil {
		for _, f := range k.own.fields {
			shown = append(shown, f.Name)
		}
	}
	for _, m := range o.members {
		if !slices.Contains(shown, m.key.Value) {
			d.hide(m.value, 0) // a slip in the name must not show a password
		}
	}
	p := &intoPlan{kind: k, class: sink.Ledger}
	address := o.need(k.address)
	if address != nil {
		d.beside = true
		p.address = d.text(address, k.address)
		d.beside = false
	}
	if k.own == nil {
		if n := o.need("table"); n != nil {
			p.table.Name = d.text(n, "table")
		}
	}
	if columns, n := o.pair("columns"); n != nil {
		r.intoColumns(s, p, columns, n)
	} else {
		d.errorf(key, RuleMissingField, "missing field %q in %s", "columns", k.name)
	}
	if k.own != nil {
		p.table.Name = s.name
		k.own.read(o, p)
	} else {
		r.intoTable(p, k, o)
	}
	o.finish()
	if d.failed() || d.unset || p.address == "" {
		return p
	}
	if err := p.table.Validate(); err != nil {
		d.errorf(key, RuleInvalidValue, "%v", err)
		return p
	}
	// Only whether it can be read: nothing connects before the pipeline runs. The cause could show the password.
	t, err := k.open(p.address, p)
	if err != nil && k.own != nil {
		d.errorf(key, RuleInvalidValue, "%v", err) // these show none
		return p
	}
	if err != nil {
		d.errorf(address, RuleInvalidValue, "%s of %s cannot be read: want %s", k.address, k.name, k.want)
		return p
	}
	if err := t.Close(); err != nil {
		d.errorf(address, RuleInvalidValue, "%v", err)
	}
	return p
}

// intoTable reads what tables have and nothing else does.
func (r *planner) intoTable(p *intoPlan, k targetKind, o *object) {
	d := r.d
	if n := o.get("primary_key"); n != nil {
		r.intoKey(p, n)
	}
	if k.classes {
		if n := o.get("class"); n != nil {
			p.class = sink.Class(d.choice(n, "class", k.classNames()...))
			if p.class == sink.Idempotent && len(p.table.Key) == 0 {
				d.errorf(n, RuleInvalidValue, "an idempotent sink needs a primary_key: without one a row cannot be told from its copy")
			}
		}
		if n := o.get("version"); n != nil {
			if p.version = d.text(n, "version"); p.class != sink.Idempotent {
				d.errorf(n, RuleInvalidValue, "version has a meaning with class: idempotent only")
			}
		}
	}
	if n := o.get("progress"); n != nil {
		if p.progress = d.text(n, "progress"); p.class != sink.Ledger {
			d.errorf(n, RuleInvalidValue, "progress has a meaning with class: ledger only")
		}
	}
}

// deletedField is the field of a sink's records that says that the row goes. No column has such a name.
const deletedField = "\x00deleted"

// intoColumns reads an expression for each column; its type decides on the column's kind.
func (r *planner) intoColumns(s *stepPlan, p *intoPlan, key, n *yaml.Node) {
	o := r.d.object(key, n, "columns")
	if o == nil {
		return
	}
	if len(o.members) == 0 {
		r.d.errorf(key, RuleInvalidValue, "columns is empty")
	}
	name := s.name + ".columns"
	var fields []structField
	for i := range o.members {
		m := &o.members[i]
		m.used = true
		t := r.template(m.value, fmt.Sprintf("column %q", m.key.Value), name+"."+m.key.Value, s.scope, 0)
		if t == nil {
			continue
		}
		kind, ok := columnKind(t.typ)
		if !ok {
			r.d.errorf(m.value, RuleWrongType, "what column %q holds is not known before a record comes", m.key.Value).
				hint("declare the type of the source's values, or convert: string(...), int(...), decimal(...)")
		}
		p.columns = append(p.columns, t)
		p.table.Columns = append(p.table.Columns, sink.Column{Name: m.key.Value, Kind: kind})
		fields = append(fields, structField{m.key.Value, t.typ})
	}
	p.row = newStructType(name, append(fields, structField{deletedField, types.BoolType}))
	r.plan.structs[name] = p.row
}

// columnKind is the kind of a column that holds values of a type. False if the type says nothing.
func columnKind(t *types.Type) (sink.Kind, bool) {
	switch {
	case isDecimal(t):
		return sink.Decimal, true
	case t.Kind() == types.StringKind:
		return sink.Text, true
	case t.Kind() == types.IntKind:
		return sink.Integer, true
	case t.Kind() == types.DoubleKind:
		return sink.Float, true
	case t.Kind() == types.BoolKind:
		return sink.Bool, true
	case t.Kind() == types.TimestampKind:
		return sink.Timestamp, true
	case t.Kind() == types.BytesKind:
		return sink.Bytes, true
	case t.Kind() == types.StructKind, t.Kind() == types.ListKind:
		return sink.JSON, true
	}
	return sink.Text, false
}

// intoKey reads the primary key. The records of a sink are partitioned by it: all changes of a row come to one writer,
// in their order.
func (r *planner) intoKey(p *intoPlan, n *yaml.Node) {
	list := r.d.list(n, "primary_key", true)
	if len(list) == 0 {
		r.d.errorf(n, RuleInvalidValue, "primary_key is empty")
	}
	k := &keyPlan{}
	var names []string
	for _, c := range p.table.Columns {
		names = append(names, c.Name)
	}
	for _, e := range list {
		name := r.d.text(e, "primary_key")
		at := slices.Index(names, name)
		switch {
		case name == "":
			continue
		case at < 0:
			r.d.errorf(e, RuleUnknownName, "no column is called %q%s", name, suggest(name, names))
			continue
		case slices.Contains(p.table.Key, name):
			r.d.errorf(e, RuleDuplicateName, "column %q stands twice", name)
			continue
		case p.columns[at].expr == nil || !r.identifies(e, "a column of the primary key", p.columns[at].expr.typ):
			if p.columns[at].expr == nil {
				r.d.errorf(e, RuleWrongType, "column %q holds an object or a list, which is no key", name)
			}
			continue
		}
		p.table.Key = append(p.table.Key, name)
		k.parts = append(k.parts, p.columns[at].expr)
	}
	if len(k.parts) == len(list) && len(list) > 0 {
		k.typ, k.list = keyType(k.parts[0].typ), len(list) > 1
		if k.list {
			k.typ = types.NewListType(types.DynType)
		}
		p.key = k
	}
}

// buildInto makes two operators: one computes the row in the transaction of its input, where an error of an expression goes by
// the policy exactly once; behind the sink's topic the columns are only decoded.
func (p *plan) buildInto(s *stepPlan, in *stream) {
	it := s.into
	rows := topology.Map(in, func(r event) (recKey, recValue, error) {
		k, v, err := it.record(p.dec, &r)
		return k, v, s.fail(p, err)
	}, topology.Name(s.name+"-row"), topology.OnError(s.policy))
	key := keySerde{s.in[0].key}
	if it.key != nil {
		key.typ = it.key.typ
	}
	values := valueSerde{format: formatJSON, typ: it.row.celType, dec: p.dec}
	topology.Into(rows, s.name, key, values, &lateTarget{plan: it}, func(r event) (sink.Row, error) {
		row, err := it.decode(r.Value)
		return row, s.fail(p, err)
	}, topology.OnError(s.policy))
}

// record computes the record for the sink's topic. A tombstone deletes the row of its key, where the table has one.
func (p *intoPlan) record(d *decoder, r *event) (k recKey, v recValue, err error) {
	k = r.Key
	if p.key != nil {
		if k, err = p.key.make(d, r); err != nil {
			return k, v, fmt.Errorf("primary key: %w", err)
		}
	}
	deleted := p.key != nil && r.Value.raw == nil && r.Value.value() == types.NullValue
	o := &jsonObject{typ: p.row, dec: d, open: true, fields: make([]jsonField, len(p.columns)+1)}
	for i, c := range p.columns {
		if deleted && !slices.Contains(p.table.Key, p.table.Columns[i].Name) {
			o.fields[i].val = types.NullValue
			continue
		}
		switch o.fields[i].val, err = c.eval(d, r); {
		case errors.Is(err, errMissing):
			o.fields[i].val = types.NullValue // a field that is not there is NULL, which the table may refuse
		case err != nil:
			return k, v, fmt.Errorf("column %q: %w", p.table.Columns[i].Name, err)
		}
	}
	if deleted {
		o.fields[len(p.columns)].val = types.True
	}
	return k, recValue{val: o}, nil
}

// decode makes the row of a record of the sink's topic.
func (p *intoPlan) decode(v recValue) (sink.Row, error) {
	o, ok := v.val.(*jsonObject)
	if !ok || o.typ != p.row {
		return sink.Row{}, fmt.Errorf("a record that is no row: %s", shorten(string(v.raw)))
	}
	row := sink.Row{Values: make([]any, len(p.columns))}
	for i, c := range p.table.Columns {
		x, err := o.field(i)
		if errors.Is(err, errMissing) {
			continue
		}
		if err == nil {
			row.Values[i], err = columnValue(c.Kind, x)
		}
		if err != nil {
			return sink.Row{}, fmt.Errorf("column %q: %w", c.Name, err)
		}
	}
	deleted, err := o.field(len(p.columns))
	if err != nil && !errors.Is(err, errMissing) {
		return sink.Row{}, fmt.Errorf("whether the row is deleted: %w", err)
	}
	row.Delete = deleted == types.True
	return row, nil
}

// columnValue is a value as the column's kind has it.
func columnValue(k sink.Kind, v ref.Val) (any, error) {
	if k == sink.JSON {
		b, err := appendJSON(nil, v, 0)
		return string(b), err
	}
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.String:
		return string(v), nil
	case types.Int:
		return int64(v), nil
	case types.Double:
		return float64(v), nil
	case types.Bool:
		return bool(v), nil
	case types.Timestamp:
		return v.Time, nil
	case types.Bytes:
		return []byte(v), nil
	case decimal:
		return v.String(), nil
	}
	return nil, fmt.Errorf("a value of type %s", v.Type().TypeName())
}

// lateTarget opens its target when it is first used: a pipeline that is only looked at opens nothing.
type lateTarget struct {
	plan *intoPlan

	mu     sync.Mutex // guards target
	target sink.Target
}

func (t *lateTarget) get() (sink.Target, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.target == nil {
		target, err := t.plan.kind.open(t.plan.address, t.plan)
		if err != nil {
			return nil, &sink.SetupError{Err: err, Remedy: "correct the pipeline file"}
		}
		t.target = target
	}
	return t.target, nil
}

// Condition implements sink.Conditional.
func (t *lateTarget) Condition() (what, remedy string) {
	if t.plan.kind.applied {
		return sink.AppliedCondition(t.plan.class)
	}
	return sink.DecidedCondition(t.plan.class)
}

// Class implements sink.Target.
func (t *lateTarget) Class() sink.Class { return t.plan.class }

// Check implements sink.Target.
func (t *lateTarget) Check(ctx context.Context) error {
	target, err := t.get()
	if err != nil {
		return err
	}
	return target.Check(ctx)
}

// Claim implements sink.Target.
func (t *lateTarget) Claim(ctx context.Context, p sink.Partition) (sink.Writer, error) {
	target, err := t.get()
	if err != nil {
		return nil, err
	}
	return target.Claim(ctx, p)
}

// ClaimDecided implements sink.Decided. The processor asks for it with class two_phase only.
func (t *lateTarget) ClaimDecided(ctx context.Context, p sink.Partition, d sink.Decisions) (sink.Writer, error) {
	target, err := t.decided()
	if err != nil {
		return nil, err
	}
	return target.ClaimDecided(ctx, p, d)
}

// Pending implements sink.Decided.
func (t *lateTarget) Pending(ctx context.Context) ([]sink.TransactionID, error) {
	target, err := t.decided()
	if err != nil {
		return nil, err
	}
	return target.Pending(ctx)
}

func (t *lateTarget) decided() (sink.Decided, error) {
	target, err := t.get()
	if err != nil {
		return nil, err
	}
	decided, ok := target.(sink.Decided)
	if !ok {
		return nil, fmt.Errorf("pipeline: a target of class %s prepares nothing", target.Class())
	}
	return decided, nil
}

// Close implements sink.Target.
func (t *lateTarget) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.target == nil {
		return nil
	}
	target := t.target
	t.target = nil
	return target.Close()
}
