package web

import (
	"fmt"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// large makes the status of a pipeline with many tasks, five of which restore, and a graph of many operators: a
// long chain with a branch at every tenth.
func large(tasks, operators int) (processor.Status, topology.Graph) {
	st := processor.Status{Pipeline: "large", State: processor.Restoring, Started: time.Unix(0, 0)}
	for i := range tasks {
		t := processor.TaskStatus{
			Name: fmt.Sprintf("in/%d", i), Partition: int32(i), State: processor.TaskRunning, Sequence: 1,
			Inputs: []processor.InputStatus{{Topic: "a.topic.with.a.long.name", Partition: int32(i), Next: 1_000_000, Lag: int64(i)}},
		}
		if i%100 == 99 {
			t.State, t.Remaining, t.RestoreMode = processor.TaskRestoring, 1000, "full"
		}
		st.Tasks = append(st.Tasks, t)
	}
	g := topology.Graph{Name: "large", Nodes: []topology.GraphNode{{ID: "topic:in", Kind: topology.NodeTopic, Name: "in", Subtopology: -1}}}
	for i := range operators {
		name := fmt.Sprintf("op-%d", i)
		st.Operators = append(st.Operators, processor.OperatorStatus{Name: name, Kind: "map", Counters: map[string]uint64{"in": 5, "out": 5}})
		g.Nodes = append(g.Nodes, topology.GraphNode{ID: "operator:" + name, Kind: topology.NodeOperator, Name: name, Operator: "map"})
		from := "topic:in"
		if i > 0 {
			from = fmt.Sprintf("operator:op-%d", i-1-i%10/9)
		}
		g.Edges = append(g.Edges, topology.GraphEdge{From: from, To: "operator:" + name, Case: -1})
	}
	return st, g
}
