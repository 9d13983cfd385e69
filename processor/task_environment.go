package processor

import "github.com/streamd/streamd/topology"

var _ topology.Environment = (*Task)(nil)

// ClusterID implements topology.Environment.
func (t *Task) ClusterID() string { return t.cfg.clusterID }

// TopicID implements topology.Environment. It knows all sources, also those whose topic has no such
// partition: the chain is made before it is known which records come.
func (t *Task) TopicID(topic string) string {
	for i, s := range t.cfg.sub.Sources {
		if !s.Internal && s.Topic == topic {
			return t.cfg.inputIDs[i]
		}
	}
	return ""
}

// Partitions implements topology.Environment.
func (t *Task) Partitions(sink int) int32 { return t.cfg.sinks[sink].partitions }
