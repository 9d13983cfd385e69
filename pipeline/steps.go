package pipeline

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/serde/registry"
	"github.com/streamd/streamd/topology"
)

// plan is what a file computes, checked and compiled. It is not changed any more once it is loaded.
type plan struct {
	file, name string
	sources    []*sourcePlan
	tables     []*tablePlan
	steps      []*stepPlan
	structs    map[string]*structType
	dec        *decoder
	positions  bool // an expression asks for the position of a record
	keepLogs   bool // of all dedup steps
	plain      bool // no codec is used: a test of the file has JSON on both sides
}

// output is a stream of records between two steps.
type output struct {
	name       string
	key, value *types.Type
	format     string
	positions  bool       // the records' positions and topics are known
	keyed      bool       // the records are in their key's partition, as far as anybody can know
	window     bool       // window.start and window.end are known
	told       bool       // with window: they are in the value already
	unknown    bool       // a mistake that was reported hides what the records are: each name that there can be is known
	table      *tablePlan // it is no stream, but a table with these rows
	node       *yaml.Node
	used       bool
	// A side output need not be used: then instead, an option that may be given, says what becomes of its records.
	optional bool
	instead  *yaml.Node // the option's key; nil: not given
}

type sourcePlan struct {
	out         *output
	topic       string
	id          *idPlan // nil: the header record-id, or the position
	onMissingID topology.Action
	timestamp   *expr
	policy      topology.Policy
	start       string

	outOfOrderness time.Duration
	idleness       *time.Duration  // nil: the default
	events         bool            // the values are CloudEvents
	debezium       bool            // the values are changes of Debezium
	wire           bool            // the values are avro or protobuf
	codec          *registry.Codec // of values whose schema is in the registry; nil: others
	table          bool            // a record without a value deletes a row

	entrance   topology.Entrance  // "": others produce to the topic
	identified bool               // with entrance: the sender gives records their IDs
	bounds     []topology.Finding // with entrance: what its level rests on
}

type stepPlan struct {
	name, kind string
	line       int
	node       *yaml.Node // the operator's key
	in         []*output
	outs       []*output
	policy     topology.Policy
	scope      *scope

	dedup  *dedupPlan
	filter *expr
	value  *template // map, to, join, timer
	items  *expr     // flat_map
	key    *keyPlan  // key_by, to, aggregate, join, timer
	agg    *aggregatePlan
	window *windowPlan // aggregate; nil: none
	join   *joinPlan
	timer  *timerPlan
	cases  []*expr
	rest   bool // the last of outs is what no case takes
	topic  string
	// guarantee is the topic's own; empty: the pipeline's.
	guarantee topology.Level
	into      *intoPlan       // to: instead of topic
	codec     *registry.Codec // to: nil: JSON, or as it was read
}

// idPlan is an ID: one expression, or a list of them.
type idPlan struct {
	parts []*expr
	list  bool
}

// keyPlan is a key: one expression, or a list of them.
type keyPlan struct {
	parts []*expr
	list  bool
	typ   *types.Type
}

type dedupPlan struct {
	id        *idPlan
	retention time.Duration
	expected  int
	rate      float64
	stream    bool
	payload   bool

	onConflict, onMissing, onTooLate, onDuplicate topology.Action
	given                                         map[string]*yaml.Node // the keys of those that the file gives

	duplicate, conflict, tooLate *output // side outputs; nil: there are none
}

// template is a value to be computed: an expression, or an object or list of templates.
type template struct {
	expr   *expr
	typ    *types.Type
	object *structType
	parts  []*template // of the object, in the order of its fields; or of the list
}

// planner reads sources and steps.
type planner struct {
	d         *document
	p         *Pipeline
	c         *compiler
	plan      *plan
	streams   map[string]*output // by what a "from" says
	order     []*output          // the same in the order of the file
	errorsKey *yaml.Node
	// processingKey is nil if there is no such section.
	processingKey *yaml.Node
	stepsNode     *yaml.Node
	registry      *registry.Client // nil: not needed so far
	deadEnds      []*yaml.Node     // where dead_letter is asked for

	hasDeadLetter bool
}

