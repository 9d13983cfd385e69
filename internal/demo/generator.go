package demo

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// batchEvery is how often the generator sends.
const batchEvery = 20 * time.Millisecond

// generator sends bills and remembers which.
type generator struct {
	client *kgo.Client
	random *rand.Rand
	rate   int // records a second, copies included

	mu      sync.Mutex // guards all below; held for a batch, so that a pause is exact
	paused  bool
	next    int
	last    []bill // of the batch before
	old     []bill // some of long ago, to be replayed after a kill
	replay  []bill // to be sent with the next batches
	sent    uint64
	copies  uint64
	expects sums
}

func newGenerator(address string, rate int, seed uint64) (*generator, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.DefaultProduceTopic(inputTopic),
		kgo.ProducerLinger(0), kgo.ClientID("streamd-demo-generator"))
	if err != nil {
		return nil, fmt.Errorf("demo: generator: %w", err)
	}
	return &generator{client: c, rate: rate, random: rand.New(rand.NewPCG(seed, seed)), expects: sums{}}, nil
}

// run sends until ctx ends.
func (g *generator) run(ctx context.Context) error {
	tick := time.NewTicker(batchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := g.step(ctx); err != nil {
			return err
		}
	}
}

// step sends one batch. It waits for the broker, and counts what was sent only then: a bill that may
// or may not have arrived would make the check a guess.
func (g *generator) step(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.paused {
		return nil
	}
	n := max(1, g.rate*int(batchEvery/time.Millisecond)/1000)
	fresh, batch := g.batch(n)
	records := make([]*kgo.Record, len(batch))
	for i, b := range batch {
		// The bill's ID is the key, so that copies of a bill meet in one partition.
		records[i] = &kgo.Record{Key: []byte(b.id), Value: b.json()}
	}
	// Not ctx: an interrupted request would leave the outcome open.
	sendCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := g.client.ProduceSync(sendCtx, records...).FirstErr(); err != nil {
		return fmt.Errorf("demo: sending bills: %w", err)
	}
	g.sent += uint64(len(batch))
	g.copies += uint64(len(batch) - len(fresh))
	for _, b := range fresh {
		t := g.expects[b.account]
		g.expects[b.account] = total{t.cents + b.cents, t.bills + 1}
	}
	g.last = fresh
	return nil
}

// batch makes n records: new bills, and about one in eight a copy.
func (g *generator) batch(n int) (fresh, batch []bill) {
	for range n {
		switch g.random.IntN(16) {
		case 0: // in the same batch
			if len(fresh) > 0 {
				batch = append(batch, fresh[g.random.IntN(len(fresh))])
				continue
			}
		case 1: // of the batch before
			if len(g.last) > 0 {
				batch = append(batch, g.last[g.random.IntN(len(g.last))])
				continue
			}
		}
		if len(g.replay) > 0 && g.random.IntN(4) == 0 {
			batch = append(batch, g.replay[0])
			g.replay = g.replay[1:]
			continue
		}
		g.next++
		b := bill{
			id:      fmt.Sprintf("b-%07d", g.next),
			account: fmt.Sprintf("account-%02d", g.random.IntN(accounts)),
			cents:   1 + g.random.Int64N(2000),
		}
		fresh, batch = append(fresh, b), append(batch, b)
		if g.next%20 == 0 {
			g.old = append(g.old, b)
		}
	}
	return fresh, batch
}

// replayOld sends bills from before the kill again.
func (g *generator) replayOld() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.replay, g.old = append(g.replay, g.old...), nil
	return len(g.replay)
}

// pause stops sending, or goes on. When it returns no batch is under way.
func (g *generator) pause(paused bool) {
	g.mu.Lock()
	g.paused = paused
	g.mu.Unlock()
}

// expected returns what the totals must be, and what was sent.
func (g *generator) expected() (want sums, sent, copies uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.expects), g.sent, g.copies
}

func (g *generator) close() { g.client.Close() }
