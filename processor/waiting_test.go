package processor

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// distant is a serde of whole numbers that needs something from elsewhere for each value of which asks is true.
type distant struct {
	serde.Serde[int64]
	down *bool
	asks func(v int64) bool
}

func (d distant) Decode(b []byte) (int64, error) {
	v := int64(binary.BigEndian.Uint64(b))
	if d.asks(v) && *d.down {
		return 0, fmt.Errorf("the schema of %d: %w", v, serde.ErrUnavailable)
	}
	return v, nil
}

func (d distant) Append(dst []byte, v int64) ([]byte, error) {
	if d.asks(v) && *d.down {
		return nil, fmt.Errorf("the schema of %d: %w", v, serde.ErrUnavailable)
	}
	return d.Serde.Append(dst, v)
}

// TestUnavailableIsNoFaultOfTheRecord: what a record depends on is away. No policy may take the record for bad: it waits, what
// was before it is committed, the status says why, and all goes on when it is back; also in a new process.
func TestUnavailableIsNoFaultOfTheRecord(t *testing.T) {
	for _, encode := range []bool{false, true} {
		for _, policy := range []topology.Policy{topology.PolicyStop, topology.PolicySkip, topology.PolicyDeadLetter} {
			down := true
			d := distant{Serde: serde.Int64(), down: &down, asks: func(v int64) bool { return v == 3 }}
			in, out := serde.Serde[int64](d), serde.Int64()
			if encode {
				in, out = out, in
			}
			b := topology.New("app")
			u := topology.Dedup(topology.From(b, "in", serde.String(), in, topology.IDHeader("id")), "unique", topology.Retention(time.Hour))
			topology.To(u, "out", serde.String(), out)
			topo, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, topo)
			w.opts = []Option{WithErrorPolicy(policy, "dlq")}
			s := w.live()
			for i := range int64(5) {
				w.send(0, "k", fmt.Sprint(i), i)
				w.send(0, "k", fmt.Sprint(i), i) // twice
			}
			w.settle(s)
			if got := w.read("out"); !slices.Equal(got, []string{"k=0", "k=1", "k=2"}) {
				t.Errorf("encode %t, policy %d: %v while it is away", encode, policy, got)
			}
			if reason := s.Status().Tasks[0].Reason; !strings.Contains(reason, "the schema of 3") {
				t.Errorf("encode %t, policy %d: the status says %q", encode, policy, reason)
			}
			s = w.live() // the process is killed meanwhile
			w.settle(s)
			down = false
			w.settle(s)
			if got := w.read("out"); !slices.Equal(got, []string{"k=0", "k=1", "k=2", "k=3", "k=4"}) {
				t.Errorf("encode %t, policy %d: %v when it is back", encode, policy, got)
			}
			if dead, reason := w.records("dlq"), s.Status().Tasks[0].Reason; len(dead) > 0 || reason != "" {
				t.Errorf("encode %t, policy %d: dead letters %v, reason %q", encode, policy, dead, reason)
			}
		}
	}
}

// TestUnavailableTimeIsNotGuessed: the event time of a record is in its value. As long as the value cannot be read, nobody may go by the
// time of the record itself, which is another one.
func TestUnavailableTimeIsNotGuessed(t *testing.T) {
	down := true
	d := distant{Serde: serde.Int64(), down: &down, asks: func(int64) bool { return true }}
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Serde[int64](d), topology.WithIdleness(-1),
		topology.Timestamp(func(r record.Record[string, int64]) (time.Time, error) {
			return epoch.Add(time.Duration(r.Value) * time.Second), nil
		}))
	toOut(topology.Count(topology.WindowedBy(in, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose()))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	for _, v := range []int64{1, 2, 3, 12} {
		w.send(0, "k", "", v)
		w.b.Advance(time.Hour) // of the record itself
	}
	w.settle(s)
	down = false
	w.settle(s)
	expectOut(t, w, "k@0-10=3")
}
