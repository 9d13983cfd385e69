package processor

import (
	"context"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/topology"
)

// IDLog is where the dedup operators of a sub-topology keep their IDs.
type IDLog struct {
	Sub *topology.Subtopology
	// Topic is the ID log; its partition n is task n's.
	Topic broker.Topic
	// Inputs are the topics that the tasks read.
	Inputs []broker.Topic
}

// IDLogs makes the internal topics of an application that are missing and checks all, as its start does, and returns the ID
// logs. It is for tools that write into one before the application runs. Errors: as those of App.Run about topics.
func IDLogs(ctx context.Context, c broker.Cluster, topo *topology.Topology) ([]IDLog, error) {
	plans, err := buildPlan(ctx, c, topo, &config{})
	if err != nil {
		return nil, err
	}
	var out []IDLog
	for _, p := range plans {
		if len(p.sub.Dedups) > 0 {
			out = append(out, IDLog{Sub: p.sub, Topic: p.idLog, Inputs: p.inputs})
		}
	}
	return out, nil
}
