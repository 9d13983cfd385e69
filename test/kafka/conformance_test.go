//go:build kafka

package kafka

import (
	"testing"

	"github.com/streamd/streamd/internal/brokertest"
	"github.com/streamd/streamd/internal/kafka/faultnet"
)

// TestConformance runs the suite of facts. The late requests among them (EndTxn, TxnOffsetCommit,
// Produce, InitProducerId delivered while a newer transaction is open) are the hazards of transaction
// protocol version 1.
func TestConformance(t *testing.T) {
	c, n := open(t)
	brokertest.Run(t, "kafka", prefix(), &brokertest.Env{
		Cluster:     c,
		Refuse:      func(api string, code int16, times int) { n.Refuse(faultnet.KeyOf(api), code, times) },
		LoseRequest: func(api string) { n.LoseRequest(faultnet.KeyOf(api)) },
		LoseAnswer:  func(api string) { n.LoseAnswer(faultnet.KeyOf(api)) },
		Hold: func(api string) func() {
			h := n.Hold(faultnet.KeyOf(api))
			return func() {
				if err := h.Deliver(); err != nil {
					t.Errorf("deliver %s: %v", api, err)
				}
			}
		},
		DeleteTopic: func(name string) { deleteTopic(t, name) },
		TimesOut:    true,
	})
}
