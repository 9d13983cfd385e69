package processor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// twoInstances start one after the other: partition 0 is that of a, at host-a:80, and 1 is b's.
func twoInstances(t *testing.T) (w *world, a, b *Stepper) {
	t.Helper()
	w = newWorld(t, sums(t))
	a = w.live()
	w.instance, w.disk = "b", newMemoryLog()
	b = w.live()
	w.b.Group("app").Describe("a", []byte("host-a:80"))
	return w, a, b
}

// TestOwners: who has what, asked on each of two instances, one of them without a task, while partitions move.
func TestOwners(t *testing.T) {
	ctx := context.Background()
	w, a, b := twoInstances(t)
	g := w.b.Group("app")
	tp := func(p record.Partition) record.TopicPartition {
		return record.TopicPartition{Topic: "in", Partition: p}
	}
	keys := map[record.Partition]string{}
	for _, k := range []string{"ann", "bob", "cid", "dan", "eve", "fay"} {
		keys[record.PartitionForKey([]byte(k), 2)] = k
	}
	if len(keys) != 2 {
		t.Fatal("these keys are all of one partition")
	}
	sees := func(s *Stepper, want string, opts ...QueryOption) {
		t.Helper()
		got := ""
		q := querySums(s, opts...)
		for p := range record.Partition(2) {
			o, err := q.Owner(ctx, keys[p])
			if err == nil && o.Partition != p {
				t.Errorf("key %q is of partition %d, not %d", keys[p], p, o.Partition)
			}
			switch {
			case errors.Is(err, ErrNotReady):
				got += " none"
			case err != nil:
				t.Fatal(err)
			default:
				got += fmt.Sprintf(" %s@%s %t", o.Instance, o.Address, o.Here)
			}
		}
		if got != want {
			t.Errorf("the owners are%s, want%s", got, want)
		}
	}
	now := MaxStaleness(0)
	sees(a, " a@host-a:80 true b@ false", now)
	sees(b, " a@host-a:80 false b@ true", now)
	// What was asked a moment ago is not asked again; a second later it is.
	asked := w.b.Counts()[simbroker.DescribeGroups]
	sees(a, " a@host-a:80 true b@ false")
	g.Rebalance(ctx, map[string][]record.TopicPartition{"b": {tp(0), tp(1)}})
	sees(a, " a@host-a:80 true b@ false")
	if n := w.b.Counts()[simbroker.DescribeGroups]; n != asked {
		t.Errorf("Kafka was asked %d times", n-asked)
	}
	w.b.Advance(defaultStaleness + time.Millisecond)
	sees(a, " b@ false b@ false")
	g.Rebalance(ctx, map[string][]record.TopicPartition{"b": {tp(1)}})
	sees(a, " none b@ false", now)
	if all, err := querySums(a, now).Owners(ctx); err != nil || len(all) != 2 || all[0] != (Owner{}) || all[1].Instance != "b" {
		t.Errorf("%+v, %v", all, err)
	}
	// An instance that never had a task knows as much.
	w.instance, w.disk = "c", newMemoryLog()
	c, err := w.newStepper()
	if err != nil {
		t.Fatal(err)
	}
	sees(c, " none b@ false", now)
	if _, err := Query(a, "other", serde.String(), serde.Int64()).Owner(ctx, "ann"); !errors.Is(err, ErrNoStore) {
		t.Errorf("of another store: %v", err)
	}
}

// revoking asks for the owners while it gives partitions back.
type revoking struct {
	*Stepper
	asked error
}

func (r *revoking) Revoked(ctx context.Context, gone []record.TopicPartition) {
	_, r.asked = querySums(r.Stepper, MaxStaleness(0)).Owner(ctx, "ann")
	r.Stepper.Revoked(ctx, gone)
}

// TestOwnersWhileTheGroupMoves: between two generations nobody is named, and a request that fails is no owner either.
func TestOwnersWhileTheGroupMoves(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	s := w.live()
	g, r := w.b.Group("app"), &revoking{Stepper: s}
	g.Add("a", s.CoPartitioned(), r)
	g.Rebalance(ctx, nil)
	if !errors.Is(r.asked, ErrNotReady) || !errors.Is(r.asked, broker.ErrRebalancing) {
		t.Errorf("in the middle of a rebalance: %v", r.asked)
	}
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.DescribeGroups {
			return simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.GroupAuthorizationFailed}
		}
		return simbroker.Action{}
	})
	if _, err := querySums(s, MaxStaleness(0)).Owner(ctx, "ann"); !errors.Is(err, broker.ErrAuthorization) {
		t.Errorf("without the right: %v", err)
	}
}

// TestOwnersOfSeveralInputs: a part that reads two topics has one owner for each partition, whichever topic is looked at.
func TestOwnersOfSeveralInputs(t *testing.T) {
	b := topology.New("app")
	one := topology.From(b, "in", serde.String(), serde.Int64())
	two := topology.From(b, "echo", serde.String(), serde.Int64())
	both := topology.Merge("both", one, two)
	topology.To(topology.Sum(both, "sums", value), "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	all, err := querySums(s).Owners(context.Background())
	if err != nil || len(all) != 2 || !all[0].Here || !all[1].Here || all[1].Partition != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestOwnersOfAnOddMember: what a member is said to own is bytes that another program may have written.
func TestOwnersOfAnOddMember(t *testing.T) {
	w := newWorld(t, sums(t))
	a := w.live()
	w.b.Group("app").Rebalance(context.Background(), map[string][]record.TopicPartition{"a": {
		{Topic: "in", Partition: 0}, {Topic: "in", Partition: 1}, {Topic: "in", Partition: -1}, {Topic: "in", Partition: 2}, {Topic: "other", Partition: 0},
	}})
	all, err := querySums(a, MaxStaleness(0)).Owners(context.Background())
	if err != nil || len(all) != 2 || all[0].Instance != "a" || all[1].Instance != "a" {
		t.Errorf("%+v, %v", all, err)
	}
}
