package pipeline

import (
	"errors"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// windowPlan is the window of an aggregate step.
type windowPlan struct {
	windows window.Windows
	onClose bool
	onLate  topology.Action
	late    *output // the records that came when all of their windows were closed
}

// lateName is the output of an aggregate with a window for its late records: STEP.late.
const lateName = "late"

// windowTypeName is the type of the variable window. No type of a file can have a dot in its name.
const windowTypeName = "streamd.window"

// newWindowType makes the type of the variable window.
func newWindowType() *structType {
	return newStructType(windowTypeName, []structField{{"start", types.TimestampType}, {"end", types.TimestampType}})
}

// window reads window, emit and on_late of an aggregate step; nil without a window.
func (r *planner) window(o *object) *windowPlan {
	d, w := r.d, &windowPlan{}
	emitKey, emit := o.pair("emit")
	if emit != nil {
		w.onClose = d.choice(emit, "emit", "on_update", "on_close") == "on_close"
	}
	lateKey, late := o.pair("on_late")
	if late != nil {
		w.onLate = d.action(late, "on_late", topology.Drop, topology.Stop, topology.DeadLetter)
		r.deadLetter(late, w.onLate == topology.DeadLetter)
	}
	key, n := o.pair("window")
	if n == nil {
		if w.onClose {
			d.errorf(emitKey, RuleInvalidValue, "emit: on_close needs a window: without one a key is never finished").hint("for example window: {tumbling: 1m, grace: 30s}")
		}
		if lateKey != nil {
			d.errorf(lateKey, RuleInvalidValue, "on_late has a meaning with a window only")
		}
		return nil
	}
	w.late = &output{instead: lateKey}
	r.windowKind(w, key, n)
	return w
}

// windowKind reads how time is cut.
func (r *planner) windowKind(w *windowPlan, key, n *yaml.Node) {
	d, found := r.d, len(r.d.diags)
	o := d.object(key, n, "window")
	if o == nil {
		return
	}
	kinds := []string{"tumbling", "hopping", "sliding", "session"}
	var kind *yaml.Node
	count := 0
	for _, name := range kinds {
		k, v := o.pair(name)
		if v == nil {
			continue
		}
		kind = k
		count++
		switch name {
		case "tumbling":
			w.windows = window.Tumbling(d.duration(v, name))
		case "sliding":
			w.windows = window.Sliding(d.duration(v, name))
		case "session":
			w.windows = window.Session(d.duration(v, name))
		default:
			w.windows = r.hopping(k, v)
		}
	}
	if n := o.get("grace"); n != nil {
		w.windows = w.windows.Grace(d.duration(n, "grace"))
	}
	o.finish()
	if count != 1 {
		d.errorf(key, RuleInvalidValue, "a window has exactly one of %s, this one has %d", quotedList(kinds), count)
	}
	if len(d.diags) > found || d.unset {
		return // what was not understood is not judged
	}
	if err := w.windows.Validate(); err != nil {
		for line := range strings.Lines(err.Error()) {
			d.errorf(kind, RuleInvalidValue, "%s", strings.TrimPrefix(strings.TrimSpace(line), "window: "))
		}
	}
}

// hopping reads {size: 5m, every: 1m}.
func (r *planner) hopping(key, n *yaml.Node) window.Windows {
	o := r.d.object(key, n, "hopping")
	if o == nil {
		return window.Windows{}
	}
	size, every := o.need("size"), o.need("every")
	o.finish()
	if size == nil || every == nil {
		return window.Windows{}
	}
	return window.Hopping(r.d.duration(size, "size"), r.d.duration(every, "every"))
}

// addLate makes the stream of late records known: they are as the aggregate got them.
func (r *planner) addLate(s *stepPlan, nameNode *yaml.Node) {
	in, late := s.in[0], s.window.late
	instead := late.instead
	*late = *in
	late.name, late.node, late.used, late.optional, late.instead = s.name+"."+lateName, nameNode, false, true, instead
	late.keyed = true
	if s.key != nil && !s.direct() {
		late.key, late.positions, late.window = s.key.typ, false, false
	}
	if s.name != "" {
		r.addStream(late)
		s.outs = append(s.outs, late)
	}
}

// direct says whether the records have the aggregate's key already, and are in its partition: then they need not go through
// a topic.
func (s *stepPlan) direct() bool { return s.key.direct(s.in[0]) }

// windowed is an event with the key of a window's result.
type windowed = record.Record[window.Key[recKey], recValue]

// buildWindows builds an aggregate over windows. What is kept, and merged, is the state alone; the step's value is made
// of it when it is handed on.
func (p *plan) buildWindows(s *stepPlan, in *stream, streams map[*output]*stream) *stream {
	w := s.window
	cut := topology.WindowedBy(in, w.windows)
	emit := topology.EmitOnUpdate()
	if w.onClose {
		emit = topology.EmitOnClose()
	}
	opts := []topology.AggregateOption{emit, topology.OnError(s.policy), topology.MergeWith(func(a, b recValue) (recValue, error) {
		m, err := s.agg.merge(a.state, b.state)
		return recValue{state: m}, s.fail(p, err)
	})}
	if !w.late.used {
		opts = append(opts, topology.OnLate(w.onLate))
	}
	serde := aggregateSerde{plan: s.agg, fingerprint: s.agg.fingerprint()}
	out := topology.Aggregate(cut, s.name, serde, func(old recValue, r event) (recValue, error) {
		state, err := s.agg.add(old.state, &r)
		return recValue{state: state}, s.fail(p, err)
	}, opts...)
	if w.late.used {
		streams[w.late] = cut.Late()
	}
	return topology.Map(out, func(r windowed) (recKey, recValue, error) {
		key := r.Key.Key
		key.window = &r.Key.Window
		v, err := s.agg.result(r.Value.state)
		return key, recValue{val: v}, s.fail(p, err)
	}, topology.Name(s.name+resultSuffix), topology.PreserveKey(), topology.OnError(s.policy)).WithKeys(keySerde{s.key.typ}).WithValues(p.values(s.outs[0], nil))
}

// resultSuffix is behind a step's name in the name of the operator that makes the values of its windows.
const resultSuffix = "-result"

// windowValue is the variable window of a record.
func windowValue(w *window.Window, d *decoder) (ref.Val, error) {
	if w == nil {
		return nil, errors.New("the window of the record is not known here")
	}
	return &jsonObject{typ: d.structs[windowTypeName], dec: d, open: true, fields: []jsonField{
		{val: types.Timestamp{Time: w.Start.UTC()}}, {val: types.Timestamp{Time: w.End.UTC()}},
	}}, nil
}

// uses says whether a variable stands anywhere in the template.
func (t *template) uses(variable string) bool {
	if t == nil {
		return false
	}
	if t.expr != nil {
		return t.expr.uses[variable]
	}
	for _, part := range t.parts {
		if part.uses(variable) {
			return true
		}
	}
	return false
}

// uses says whether a variable stands anywhere in the key.
func (k *keyPlan) uses(variable string) bool {
	if k != nil {
		for _, e := range k.parts {
			if e.uses[variable] {
				return true
			}
		}
	}
	return false
}

// lintWindow looks for results of windows that are written without a word of which window they are.
func (r *planner) lintWindow() {
	for _, s := range r.plan.steps {
		if s.kind != opTo || s.topic == "" {
			continue
		}
		if in := s.in[0]; in.window && !in.told && !s.key.uses(varWindow) && !s.value.uses(varWindow) {
			r.d.warnf(s.node, RuleWindowNotWritten, "what is written does not say which window it is of").
				hint("for example value: {from: window.start, to: window.end, ...}").
				hint("in a compacted topic the next window of the key replaces this one: key: [key, window.start]")
		}
	}
}

// never is an idleness: an input without records holds up the time of its task.
const never = "never"

// idleness reads a duration, or never.
func (d *document) idleness(n *yaml.Node) *time.Duration {
	s, ok := d.scalar(n, "idleness")
	if !ok || s.unset {
		return nil
	}
	idle := time.Duration(-1)
	if s.text != never {
		before := len(d.diags)
		if idle = d.duration(n, "idleness"); idle <= 0 {
			if len(d.diags) == before {
				d.errorf(n, RuleInvalidValue, "idleness must be at least 1ms, or never")
			}
			return nil
		}
	}
	return &idle
}
