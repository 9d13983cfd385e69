package topology_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// nowhere is a target that nothing is written to.
type nowhere struct{}

func (nowhere) Class() sink.Class           { return sink.Plain }
func (nowhere) Check(context.Context) error { return nil }
func (nowhere) Close() error                { return nil }
func (nowhere) Claim(context.Context, sink.Partition) (sink.Writer, error) {
	return nil, errors.New("nowhere")
}

func TestIntoIsASubtopologyOfItsOwn(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64())
	topology.Into(in, "table", serde.String(), serde.Int64(), nowhere{}, func(r record.Record[string, int64]) (sink.Row, error) {
		switch r.Value {
		case 1:
			return sink.Row{}, errors.New("one")
		case 2:
			panic("two")
		}
		return sink.Row{Values: []any{r.Key, r.Value}}, nil
	}, topology.OnError(topology.PolicySkip), topology.Partitions(3))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	subs := topo.Subtopologies()
	if len(subs) != 2 || subs[0].External != nil || subs[1].External == nil {
		t.Fatalf("%d sub-topologies", len(subs))
	}
	if k := subs[0].Sinks[0]; topo.SinkTopic(k) != "app-table-sink" || k.Partitions != 3 || topo.SourceTopic(subs[1].Sources[0]) != "app-table-sink" {
		t.Errorf("topic %q, %d partitions", topo.SinkTopic(k), k.Partitions)
	}
	if d := topo.Describe(); !strings.Contains(d, "Sink: table (topic: table-sink)") || !strings.Contains(d, "Source: table-sink (topics: [table-sink])") {
		t.Error(d)
	}
	row := subs[1].External.NewRow()
	value := func(n int64) []byte {
		v, err := serde.Int64().Append(nil, n)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	in5 := &broker.Record{Offset: 5, Timestamp: time.Unix(1, 0), Key: []byte("k"), Value: value(7), Headers: record.Headers{{Key: "streamd-id", Value: []byte("x")}}}
	got, err := row(in5)
	if err != nil || got.ID != "x" || got.Offset != 5 || len(got.Values) != 2 || got.Values[1] != int64(7) {
		t.Errorf("%+v, %v", got, err)
	}
	for n, stage := range map[int64]topology.Stage{1: topology.StageProcess, 2: topology.StageProcess} {
		var oe *topology.OperatorError
		if _, err := row(&broker.Record{Key: []byte("k"), Value: value(n)}); !errors.As(err, &oe) || oe.Stage != stage || oe.Policy != topology.PolicySkip || oe.Operator != "table-sink" {
			t.Errorf("value %d: %v", n, err)
		}
	}
	var oe *topology.OperatorError
	if _, err := row(&broker.Record{Key: []byte("k"), Value: []byte("not eight bytes")}); !errors.As(err, &oe) || oe.Stage != topology.StageDecode {
		t.Errorf("%v", err)
	}
}

func TestIntoMistakes(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64())
	topology.Into[string, int64](in, "", nil, nil, nil, nil, topology.Partitions(0))
	_, err := b.Build()
	for _, want := range []string{"has no name", "a serde is nil", "the target is nil", "the function is nil", "Partitions must be at least 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}
