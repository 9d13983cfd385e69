package kafka

import (
	"errors"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// KIP-447: with a negative generation the coordinator checks neither member nor generation. Such a commit of offsets is
// refused here, before anything is sent, and is not taken for one whose outcome is unknown. (CRASH 17)
func TestCommitWithoutGenerationIsRefused(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 1)
	p := newProducer(t, f.c, "x")
	addValues(p, tpOf(topic, 0), "v")
	offsets := []broker.OffsetCommit{{TopicPartition: tpOf("in", 0), Next: 1}}
	_, out, err := p.Commit(testContext(t), broker.GroupMeta{Group: "g", Member: "m", Generation: -1}, offsets)
	if out != broker.NotCommitted || !errors.Is(err, broker.ErrIllegalGeneration) {
		t.Errorf("%v, %v", out, err)
	}
	ends, err := f.c.HighWatermarks(testContext(t), []record.TopicPartition{tpOf(topic, 0)})
	if err != nil || ends[tpOf(topic, 0)] != 0 {
		t.Errorf("the topic ends at %v, %v: something was sent", ends, err)
	}
}
