package processor

import (
	"bytes"
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

// TestKeysAreCopied: who wipes a key once it is given does not have the state encrypted under zeros.
func TestKeysAreCopied(t *testing.T) {
	key, old := bytes.Repeat([]byte("k"), 32), bytes.Repeat([]byte("o"), 32)
	var c config
	WithStateKey(key, old).apply(&c)
	clear(key)
	clear(old)
	if c.stateKey[0] != 'k' || c.oldKey[0] != 'o' {
		t.Error("the keys are the caller's")
	}
}
