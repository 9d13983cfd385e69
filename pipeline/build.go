package pipeline

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// StepError is the error of an expression on a record: where in which file, and why.
type StepError struct {
	Pipeline, Step string
	File           string
	Line           int
	Err            error
}

// Error returns the text with what can be done about it.
func (e *StepError) Error() string {
	return fmt.Sprintf("pipeline %q, step %q (%s:%d): %v; correct the record or the expression, or set on_error to dead_letter or skip",
		e.Pipeline, e.Step, e.File, e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// build makes the topology.
func (p *plan) build() (*topology.Topology, error) {
	b := topology.New(p.name)
	streams := map[*output]*stream{}
	for _, s := range p.sources {
		if s.out.used {
			streams[s.out] = p.buildSource(b, s)
		}
	}
	tables, global := map[*tablePlan]*topology.KTable[recKey, recValue]{}, globals{}
	for _, t := range p.tables {
		switch {
		case !t.used || t.src == nil:
		case t.global:
			global[t] = p.buildGlobal(b, t)
		default:
			tables[t] = p.buildTable(b, t, streams)
		}
	}
	for _, s := range p.steps {
		if s.join != nil && s.join.global() {
			streams[s.outs[0]] = p.buildGlobalJoin(s, streams[s.in[0]], global[s.join.table])
			continue
		}
		if s.in[0].table != nil {
			p.buildTableStep(s, streams, tables)
			continue
		}
		p.buildStep(s, streams, tables)
	}
	return b.Build()
}

func (p *plan) fail(name string, line int, err error) error {
	if err == nil {
		return nil
	}
	return &StepError{Pipeline: p.name, Step: name, File: p.file, Line: line, Err: err}
}

func (s *stepPlan) fail(p *plan, err error) error { return p.fail(s.name, s.line, err) }

// scanField says which single field of the values is all that any expression needs: then values are not
// decoded, only searched. ok is false if more is needed. An empty name with ok: nothing of them is needed.
func (p *plan) scanField() (field string, ok bool) {
	take := func(e *expr, inID bool) bool {
		switch {
		case e == nil || !e.uses[varValue]:
			return true
		case !inID || e.field == "" || field != "" && field != e.field || !scannable(e.typ):
			return false
		}
		field = e.field
		return true
	}
	ok = true
	ids := func(id *idPlan) {
		if id != nil {
			for _, e := range id.parts {
				ok = ok && take(e, true)
			}
		}
	}
	for _, s := range p.sources {
		ok = ok && !s.events && take(s.timestamp, false)
		ids(s.id)
	}
	for _, s := range p.steps {
		if s.value != nil || s.items != nil || s.agg != nil || s.into != nil {
			return "", false
		}
		if s.dedup != nil {
			ids(s.dedup.id)
		}
		ok = ok && take(s.filter, false)
		if s.key != nil {
			for _, e := range s.key.parts {
				ok = ok && take(e, false)
			}
		}
		for _, e := range s.cases {
			ok = ok && take(e, false)
		}
	}
	return field, ok
}

// scannable says whether a field of this type is read by the search as an expression would read it.
func scannable(t *types.Type) bool {
	return t.Kind() == types.StringKind || t.Kind() == types.DynKind || t.Kind() == types.IntKind
}

// values is the serde of a stream's values.
func (p *plan) values(out *output, src *sourceInfo) valueSerde {
	field, scan := p.scanField()
	return valueSerde{format: out.format, typ: out.value, dec: p.dec, src: src, field: field, raw: scan && out.format != formatBytes}
}

func (p *plan) buildSource(b *topology.Builder, s *sourcePlan) *stream {
	opts := []topology.SourceOption{topology.Name(s.operator()), topology.OnError(s.policy), topology.OnMissingID(s.onMissingID)}
	switch {
	case s.id != nil:
		opts = append(opts, topology.ID(p.sourceID(s)))
	case p.positions:
		opts = append(opts, topology.IDPosition())
	}
	if s.entrance != "" {
		opts = append(opts, topology.EnteredBy(s.entrance, s.identified, s.bounds...))
	}
	if at := p.sourceTime(s); at != nil {
		opts = append(opts, topology.Timestamp(at))
	}
	if s.outOfOrderness > 0 {
		opts = append(opts, topology.OutOfOrderness(s.outOfOrderness))
	}
	if s.idleness != nil {
		opts = append(opts, topology.WithIdleness(*s.idleness))
	}
	values := p.values(s.out, &sourceInfo{topic: s.topic})
	values.events = s.events
	if !p.plain {
		values.codec = s.codec
	}
	values.change, values.row = s.debezium, s.table
	out := topology.From(b, s.topic, keySerde{s.out.key}, values, opts...)
	if values.codec != nil || s.debezium {
		out = out.WithValues(p.values(s.out, nil)) // behind the source they are plain JSON
	}
	switch {
	case s.events:
		return p.opened(s, out)
	case s.debezium:
		return p.changes(s, out)
	}
	return out
}

// eventTime takes a timestamp, or a number of milliseconds since 1970.
func eventTime(e *expr, r *event) (time.Time, error) {
	v, err := e.eval(r)
	if err != nil {
		return time.Time{}, err
	}
	switch v := v.(type) {
	case types.Timestamp:
		return v.Time, nil
	case types.Int:
		return time.UnixMilli(int64(v)), nil
	case types.String:
		at, err := time.Parse(time.RFC3339Nano, string(v))
		if err != nil {
			return time.Time{}, fmt.Errorf("timestamp: %q is not a time such as 2026-01-02T15:04:05Z", shorten(string(v)))
		}
		return at, nil
	}
	return time.Time{}, fmt.Errorf("timestamp: a value of type %s is no time", v.Type().TypeName())
}

func (p *plan) buildStep(s *stepPlan, streams map[*output]*stream, tables map[*tablePlan]*topology.KTable[recKey, recValue]) {
	in := streams[s.in[0]]
	onError := topology.OnError(s.policy)
	name := topology.Name(s.name)
	switch s.kind {
	case opDedup:
		p.buildDedup(s, in, streams)
	case opFilter:
		streams[s.outs[0]] = topology.Filter(in, func(r event) (bool, error) {
			ok, err := holds(s.filter, &r)
			return ok, s.fail(p, err)
		}, name, onError)
	case opMap:
		streams[s.outs[0]] = topology.MapValues(in, func(r event) (recValue, error) {
			v, err := s.value.make(p.dec, &r)
			return v, s.fail(p, err)
		}, name, onError).WithValues(p.values(s.outs[0], nil))
	case opFlatMap:
		streams[s.outs[0]] = topology.FlatMap(in, func(r event, emit topology.Emit[recKey, recValue]) error {
			return s.fail(p, s.each(&r, emit))
		}, name, onError, topology.PreserveKey()).WithValues(p.values(s.outs[0], nil))
	case opKeyBy:
		streams[s.outs[0]] = topology.KeyBy(in, s.name, keySerde{s.key.typ}, s.newKey(p), onError)
	case opAggregate:
		streams[s.outs[0]] = p.buildAggregate(s, in, streams)
	case opJoin:
		streams[s.outs[0]] = p.buildJoin(s, in, streams, tables)
	case opTimer:
		streams[s.outs[0]] = p.buildTimer(s, in)
	case opBranch:
		cases := make([]func(event) (bool, error), len(s.cases))
		for i, e := range s.cases {
			cases[i] = func(r event) (bool, error) {
				ok, err := holds(e, &r)
				return ok, s.fail(p, err)
			}
		}
		for i, out := range topology.Branch(in, s.name, cases...) {
			if i < len(s.outs) {
				streams[s.outs[i]] = out
			}
		}
	case opMerge:
		var others []*stream
		for _, o := range s.in[1:] {
			others = append(others, streams[o])
		}
		streams[s.outs[0]] = topology.Merge(s.name, in, others...).WithValues(p.values(s.outs[0], nil)).WithKeys(keySerde{s.outs[0].key})
	case opTo:
		switch {
		case s.into == nil:
		case s.topic == "":
			p.buildInto(s, in)
			return
		default:
			p.buildRows(s, in)
			return
		}
		p.buildSink(s, in)
	}
}

// holds evaluates a condition.
func holds(e *expr, r *event) (bool, error) {
	v, err := e.eval(r)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		// Only a source without a type gets here: with one, validate knows what the expression gives.
		return false, fmt.Errorf("a condition must be true or false, this is %s (give the source a type, and streamd validate finds it)", v.Type().TypeName())
	}
	return bool(b), nil
}

// text is what the ID is computed by: two steps with the same text find the same ID in the same record.
func (id *idPlan) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%t", id.list)
	for _, e := range id.parts {
		fmt.Fprintf(&b, " %q", e.text)
	}
	return b.String()
}

