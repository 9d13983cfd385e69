package processor

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// TestInstances: who is in the application, as each of two instances says it, while partitions move, the group does not answer, and a member
// owns what no task is.
func TestInstances(t *testing.T) {
	ctx := context.Background()
	w, a, b := twoInstances(t)
	g := w.b.Group("app")
	if a.Status().Instances != nil {
		t.Error("known before anybody asked")
	}
	tp := func(topic string, p record.Partition) record.TopicPartition {
		return record.TopicPartition{Topic: topic, Partition: p}
	}
	var asOf time.Time
	sees := func(s *Stepper, want string, fresh bool) {
		t.Helper()
		w.b.Advance(watchInterval)
		(&watch{engine: s.engine}).instances(ctx)
		st := s.Status().Instances
		got := ""
		for _, x := range st.List {
			got += fmt.Sprintf("%s@%s %t %v; ", x.Instance, x.Address, x.Here, x.Tasks)
		}
		if got != want || st.AsOf.After(asOf) != fresh {
			t.Errorf("instances %s as of %v, want %s; after %v: %t", got, st.AsOf, want, asOf, fresh)
		}
		asOf = st.AsOf
	}
	sees(a, "a@host-a:80 true [in/0]; b@ false [in/1]; ", true)
	sees(b, "a@host-a:80 false [in/0]; b@ true [in/1]; ", true)
	g.Rebalance(ctx, map[string][]record.TopicPartition{"b": {tp("in", 1), tp("in", 0)}})
	sees(a, "a@host-a:80 true []; b@ false [in/0 in/1]; ", true)
	// A group that does not answer is no reason to forget it.
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.DescribeGroups {
			return simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.GroupAuthorizationFailed}
		}
		return simbroker.Action{}
	})
	sees(a, "a@host-a:80 true []; b@ false [in/0 in/1]; ", false)
	w.b.SetFault(nil)
	g.Rebalance(ctx, map[string][]record.TopicPartition{"b": {tp("in", -1), tp("in", 2), tp("other", 0), tp("in", 1)}})
	sees(a, "a@host-a:80 true []; b@ false [in/1]; ", true)
	// What a member says of itself may be anything.
	g.Describe("a", bytes.Repeat([]byte("x"), 1<<20))
	sees(a, "a@ true []; b@ false [in/1]; ", true)
}
