package topologytest_test

import (
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/topologytest"
)

// shipping joins orders with the countries by the order's value.
func shipping() (*topology.Topology, error) {
	b := topology.New("app")
	countries := topology.GlobalTable(b, "countries", serde.String(), serde.String())
	orders := topology.Dedup(topology.From(b, "orders", serde.String(), serde.String(), topology.IDHeader(topology.DefaultIDHeader)), "unique", topology.Retention(time.Hour))
	by := func(_, order string) (string, error) { return order, nil }
	named := topology.LeftJoinGlobal(orders, countries, "named", by, func(k, order string, name *string) (string, error) {
		if name == nil {
			return k + " nowhere", nil
		}
		return k + " to " + *name, nil
	})
	topology.To(named, "out", serde.String(), serde.String())
	return b.Build()
}

// TestGlobalTable: rows that were there before are found by the first record, later ones by what is sent after a Run, whatever dies.
func TestGlobalTable(t *testing.T) {
	topo, err := shipping()
	if err != nil {
		t.Fatal(err)
	}
	d := topologytest.New(t, topo, topologytest.Partitions("orders", 2), topologytest.Partitions("countries", 3), topologytest.Instances(2))
	countries := topologytest.Input(d, "countries", serde.String(), serde.String())
	orders := topologytest.Input(d, "orders", serde.String(), serde.String())
	out := topologytest.Output(d, "out", serde.String(), serde.String())
	countries.Send("no", "Norway")
	orders.Send("ann", "no", topologytest.ID("1"))
	orders.Send("ann", "ch", topologytest.ID("2"))
	out.ExpectValues("ann to Norway", "ann nowhere")

	countries.Send("ch", "Switzerland")
	d.Run()
	d.CrashAt(topologytest.BeforeEndTxn)
	d.CrashAt(topologytest.AfterCommitBeforeApply)
	orders.Send("ann", "ch", topologytest.ID("3"))
	out.ExpectValues("ann to Switzerland")
	orders.Send("bob", "ch", topologytest.ID("4"))
	out.ExpectValues("bob to Switzerland")

	countries.Send("ch", "Schweiz")
	d.Rebalance()
	d.Run()
	orders.Send("ann", "ch", topologytest.ID("5"))
	orders.Send("ann", "ch", topologytest.ID("5"))
	out.ExpectValues("ann to Schweiz")
	for _, s := range d.Status() {
		if len(s.Globals) != 1 || s.Globals[0].Rows != 2 {
			t.Errorf("%s: %+v", s.Instance, s.Globals)
		}
	}
}

// TestFuzzOfAGlobalTable: rows that stand before the records come give the same results under any schedule.
func TestFuzzOfAGlobalTable(t *testing.T) {
	topologytest.Fuzz(t, shipping, func(d *topologytest.Driver) {
		countries := topologytest.Input(d, "countries", serde.String(), serde.String())
		countries.Send("no", "Norway")
		countries.Send("ch", "Switzerland")
		d.Run()
		orders := topologytest.Input(d, "orders", serde.String(), serde.String())
		for i := range 12 {
			orders.Send(string(rune('a'+i%3)), []string{"no", "ch", "de"}[i%3], topologytest.ID(string(rune('A'+i))))
		}
	}, topologytest.Partitions("orders", 2), topologytest.Duplicates(0.3), topologytest.Runs(10))
}