// read reads types, sources and steps.
func (r *planner) read(o *object) {
	structs := map[string]*structType{}
	if n := o.get("types"); n != nil {
		structs = r.d.readTypes(n)
	}
	c, err := newCompiler(r.d, structs)
	if err != nil {
		r.d.errorf(o.node, RuleExpression, "%v", err)
		return
	}
	r.c = c
	r.plan = &plan{file: r.d.file, name: r.p.Name, structs: structs, dec: c.dec, keepLogs: r.p.Processing.KeepLogs}
	sources, n := o.pair("sources")
	if n != nil {
		r.inputs(sources, n, "sources", "source", r.source)
	}
	if key, n := o.pair("tables"); n != nil {
		r.inputs(key, n, "tables", "table", r.table)
	} else if sources == nil {
		r.d.errorf(o.node, RuleMissingField, "missing field %q in %s", "sources", o.what)
	}
	if key, n := o.pair("steps"); n != nil {
		r.stepsNode = key
		r.steps(n)
	} else {
		r.d.errorf(o.node, RuleMissingField, "missing field %q in %s", "steps", o.what)
	}
	r.lint()
}

// inputs reads a section of inputs by their names, such as sources.
func (r *planner) inputs(key, n *yaml.Node, section, one string, read func(key, n *yaml.Node)) {
	o := r.d.object(key, n, section)
	if o == nil {
		return
	}
	for i := range o.members {
		m := &o.members[i]
		m.used = true
		if r.d.checkName(m.key, m.key.Value, "the name of a "+one) {
			read(m.key, m.value)
		}
	}
	if len(o.members) == 0 {
		r.d.errorf(key, RuleInvalidValue, "%s is empty", section)
	}
}

func (r *planner) source(key, n *yaml.Node) {
	d, s := r.d, newSourcePlan(key)
	r.plan.sources = append(r.plan.sources, s)
	r.addStream(s.out)
	o := d.object(key, n, fmt.Sprintf("source %q", s.out.name))
	if o == nil {
		return
	}
	format := r.sourceFields(o, s, func(sc *scope) {
		if n := o.get("id"); n != nil {
			s.id = r.id(n, sc)
		}
		if n := o.get("on_missing_id"); n != nil {
			s.onMissingID = d.action(n, "on_missing_id", topology.Stop, topology.DeadLetter, topology.Forward)
			r.deadLetter(n, s.onMissingID == topology.DeadLetter)
		}
	})
	if n := o.get("start"); n != nil {
		if word := d.choice(n, "start", "earliest", "latest"); word == "latest" {
			d.errorf(n, RuleNotAvailable, `start "latest" is not available in this version`).
				hint("a new consumer group starts at the earliest record, so that none is lost")
		}
	}
	in := r.ingress(o, s)
	o.finish()
	r.p.Sources = append(r.p.Sources, Source{Name: s.out.name, Topic: s.topic, Format: format, Start: s.start, Ingress: in})
}

// newSourcePlan is a topic of which nothing is known yet but its name in the file.
func newSourcePlan(key *yaml.Node) *sourcePlan {
	out := &output{name: key.Value, key: cel.NullableType(cel.StringType), value: types.DynType, format: formatJSON, positions: true, keyed: true, node: key}
	return &sourcePlan{out: out, start: "earliest"}
}