// find is the ID of a record. A record whose ID cannot be computed (a field is missing, null or of another
// type) has none: on_missing_id says what becomes of it.
func (id *idPlan) find(r event) record.ID {
	if !id.list {
		return id.parts[0].id(&r) // &r does not escape: see activation
	}
	var buf [4]string
	parts := buf[:0]
	for _, e := range id.parts {
		part := e.id(&r)
		if part.Empty() {
			return ""
		}
		parts = append(parts, string(part))
	}
	return record.CompositeID(parts...)
}

// id evaluates the expression as an ID, or a part of one.
func (e *expr) id(r *event) record.ID {
	if e.field != "" && r.Value.val == nil {
		return scannedID(r.Value.raw[r.Value.from:r.Value.to], e.typ)
	}
	v, err := e.eval(r)
	if err != nil {
		return ""
	}
	text, err := keyText(v)
	if err != nil {
		return ""
	}
	return record.StringID(text)
}

// scannedID is the ID of a field's JSON: the same as keyText gives for the decoded field.
func scannedID(b []byte, t *types.Type) record.ID {
	if len(b) == 0 {
		return ""
	}
	switch c := b[0]; {
	case c == '"':
		if t.Kind() == types.IntKind {
			return ""
		}
		return record.ID(unquoteJSON(b[1 : len(b)-1]))
	case t.Kind() == types.StringKind:
		return ""
	case isNumber(b):
		// Other forms of a number (1.0, 1e2) are the same ID as its plain one.
		var d decoder
		v, err := d.decode(b, t)
		if err != nil {
			return ""
		}
		text, err := keyText(v)
		if err != nil {
			return ""
		}
		return record.ID(text)
	case (c == 't' || c == 'f') && t.Kind() == types.DynKind:
		return record.BytesID(b)
	}
	return ""
}

