package processor

import (
	"strings"
	"testing"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestDeadLettersDoNotComeBack: a dead letter topic that the topology reads would feed it the same bad record for ever.
func TestDeadLettersDoNotComeBack(t *testing.T) {
	b := topology.New("app")
	topology.To(topology.From(b, "in", serde.String(), serde.String()), "out", serde.String(), serde.String())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for topic, bad := range map[string]bool{"in": true, "out": false, "dead": false} {
		_, err := New(topo, WithBrokers("127.0.0.1:1"), WithStateDir(t.TempDir()), WithErrorPolicy(topology.PolicyDeadLetter, topic))
		if (err != nil) != bad || bad && !strings.Contains(err.Error(), `"in" is read by source`) {
			t.Errorf("dead letters to %q: %v", topic, err)
		}
	}
}
