package topologytest_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/topologytest"
)

// feed sends forty records of four keys.
func feed(d *topologytest.Driver) {
	in := topologytest.Input(d, "bills", serde.String(), serde.Int64())
	for i := range 40 {
		in.Send(string(rune('a'+i%4)), int64(i), topologytest.ID(fmt.Sprint(i)))
	}
}

func TestFuzzRight(t *testing.T) {
	topologytest.Fuzz(t, bills, feed, topologytest.Duplicates(0.3), topologytest.Runs(30))
	topologytest.Fuzz(t, bills, feed, topologytest.Partitions("bills", 3), topologytest.Instances(2), topologytest.Duplicates(0.3), topologytest.Runs(30))
	topologytest.Fuzz(t, bills, feed, topologytest.Partitions("bills", 3), topologytest.Reordered(8), topologytest.Compare("copy", topologytest.AsSet), topologytest.Runs(10))
}

// processed is a topology of one Process, whose function is new for each process.
func processed(step func() func(topology.Context, pair, emit) error, opts ...topology.ProcessOption) func() (*topology.Topology, error) {
	return func() (*topology.Topology, error) {
		b := topology.New("app")
		in := topology.From(b, "bills", serde.String(), serde.Int64())
		topology.To(topology.Process(in, "step", step(), opts...), "out", serde.String(), serde.String())
		return b.Build()
	}
}

type emit = topology.Emit[string, string]

func say(key string, v any) record.Record[string, string] {
	return record.Record[string, string]{Key: key, Value: fmt.Sprint(v)}
}

var seen = topology.KeyValue("seen", serde.String(), serde.Int64())

// planted are processors that are wrong, each in a way that works until something fails, and what a Fuzz must say of it.
var planted = map[string]struct {
	build func() (*topology.Topology, error)
	want  string
}{
	// Its cache has what is not committed yet: if the transaction fails and the process does not, that is counted again.
	"apply before commit": {processed(func() func(topology.Context, pair, emit) error {
		cache := map[string]int64{}
		return func(ctx topology.Context, r pair, out emit) error {
			sum, ok := cache[r.Key]
			if !ok {
				var err error
				if sum, _, err = seen.Get(ctx, r.Key); err != nil {
					return err
				}
			}
			cache[r.Key] = sum + r.Value
			out(say(r.Key, sum+r.Value))
			return seen.Put(ctx, r.Key, sum+r.Value)
		}
	}, topology.WithStore(seen)), "depends on faults or batches"},
	"wall clock in logic": {processed(func() func(topology.Context, pair, emit) error {
		return func(_ topology.Context, r pair, out emit) error {
			out(say(r.Key, time.Now().UnixNano()))
			return nil
		}
	}), "both without any fault, differ"},
	"map order in output": {processed(func() func(topology.Context, pair, emit) error {
		return func(_ topology.Context, r pair, out emit) error {
			for k := range map[string]bool{"x": true, "y": true, "z": true} {
				out(say(r.Key, k))
			}
			return nil
		}
	}), "both without any fault, differ"},
	"random child ID": {processed(func() func(topology.Context, pair, emit) error {
		return func(_ topology.Context, r pair, out emit) error {
			child := say(r.Key, r.Value)
			child.Headers = record.Headers{{Key: "child", Value: fmt.Append(nil, rand.Uint64())}}
			out(child)
			return nil
		}
	}), "both without any fault, differ"},
	"state outside the store": {processed(func() func(topology.Context, pair, emit) error {
		sums := map[string]int64{}
		return func(_ topology.Context, r pair, out emit) error {
			sums[r.Key] += r.Value
			out(say(r.Key, sums[r.Key]))
			return nil
		}
	}), "depends on faults or batches"},
}

// TestPlantedBugsAreFound: what a test kit is worth is which bugs it finds.
func TestPlantedBugsAreFound(t *testing.T) {
	for name, c := range planted {
		t.Run(name, func(t *testing.T) {
			got := failures(func(t topologytest.TB) { topologytest.Fuzz(t, c.build, feed) })
			if !strings.Contains(got, c.want) {
				t.Fatalf("Fuzz says:\n%s\nwant %q", got, c.want)
			}
			t.Log(got)
		})
	}
}

// TestShortestSchedule: the schedule that is printed shows the bug again, and nothing can be left out of it.
func TestShortestSchedule(t *testing.T) {
	got := failures(func(t topologytest.TB) {
		topologytest.Fuzz(t, planted["state outside the store"].build, feed)
	})
	if n := strings.Count(got, "\tmoment "); n != 1 {
		t.Errorf("one fault is enough, the report has %d:\n%s", n, got)
	}
	for _, want := range []string{"seed ", "without faults", "partition 0, record", "faults that came to pass", "record #"} {
		if !strings.Contains(got, want) {
			t.Errorf("the report has no %q:\n%s", want, got)
		}
	}
}

func TestFuzzRefuses(t *testing.T) {
	if got := failures(func(t topologytest.TB) { topologytest.Fuzz(t, bills, func(*topologytest.Driver) {}) }); !strings.Contains(got, "nothing to compare") {
		t.Error(got)
	}
	broken := func() (*topology.Topology, error) { return topology.New("app").Build() }
	if got := failures(func(t topologytest.TB) { topologytest.Fuzz(t, broken, feed) }); !strings.Contains(got, "build:") {
		t.Error(got)
	}
}