// newKey returns the function that makes a record's new key.
func (s *stepPlan) newKey(p *plan) func(event) (recKey, error) {
	return func(r event) (recKey, error) {
		k, err := s.key.make(p.dec, &r)
		return k, s.fail(p, err)
	}
}

func (k *keyPlan) make(d *decoder, r *event) (recKey, error) {
	vals := make([]ref.Val, len(k.parts))
	for i, e := range k.parts {
		v, err := e.eval(r)
		if err != nil {
			return recKey{}, err
		}
		if v == types.NullValue {
			return recKey{}, errors.New("the key is null")
		}
		if _, err := keyText(v); err != nil {
			return recKey{}, err
		}
		if d, ok := v.(decimal); ok {
			v = d.trimmed() // 1.5 and 1.50 are one key, in a list too
		}
		vals[i] = v
	}
	key := recKey{val: vals[0]}
	if k.list {
		key.val = types.NewRefValList(d.adapter, vals)
	}
	return key, nil
}

func (p *plan) buildAggregate(s *stepPlan, in *stream, streams map[*output]*stream) *stream {
	in = p.together(in, s.in[0], s.key, s.name+bySuffix, s)
	if s.window != nil {
		return p.buildWindows(s, in, streams)
	}
	serde := aggregateSerde{plan: s.agg, fingerprint: s.agg.fingerprint()}
	return topology.Aggregate(in, s.name, serde, func(old recValue, r event) (recValue, error) {
		state, err := s.agg.add(old.state, &r)
		if err != nil {
			return recValue{}, s.fail(p, err)
		}
		v, err := s.agg.result(state)
		return recValue{val: v, state: state}, s.fail(p, err)
	}, topology.OnError(s.policy)).WithValues(p.values(s.outs[0], nil))
}

// each emits the elements of a flat_map's list.
func (s *stepPlan) each(r *event, emit topology.Emit[recKey, recValue]) error {
	v, err := s.items.eval(r)
	if err != nil {
		return err
	}
	list, ok := v.(traits.Lister)
	if !ok {
		return fmt.Errorf("flat_map needs a list, this is %s", v.Type().TypeName())
	}
	for it := list.Iterator(); it.HasNext() == types.True; {
		emit(event{Key: r.Key, Value: recValue{val: it.Next(), src: r.Value.src}})
	}
	return nil
}

func (p *plan) buildSink(s *stepPlan, in *stream) {
	from := s.in[0]
	keys, values := keySerde{from.key}, p.values(from, nil)
	if !p.plain {
		values.codec = s.codec
	}
	opts := []topology.SinkOption{topology.Name(s.name), topology.OnError(s.policy), topology.Guarantee(s.guarantee)}
	if s.key == nil && s.value == nil {
		topology.To(in, s.topic, keys, values, opts...)
		return
	}
	if s.value != nil {
		values.format = computedFormat(from.format, s.value.typ)
	}
	if s.key != nil {
		keys.typ = s.key.typ
	}
	out := topology.Map(in, func(r event) (k recKey, v recValue, err error) {
		k, v = r.Key, r.Value
		if s.key != nil {
			k, err = s.key.make(p.dec, &r)
		}
		if s.value != nil && err == nil {
			v, err = s.value.make(p.dec, &r)
		}
		return k, v, s.fail(p, err)
	}, topology.Name(s.name+"-record"), topology.OnError(s.policy))
	topology.To(out, s.topic, keys, values, opts...)
}

// make computes the value for a record.
func (t *template) make(d *decoder, r *event) (recValue, error) {
	v, err := t.eval(d, r)
	if err != nil {
		return recValue{}, err
	}
	if v == types.NullValue {
		// A value of null is a tombstone.
		return recValue{src: r.Value.src}, nil
	}
	out := recValue{val: v, src: r.Value.src}
	if t.expr != nil && t.expr.text == varValue {
		out.raw = r.Value.raw // passed on as it was read
	}
	return out, nil
}

func (t *template) eval(d *decoder, r *event) (ref.Val, error) {
	switch {
	case t.expr != nil:
		v, err := t.expr.eval(r)
		if r.Value.pair.noMatch(t.expr, err) {
			return types.NullValue, nil
		}
		return v, err
	case t.object != nil:
		o := &jsonObject{typ: t.object, dec: d, open: true, fields: make([]jsonField, len(t.parts))}
		for i, part := range t.parts {
			v, err := part.eval(d, r)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.object.fields[i].name, err)
			}
			o.fields[i].val = v
		}
		return o, nil
	}
	list := make([]ref.Val, len(t.parts))
	for i, part := range t.parts {
		v, err := part.eval(d, r)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		list[i] = v
	}
	return types.NewRefValList(d.adapter, list), nil
}