// sourceFields reads what sources and tables have in common; own reads the fields that only one of them has.
func (r *planner) sourceFields(o *object, s *sourcePlan, own func(*scope)) (format string) {
	d, out := r.d, s.out
	if n := o.need("topic"); n != nil {
		s.topic = d.topic(n, "topic")
	}
	format = formatJSON
	if n := o.get("format"); n != nil {
		switch format = r.d.choice(n, "format", inputFormats()...); format {
		case formatString, formatBytes:
			out.format = format
		case formatCloudEvents:
			s.events = true // their data is JSON, as is what codecs give
		case formatDebezium:
			s.debezium = true
		}
		r.sourceCodec(o, s, format, n)
	} else if key, _ := o.pair("encoding"); key != nil {
		d.errorf(key, RuleInvalidValue, "encoding has a meaning with format debezium only")
	}
	format = cmp.Or(format, formatJSON)
	switch out.format {
	case formatString:
		out.value = types.StringType
	case formatBytes:
		out.value = types.BytesType
	}
	if n := o.get("type"); n != nil {
		if t := d.readType(n, "type", nil, r.plan.structs, 0); t != nil {
			if out.format != formatJSON {
				d.errorf(n, RuleInvalidValue, "type has no meaning with format %s", out.format)
			} else {
				out.value = t
			}
		}
	}
	if s.debezium && !s.table {
		out.value = r.changeType(out.name, out.value)
	}
	sc := r.c.scope(out)
	own(sc)
	if n := o.get("timestamp"); n != nil {
		if s.timestamp = r.c.expression(n, "timestamp", sc); s.timestamp != nil {
			r.wantType(n, "timestamp", s.timestamp.typ, types.TimestampType, types.IntType)
		}
	}
	if n := o.get("out_of_orderness"); n != nil {
		s.outOfOrderness = d.duration(n, "out_of_orderness")
	}
	if n := o.get("idleness"); n != nil {
		s.idleness = d.idleness(n)
	}
	if n := o.get("on_error"); n != nil {
		s.policy = d.policy(n)
		r.deadLetter(n, s.policy == topology.PolicyDeadLetter)
	}
	return format
}

func (r *planner) addStream(out *output) {
	if old := r.streams[out.name]; old != nil {
		r.d.errorf(out.node, RuleDuplicateName, "%q is the name of something at line %d already", out.name, old.node.Line)
		return
	}
	for _, t := range r.plan.tables {
		if t.src != nil && t.src.out.name == out.name {
			r.d.errorf(out.node, RuleDuplicateName, "%q is the name of a table at line %d already", out.name, t.src.out.node.Line)
			return
		}
	}
	r.streams[out.name] = out
	r.order = append(r.order, out)
}

// wantType reports an expression whose type is none of the wanted ones. A type that is not known before
// the record is there is checked then.
func (r *planner) wantType(n *yaml.Node, what string, t *types.Type, want ...*types.Type) bool {
	if t.Kind() == types.DynKind {
		return true
	}
	words := make([]string, len(want))
	for i, w := range want {
		if t.Kind() == w.Kind() && (w.Kind() != types.OpaqueKind || t.TypeName() == w.TypeName()) {
			return true
		}
		words[i] = typeText(w)
	}
	r.d.errorf(n, RuleExpression, "%s must be %s, this is %s", what, strings.Join(words, " or "), typeText(t))
	return false
}

// id reads an ID: an expression, or a list of expressions.
func (r *planner) id(n *yaml.Node, sc *scope) *idPlan {
	v := r.d.visit(n)
	if v == nil {
		return nil
	}
	id := &idPlan{list: v.Kind == yaml.SequenceNode}
	parts := r.d.list(n, "id", true)
	if id.list && len(parts) == 0 {
		r.d.errorf(n, RuleInvalidValue, "id is an empty list")
	}
	ok := len(parts) > 0
	for _, p := range parts {
		e := r.c.expression(p, "id", sc)
		if e == nil || !r.identifies(p, "an ID", e.typ) {
			ok = false
			continue
		}
		id.parts = append(id.parts, e)
		r.notePositions(e)
	}
	if !ok {
		return nil
	}
	return id
}

// notePositions notes that an expression needs the records' positions.
func (r *planner) notePositions(e *expr) {
	if e.uses[varPosition] || e.uses[varPartition] || e.uses[varOffset] {
		r.plan.positions = true
	}
}

// identifies reports a type whose values identify nothing.
func (r *planner) identifies(n *yaml.Node, what string, t *types.Type) bool {
	return r.wantType(n, what, t, types.StringType, types.IntType, types.BytesType, decimalTypeValue, types.BoolType, types.TimestampType)
}

