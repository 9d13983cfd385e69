//go:build kafka

package kafka

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
)

// TestLateAndLostRequests runs transactions while requests and answers are lost, and requests are held
// back and delivered while a later transaction is under way. Each committed transaction is there once,
// in order; each other one not at all.
func TestLateAndLostRequests(t *testing.T) {
	name := prefix()
	c, n := open(t)
	topic := makeTopic(t, c, name, 3)
	j := join(t, c, name, "one", topic)
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: name})
	defer p.Close()
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	d := &dying{t: t, c: c, p: p, j: j, topic: topic, group: name}
	r := rand.New(rand.NewPCG(1, 2))
	f := &lateFaults{r: r, n: n}
	for range 300 {
		f.arm()
		d.run(1)
	}
	f.wg.Wait()
	n.Clear()
	d.check()
	t.Logf("%d transactions, %d failed, %d unknown, %d late requests delivered, longest %v", d.n, d.failed, d.unknown, f.late, d.longest)
	if d.unknown < 5 || f.late < 20 {
		t.Error("the faults did not show")
	}
}

// lateFaults arms a fault for some transactions, and delivers what earlier ones held back.
type lateFaults struct {
	r    *rand.Rand
	n    *faultnet.Net
	held []*faultnet.Held
	wg   sync.WaitGroup
	late int
}

func (f *lateFaults) arm() {
	names := []string{"Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "EndTxn", "InitProducerId"}
	key := faultnet.KeyOf(names[f.r.IntN(len(names))])
	switch f.r.IntN(6) {
	case 0:
		f.n.LoseRequest(key)
	case 1:
		f.n.LoseAnswer(key)
	case 2, 3:
		f.held = append(f.held, f.n.Hold(key))
	}
	for i, h := range f.held {
		select {
		case <-h.Caught():
		default:
			continue
		}
		if f.r.IntN(2) == 0 {
			f.held = append(f.held[:i:i], f.held[i+1:]...)
			f.late++
			f.wg.Go(func() { _ = h.Deliver() }) // while the transaction to come runs
			return
		}
	}
}
