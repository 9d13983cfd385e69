package pipeline

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/streamd/streamd/topology"
)

// FIELD L1: whatever bytes come in the middle of good records, the record is an error of the decoding that
// a policy can handle, and the next record is processed.
func TestUndecodableRecordsStopNothingElse(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: only, filter: "value.n > 0"}
  - {name: out, to: {topic: out}}
`))
	good := []byte(`{"n":1}`)
	for name, value := range map[string][]byte{
		"not JSON":          []byte(`{"n":`),
		"no bytes":          {},
		"bytes of anything": {0, 0xff, 0xfe, 1, 2},
		"nested 1 M deep":   append(bytes.Repeat([]byte(`{"n":`), 1_000_000), '1'),
		"lists 1 M deep":    append([]byte(`{"n":`), bytes.Repeat([]byte("["), 1_000_000)...),
		"20 MB of nothing":  bytes.Repeat([]byte(" "), 20<<20),
		"20 MB of a number": append([]byte(`{"n":`), bytes.Repeat([]byte("9"), 20<<20)...),
	} {
		err := h.send("in", []byte("k"), value)
		var oe *topology.OperatorError
		if !errors.As(err, &oe) || oe.Stage != topology.StageDecode {
			t.Errorf("%s: %.200v, want an error of the decoding", name, err)
		}
		if err := h.send("in", []byte("k"), good); err != nil {
			t.Fatalf("after %s: %v", name, err)
		}
	}
	if n := len(h.out["out"]); n != 7 {
		t.Errorf("%d good records came out, want 7", n)
	}
	// 20 MB of good JSON are a record like any other.
	if err := h.send("in", nil, []byte(`{"n":1,"text":"`+strings.Repeat("x", 20<<20)+`"}`)); err != nil {
		t.Errorf("a large good record: %.200v", err)
	}
}
