package simbroker_test

import (
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/brokertest"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// oneShot holds the faults that wait for the next request of their kind.
type oneShot struct {
	mu   sync.Mutex
	next map[simbroker.API][]simbroker.Action
}

func (o *oneShot) add(api string, times int, a simbroker.Action) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for range times {
		o.next[simbroker.API(api)] = append(o.next[simbroker.API(api)], a)
	}
}

func (o *oneShot) fault(call simbroker.Call) simbroker.Action {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.next[call.API]
	if len(q) == 0 {
		return simbroker.Action{}
	}
	o.next[call.API] = q[1:]
	return q[0]
}

// env wires the suite's hooks to the model.
func env(b *simbroker.Broker, c *simbroker.Client) *brokertest.Env {
	faults := &oneShot{next: map[simbroker.API][]simbroker.Action{}}
	b.SetFault(faults.fault)
	var hold func(record.TopicPartition) bool
	b.MarkerDelay = func(tp record.TopicPartition, _ string) time.Duration {
		if hold != nil && hold(tp) {
			return -1
		}
		return 2 * time.Millisecond // as measured on a real broker: EndTxn answers first
	}
	return &brokertest.Env{
		Cluster: c,
		Pass:    b.Advance,
		Limit:   30 * time.Second,
		Refuse: func(api string, code int16, times int) {
			faults.add(api, times, simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.Code(code)})
		},
		LoseRequest: func(api string) { faults.add(api, 1, simbroker.Action{Verdict: simbroker.LoseRequest}) },
		LoseAnswer:  func(api string) { faults.add(api, 1, simbroker.Action{Verdict: simbroker.LoseAnswer}) },
		Hold: func(api string) func() {
			faults.add(api, 1, simbroker.Action{Verdict: simbroker.Hold})
			return b.DeliverHeld
		},
		HoldMarkers: func(match func(record.TopicPartition) bool) func() {
			hold = match
			return func() {
				hold = nil
				b.ReleaseMarkers(match)
			}
		},
		DeleteTopic: b.DeleteTopic,
		ElectLeader: b.ElectLeader,
		TimesOut:    true,
	}
}

func TestConformance(t *testing.T) {
	b := simbroker.New(start)
	brokertest.Run(t, "simbroker", "s", env(b, b.Client("suite")))
}

// Readers that fetch ahead deliver what belongs to a position that is gone: the facts hold all the same.
func TestConformanceWithPrefetch(t *testing.T) {
	b := simbroker.New(start)
	c := b.Client("suite")
	c.Prefetch = true
	brokertest.Run(t, "simbroker", "s", env(b, c))
}

// The facts do not depend on the version of the transaction protocol.
func TestConformanceOfProtocolV2(t *testing.T) {
	b := simbroker.New(start)
	c := b.Client("suite")
	c.Protocol = simbroker.V2
	e := env(b, c)
	e.Implicit = true
	brokertest.Run(t, "simbroker", "s", e)
}
