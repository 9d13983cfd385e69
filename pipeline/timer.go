package pipeline

import (
	"errors"
	"time"

	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// timerPlan is a timer step: a record for each key for which a time has passed since a record set its timer, and none has
// set it again or cancelled it. The step's key is whose timer it is, its value what the record says, computed of the record that set it.
type timerPlan struct {
	after       time.Duration
	wall        bool
	set, cancel *expr // conditions; nil: all records, none
}

// timersSuffix and valuesSuffix are behind a timer step's name in those of its stores.
const (
	timersSuffix = "-timers"
	valuesSuffix = "-values"
)

func (r *planner) timer(s *stepPlan, n *yaml.Node, out *output) {
	d, in := r.d, s.in[0]
	out.value, out.format, out.positions, out.keyed, out.window, out.told = types.DynType, formatJSON, false, true, false, false
	o := d.object(s.node, n, opTimer)
	if o == nil {
		return
	}
	t := &timerPlan{}
	s.timer = t
	if n := o.need("by"); n != nil {
		if s.key = r.keyOf(n, "by", s.scope); s.key != nil {
			out.key = s.key.typ
		}
	}
	if n := o.need("after"); n != nil {
		found := len(d.diags)
		if t.after = d.duration(n, "after"); t.after < time.Millisecond && len(d.diags) == found && !d.unset {
			d.errorf(n, RuleInvalidValue, "after must be at least 1ms")
		}
	}
	t.set, t.cancel = r.condition(o, "set", s.scope), r.condition(o, "cancel", s.scope)
	if n := o.get("clock"); n != nil {
		t.wall = d.choice(n, "clock", "event", "wall") == "wall"
	}
	value := o.need("value")
	o.finish()
	if value == nil {
		return
	}
	// The value is computed with the record at hand, before a topic may come between.
	if s.value = r.template(value, "value", s.name+".value", s.scope, 0); s.value != nil {
		out.value, out.format = s.value.typ, computedFormat(in.format, s.value.typ)
		out.told = s.value.uses(varWindow)
	}
}

// condition reads an expression that is true or false; nil if it is not there.
func (r *planner) condition(o *object, name string, sc *scope) *expr {
	n := o.get(name)
	if n == nil {
		return nil
	}
	e := r.c.expression(n, name, sc)
	if e != nil {
		r.wantType(n, name, e.typ, types.BoolType)
		r.notePositions(e)
	}
	return e
}

// buildTimer builds the step. What a timer says waits in a store beside it: computed once, by the record that set it.
func (p *plan) buildTimer(s *stepPlan, in *stream) *stream {
	t, keys := s.timer, keySerde{s.key.typ}
	declare := topology.Timers[recKey]
	if t.wall {
		declare = topology.WallTimers[recKey]
	}
	timers, waiting := declare(s.name+timersSuffix, keys), topology.KeyValue(s.name+valuesSuffix, keys, p.values(s.outs[0], nil))
	on := func(ctx topology.Context, r event, _ topology.Emit[recKey, recValue]) error {
		if r.Key.null() {
			return s.fail(p, errors.New("a record without a key has no timer: by needs a value of the record"))
		}
		r.Key.window = nil
		if t.cancel != nil {
			off, err := holds(t.cancel, &r)
			if err != nil || off {
				return errors.Join(s.fail(p, err), timers.Cancel(ctx, r.Key), waiting.Delete(ctx, r.Key))
			}
		}
		if t.set != nil {
			if set, err := holds(t.set, &r); err != nil || !set {
				return s.fail(p, err)
			}
		}
		v, err := s.value.make(p.dec, &r)
		if err != nil {
			return s.fail(p, err)
		}
		from := r.Timestamp
		if t.wall {
			if from, err = timers.Now(ctx); err != nil {
				return err
			}
		}
		return errors.Join(waiting.Put(ctx, r.Key, v), timers.Set(ctx, r.Key, from.Add(t.after)))
	}
	fire := func(ctx topology.Context, due topology.Timer[recKey], emit topology.Emit[recKey, recValue]) error {
		v, _, err := waiting.Get(ctx, due.Key)
		if err != nil {
			return err
		}
		emit(record.Record[recKey, recValue]{Key: due.Key, Value: v})
		return waiting.Delete(ctx, due.Key)
	}
	left := p.together(in, s.in[0], s.key, s.name+bySuffix, s)
	return topology.Process(left, s.name, on, topology.WithStore(waiting), topology.OnTimer(timers, fire), topology.PreserveKey(), topology.OnError(s.policy)).
		WithKeys(keys).WithValues(p.values(s.outs[0], nil))
}
