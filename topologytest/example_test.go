package topologytest_test

import (
	"fmt"
	"os"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/topologytest"
)

type bill struct {
	ID     string
	Amount int64
}

// build is the application that is tested.
func build() (*topology.Topology, error) {
	b := topology.New("billing")
	in := topology.From(b, "bills", serde.String(), serde.JSON[bill](),
		topology.ID(func(r record.Record[string, bill]) record.ID { return record.StringID(r.Value.ID) }))
	unique := topology.Dedup(in, "unique", topology.Retention(24*time.Hour))
	totals := topology.Sum(unique, "totals", func(r record.Record[string, bill]) (int64, error) { return r.Value.Amount, nil })
	topology.To(totals, "bill-totals", serde.String(), serde.Int64())
	return b.Build()
}

// printing stands for the *testing.T that a test has.
type printing struct{}

func (printing) Helper()                           {}
func (printing) Cleanup(func())                    {}
func (printing) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (p printing) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	os.Exit(1)
}

// A bill that comes twice is counted once, also if the process dies between the commit in Kafka and its own disk.
func Example() {
	var t printing // in a test: t *testing.T
	topo, err := build()
	if err != nil {
		t.Fatalf("%v", err)
	}
	d := topologytest.New(t, topo, topologytest.Partitions("bills", 4), topologytest.Instances(2))
	in := topologytest.Input(d, "bills", serde.String(), serde.JSON[bill]())
	out := topologytest.Output(d, "bill-totals", serde.String(), serde.Int64())

	in.Send("ann", bill{"b1", 5})
	in.Send("ann", bill{"b1", 5}) // the same bill again
	d.CrashAt(topologytest.AfterCommitBeforeApply)
	out.ExpectValues(5)

	d.Rebalance()
	in.Send("ann", bill{"b2", 7})
	out.ExpectValues(12)

	total, _ := topologytest.Store(d, "totals", serde.String(), serde.Int64()).Get("ann")
	fmt.Println("ann owes", total)
	// Output: ann owes 12
}

// A Fuzz needs no expectations: it compares an application with itself.
func ExampleFuzz() {
	var t printing // in a test: t *testing.T
	topologytest.Fuzz(t, build, func(d *topologytest.Driver) {
		in := topologytest.Input(d, "bills", serde.String(), serde.JSON[bill]())
		for i := range 20 {
			in.Send(string(rune('a'+i%3)), bill{fmt.Sprint("b", i), int64(i)})
		}
	}, topologytest.Partitions("bills", 2), topologytest.Duplicates(0.3), topologytest.Runs(20))
	fmt.Println("compared")
	// Output: compared
}
