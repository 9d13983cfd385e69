package pipeline

import (
	"fmt"
	"time"

	"cel.dev/cel-go/common/types"

	"github.com/streamd/streamd/topology"
)

// Output is what a step of kind to writes, as a test of the file sees it.
type Output struct {
	// Step is the name of the step.
	Step string
	// Topic is where its records are in the topology of tests: a topic of its own for each step.
	Topic string
	// Upsert: it is a table outside of Kafka, of which the last record of each key is what remains.
	Upsert bool
}

// testTopicPrefix is in front of a step's name in the topics of TestTopology.
const testTopicPrefix = "test-output."

// TestTopology builds the pipeline for the tests of its file: as Topology, but each step of kind to writes a topic of its
// own, databases too, and these are returned in the order of the file.
func (p *Pipeline) TestTopology() (*topology.Topology, []Output, error) {
	if p.unset {
		return nil, nil, ErrUnset
	}
	plan, outputs := *p.plan, []Output(nil)
	plan.steps, plan.plain = nil, true
	for _, s := range p.plan.steps {
		if s.kind == opTo {
			c, out := s.onTopic()
			s, outputs = c, append(outputs, out)
		}
		plan.steps = append(plan.steps, s)
	}
	t, err := plan.build()
	if err != nil {
		return nil, nil, fmt.Errorf("pipeline: %q: %w", p.Name, err)
	}
	return t, outputs, nil
}

// onTopic is the step with a topic of its own; a table's records are its rows, with the primary key as their key.
func (s *stepPlan) onTopic() (*stepPlan, Output) {
	c := *s
	out := Output{Step: s.name, Topic: testTopicPrefix + s.name}
	if p := s.into; p != nil {
		out.Upsert = p.key != nil
	}
	c.topic = out.Topic
	return &c, out
}

// buildRows writes the rows of a table to a topic: a row that is to be deleted as a tombstone.
func (p *plan) buildRows(s *stepPlan, in *stream) {
	rows := topology.Map(in, func(r event) (recKey, recValue, error) {
		k, v, err := s.into.record(p.dec, &r)
		if o, ok := v.val.(*jsonObject); ok && o.fields[len(s.into.columns)].val == types.True {
			v = recValue{}
		}
		return k, v, s.fail(p, err)
	}, topology.Name(s.name+"-row"), topology.OnError(s.policy))
	key := keySerde{s.in[0].key}
	if s.into.key != nil {
		key.typ = s.into.key.typ
	}
	topology.To(rows, s.topic, key, valueSerde{format: formatJSON, typ: s.into.row.celType, dec: p.dec}, topology.Name(s.name), topology.OnError(s.policy))
}

// Settle is how long after its last record all windows of the pipeline are closed, what has no match in a join is known, and all timers
// have gone off. 0: it has nothing that waits.
func (p *Pipeline) Settle() time.Duration {
	var windows, idle, late time.Duration
	for _, s := range p.plan.steps {
		if s.window != nil {
			// One behind another waits for it, and a session ends a gap after its last record.
			windows += s.window.windows.Size() + s.window.windows.GracePeriod()
		}
		if s.join != nil {
			windows += s.join.settle()
		}
		if s.timer != nil {
			windows += s.timer.after
		}
	}
	if windows == 0 {
		return 0
	}
	for _, s := range p.plan.sources {
		x := topology.DefaultIdleness
		if s.idleness != nil {
			x = *s.idleness
		}
		idle, late = max(idle, x), max(late, s.outOfOrderness)
	}
	return windows + idle + late + time.Second
}
