package pipeline

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// The side outputs of a dedup step: STEP.duplicate and so on. STEP.unique is another name of STEP.
const (
	uniqueName    = "unique"
	duplicateName = "duplicate"
	conflictName  = "conflict"
	tooLateName   = "too_late"
)

// dedupOutputs makes the side outputs of a dedup step known. like is its main output.
func (r *planner) dedupOutputs(s *stepPlan, like output) {
	if s.name == "" {
		return
	}
	d := s.dedup
	side := func(name string, instead *yaml.Node) *output {
		out := like
		out.name, out.optional, out.instead = s.name+"."+name, true, instead
		r.addStream(&out)
		s.outs = append(s.outs, &out)
		return &out
	}
	d.duplicate = side(duplicateName, d.given["on_duplicate"])
	if d.payload {
		d.conflict = side(conflictName, d.given["on_conflict"])
	}
	d.tooLate = side(tooLateName, d.given["on_too_late"])
}

// taken says whether a step reads a side output.
func (out *output) taken() bool { return out != nil && out.used }

// otherwise returns the action for records of a side output, or none if a step reads it.
func (out *output) otherwise(a topology.Action) topology.Action {
	if out.taken() {
		return topology.ActionDefault
	}
	return a
}

func (p *plan) buildDedup(s *stepPlan, in *stream, streams map[*output]*stream) {
	d := s.dedup
	opts := []topology.DedupOption{
		topology.ID(d.id.find), topology.SameID(d.id.text()), topology.Retention(d.retention), topology.ExpectedIDs(d.expected), topology.FalsePositiveRate(d.rate),
		topology.OnConflict(d.conflict.otherwise(d.onConflict)), topology.OnMissingID(d.onMissing),
		topology.OnTooLate(d.tooLate.otherwise(d.onTooLate)), topology.OnDuplicate(d.duplicate.otherwise(d.onDuplicate)),
		topology.OnError(s.policy),
	}
	if d.stream {
		opts = append(opts, topology.ScopeStream())
	}
	if d.payload {
		opts = append(opts, topology.ComparePayload())
	}
	if p.keepLogs {
		opts = append(opts, topology.Always())
	}
	out := topology.DedupSplit(in, s.name, opts...)
	streams[s.outs[0]] = out.Unique
	for side, stream := range map[*output]*stream{d.duplicate: out.Duplicate, d.conflict: out.Conflict, d.tooLate: out.TooLate} {
		if side.taken() {
			streams[side] = stream
		}
	}
}

// alias finds a stream by another name of it: STEP.unique.
func (r *planner) alias(name string) *output {
	base, ok := strings.CutSuffix(name, "."+uniqueName)
	if !ok {
		return nil
	}
	for _, s := range r.plan.steps {
		if s.kind == opDedup && s.name == base {
			return r.streams[base]
		}
	}
	return nil
}