// keyOf reads a key: an expression, or a list of expressions.
func (r *planner) keyOf(n *yaml.Node, what string, sc *scope) *keyPlan {
	v := r.d.visit(n)
	if v == nil {
		return nil
	}
	k := &keyPlan{list: v.Kind == yaml.SequenceNode}
	parts := r.d.list(n, what, true)
	if k.list && len(parts) == 0 {
		r.d.errorf(n, RuleInvalidValue, "%s is an empty list", what)
	}
	ok := len(parts) > 0
	var element *types.Type
	for _, p := range parts {
		e := r.c.expression(p, what, sc)
		if e == nil || !r.identifies(p, "a key", e.typ) {
			ok = false
			continue
		}
		r.notePositions(e)
		k.parts = append(k.parts, e)
		t := keyType(e.typ)
		if k.list {
			t = plainType(e.typ) // in a list, written as JSON, a value keeps its type
		}
		if element != nil && element.TypeName() != t.TypeName() {
			t = types.DynType
		}
		element = t
	}
	if !ok {
		return nil
	}
	k.typ = element
	if k.list {
		k.typ = types.NewListType(element)
	}
	return k
}

// keyType is the type of a key behind a repartition topic: one whose type was not known is a text there.
func keyType(t *types.Type) *types.Type {
	if t = plainType(t); t.Kind() == types.DynKind {
		return types.StringType
	}
	return t
}

// plainType is the type that a computed value has for the steps behind: what can be written to JSON and read back.
func plainType(t *types.Type) *types.Type {
	switch t.Kind() {
	case types.StringKind:
		return types.StringType // without the "or null" of a source's key
	case types.StructKind, types.IntKind, types.DoubleKind, types.BoolKind, types.BytesKind, types.TimestampKind:
		return t
	case types.ListKind:
		return types.NewListType(plainType(t.Parameters()[0]))
	}
	if isDecimal(t) {
		return decimalTypeValue
	}
	return types.DynType
}

// template reads a value to be computed. name is what the type of an object is called.
func (r *planner) template(n *yaml.Node, what, name string, sc *scope, depth int) *template {
	v := r.d.visit(n)
	switch {
	case v == nil:
		return nil
	case depth > maxDepth:
		r.d.errorf(n, RuleTooLarge, "%s is nested more than %d levels deep", what, maxDepth)
		return nil
	case v.Kind == yaml.MappingNode:
		return r.objectTemplate(n, what, name, sc, depth)
	case v.Kind == yaml.SequenceNode:
		t := &template{typ: types.NewListType(types.DynType)}
		for i, e := range v.Content {
			part := r.template(e, what, fmt.Sprintf("%s[%d]", name, i), sc, depth+1)
			if part == nil {
				return nil
			}
			t.parts = append(t.parts, part)
		}
		return t
	}
	e := r.c.expression(n, what, sc)
	if e == nil {
		return nil
	}
	if k := e.typ.Kind(); k == types.TypeKind || k == types.ErrorKind {
		r.d.errorf(n, RuleExpression, "a %s is no value that can be written", typeText(e.typ))
		return nil
	}
	r.notePositions(e)
	return &template{expr: e, typ: plainType(e.typ)}
}

func (r *planner) objectTemplate(n *yaml.Node, what, name string, sc *scope, depth int) *template {
	o := r.d.object(n, n, what)
	if o == nil {
		return nil
	}
	t := &template{}
	var fields []structField
	if len(o.members) == 0 {
		r.d.errorf(n, RuleInvalidValue, "%s has no fields", what)
	}
	for i := range o.members {
		m := &o.members[i]
		m.used = true
		part := r.template(m.value, fmt.Sprintf("field %q", m.key.Value), name+"."+m.key.Value, sc, depth+1)
		if part == nil {
			// The field is there all the same: no second error for each use of it.
			part = &template{typ: types.DynType}
		}
		fields = append(fields, structField{m.key.Value, part.typ})
		t.parts = append(t.parts, part)
	}
	t.object = newStructType(name, fields)
	r.plan.structs[name] = t.object
	t.typ = t.object.celType
	return t
}

// deadLetter notes that a node asks for a dead letter topic.
func (r *planner) deadLetter(n *yaml.Node, asked bool) {
	if asked {
		r.deadEnds = append(r.deadEnds, n)
	}
}
