package topologytest_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/topologytest"
)

// bank is a system that is called: it does a call once for each idempotency key.
type bank struct {
	calls    int
	payments map[string]int // by account
	keys     map[string]bool
}

func newBank() *bank { return &bank{payments: map[string]int{}, keys: map[string]bool{}} }

func (b *bank) pay(_ context.Context, c topology.Call[string, string]) (string, error) {
	b.calls++
	if !b.keys[c.IdempotencyKey] {
		b.keys[c.IdempotencyKey] = true
		b.payments[c.Key]++
	}
	return c.Request + " paid", nil
}

func paying(b *bank, opts ...topology.EffectOption) func() (*topology.Topology, error) {
	return func() (*topology.Topology, error) {
		t := topology.New("pay")
		in := topology.From(t, "orders", serde.String(), serde.String())
		topology.To(topology.Effect(in, "pay", serde.String(), serde.String(), b.pay, opts...), "receipts", serde.String(), serde.String())
		return t.Build()
	}
}

func TestEffectAtEveryCrashPoint(t *testing.T) {
	for _, p := range []topologytest.CrashPoint{
		topologytest.BeforeCommit, topologytest.BeforeOffsets, topologytest.BeforeEndTxn, topologytest.AfterEndTxn,
		topologytest.AfterCommitBeforeApply, topologytest.AfterApply, topologytest.BeforeCall, topologytest.AfterCall,
	} {
		for nth := range 2 { // of the transaction of the record, and of that of the outcome
			bank := newBank()
			topo, err := paying(bank)()
			d := topologytest.New(t, must(t, topo, err))
			in := topologytest.Input(d, "orders", serde.String(), serde.String())
			out := topologytest.Output(d, "receipts", serde.String(), serde.String())
			in.Send("ann", "shoes")
			if nth > 0 {
				d.HoldCalls(true)
				d.Run()
				d.HoldCalls(false)
			}
			d.CrashAt(p)
			out.ExpectValues("shoes paid")
			if again := p == topologytest.AfterCall; bank.payments["ann"] != 1 || again && bank.calls != 2 {
				t.Errorf("%s, %d: %d calls, %d payments", p, nth, bank.calls, bank.payments["ann"])
			}
		}
	}
}

// TestHeldCalls: what is under way when the tasks move is called by the new owner, and what the old one hears later does not count.
func TestHeldCalls(t *testing.T) {
	bank := newBank()
	topo, err := paying(bank)()
	d := topologytest.New(t, must(t, topo, err), topologytest.Instances(2), topologytest.Partitions("orders", 2))
	in := topologytest.Input(d, "orders", serde.String(), serde.String())
	out := topologytest.Output(d, "receipts", serde.String(), serde.String())
	d.HoldCalls(true)
	for _, who := range []string{"ann", "bob", "cid", "dan"} {
		in.Send(who, who)
	}
	waiting := 0
	for _, s := range d.Status() {
		for _, o := range s.Operators {
			if o.Effect != nil {
				waiting += o.Effect.Running
			}
		}
	}
	if waiting != 4 || bank.calls != 0 {
		t.Fatalf("%d under way, %d calls", waiting, bank.calls)
	}
	d.Rebalance()
	d.HoldCalls(false)
	d.Run()
	if got := len(out.Values()); got != 4 || bank.calls < 4 {
		t.Errorf("%d receipts after %d calls", got, bank.calls)
	}
	if want := map[string]int{"ann": 1, "bob": 1, "cid": 1, "dan": 1}; !maps.Equal(bank.payments, want) {
		t.Errorf("payments %v", bank.payments)
	}
}

func TestEffectFuzz(t *testing.T) {
	bank := newBank()
	topologytest.Fuzz(t, paying(bank), func(d *topologytest.Driver) {
		in := topologytest.Input(d, "orders", serde.String(), serde.String())
		for i := range 30 {
			in.Send(string(rune('a'+i%5)), string(rune('A'+i)))
		}
	}, topologytest.Instances(2), topologytest.Partitions("orders", 3), topologytest.Runs(30))
}

// TestEffectFuzzFinds: a function that counts its calls gives another outcome after a crash, and Fuzz says so.
func TestEffectFuzzFinds(t *testing.T) {
	build := func() (*topology.Topology, error) {
		n := 0
		b := topology.New("pay")
		in := topology.From(b, "orders", serde.String(), serde.String())
		topology.To(topology.Effect(in, "pay", serde.String(), serde.String(), func(context.Context, topology.Call[string, string]) (string, error) {
			n++
			return strings.Repeat("x", n), nil
		}), "receipts", serde.String(), serde.String())
		return b.Build()
	}
	got := failures(func(t topologytest.TB) {
		topologytest.Fuzz(t, build, func(d *topologytest.Driver) {
			in := topologytest.Input(d, "orders", serde.String(), serde.String())
			for i := range 20 {
				in.Send("k", string(rune('A'+i)))
			}
		})
	})
	if !strings.Contains(got, "what is committed depends on faults") {
		t.Errorf("it says %q", got)
	}
}

func TestUncertainCallStops(t *testing.T) {
	bank := newBank()
	topo, err := paying(bank, topology.OnUncertain(topology.Fail))()
	d := topologytest.New(t, must(t, topo, err), topologytest.Options(processor.WithErrorPolicy(topology.PolicyStop, "")))
	topologytest.Input(d, "orders", serde.String(), serde.String()).Send("ann", "shoes")
	d.CrashAt(topologytest.AfterCall)
	if err := d.ExpectStop(); !errors.Is(err, topology.ErrUncertain) || bank.calls != 1 {
		t.Errorf("stopped with %v after %d calls", err, bank.calls)
	}
}
