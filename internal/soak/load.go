package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// How the load is made up.
const (
	batchEvery   = 20 * time.Millisecond
	copyPercent  = 20
	latePercent  = 2
	window       = time.Hour // the retention of the dedup in pipeline.yaml
	lateBy       = 3 * window
	ringSize     = 100_000          // bills that may be sent again
	ringAge      = 3 * window / 4   // older ones are left alone: they must still be remembered
	abandonOneIn = 200              // batches whose producer is closed in their midst
	sendLimit    = 90 * time.Second // for one batch, however often it is tried
)

// load sends bills and remembers how many of each account.
type load struct {
	options  []kgo.Opt
	topic    string
	rate     int
	accounts int
	seed     uint64
	random   *rand.Rand
	client   *kgo.Client

	mu     sync.Mutex // guards all below; held for a batch, so that a pause is exact
	paused bool
	next   []int32 // of each account
	ring   []sentBill
	at     int // in the ring
	last   []bill
	owed   float64 // records that the rate has earned and that were not sent yet
	lates  int64
	Counts
}

type sentBill struct {
	bill
	at time.Time
}

// Counts is what was sent.
type Counts struct {
	Sent     int64 `json:"sent"`     // records of which it is known that they arrived
	Distinct int64 `json:"distinct"` // different bills
	Copies   int64 `json:"copies"`   // records of a bill that was sent before
	Late     int64 `json:"late"`     // records older than the window
	Unknown  int64 `json:"unknown"`  // records of abandoned batches, which were sent again
}

func newLoad(c Config, options []kgo.Opt) (*load, error) {
	l := &load{
		options: options, topic: c.topic("bills"), rate: c.Rate, accounts: c.Accounts, seed: c.Seed,
		random: rand.New(rand.NewPCG(c.Seed, 1)), next: make([]int32, c.Accounts),
	}
	return l, l.connect()
}

func (l *load) connect() (err error) {
	opts := slices.Concat(l.options, []kgo.Opt{
		kgo.DefaultProduceTopic(l.topic), kgo.ProducerLinger(0), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	})
	if l.client, err = kgo.NewClient(opts...); err != nil {
		return fmt.Errorf("soak: producer: %w", err)
	}
	return nil
}

func (l *load) close() { l.client.Close() }

// run sends until ctx ends.
func (l *load) run(ctx context.Context) error {
	tick := time.NewTicker(batchEvery)
	defer tick.Stop()
	then := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			// A slow cluster is not flooded afterwards with what it could not take in time.
			l.owed += min(now.Sub(then), time.Second).Seconds() * float64(l.rate)
			then = now
		}
		if err := l.step(ctx); err != nil {
			return err
		}
	}
}

// step sends one batch.
func (l *load) step(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused || l.owed < 1 {
		l.owed = min(l.owed, float64(l.rate))
		return nil
	}
	now := time.Now()
	records := l.batch(int(l.owed), now)
	l.owed -= float64(len(records))
	return l.send(ctx, records)
}

// batch makes n records.
func (l *load) batch(n int, now time.Time) []*kgo.Record {
	var records []*kgo.Record
	var fresh []bill
	for range n {
		roll := l.random.IntN(100)
		switch {
		case roll < copyPercent:
			if b, ok := l.again(fresh, now); ok {
				l.Copies++
				records = append(records, l.record(b))
				continue
			}
		case roll < copyPercent+latePercent && len(l.last) > 0:
			// Behind an acknowledged bill of its partition: without a stream time nothing is too late.
			a := l.last[l.random.IntN(len(l.last))].account
			l.Late++
			l.lates++
			records = append(records, &kgo.Record{Key: []byte(accountName(a)), Value: lateJSON(a, l.lates), Timestamp: now.Add(-lateBy)})
			continue
		}
		u := l.random.Float64()
		b := bill{account: int32(u * u * float64(l.accounts))} // some have many, most have few
		b.n = l.next[b.account]
		l.next[b.account]++
		l.Distinct++
		fresh = append(fresh, b)
		records = append(records, l.record(b))
	}
	for _, b := range fresh {
		if len(l.ring) < ringSize {
			l.ring = append(l.ring, sentBill{b, now})
		} else {
			l.ring[l.at] = sentBill{b, now}
			l.at = (l.at + 1) % ringSize
		}
	}
	l.last = fresh
	return records
}

// again chooses a bill that was sent before.
func (l *load) again(fresh []bill, now time.Time) (bill, bool) {
	of := fresh
	if l.random.IntN(2) == 0 {
		of = l.last
	}
	if l.random.IntN(3) > 0 && len(of) > 0 {
		return of[l.random.IntN(len(of))], true
	}
	if len(l.ring) == 0 {
		return bill{}, false
	}
	x := l.ring[l.random.IntN(len(l.ring))]
	return x.bill, now.Sub(x.at) < ringAge
}

func (l *load) record(b bill) *kgo.Record {
	return &kgo.Record{Key: []byte(accountName(b.account)), Value: b.json(l.seed)}
}

// send sends a batch until it is acknowledged. What an attempt that failed has left behind is not known,
// and need not be: everything is sent again in the same order.
func (l *load) send(ctx context.Context, records []*kgo.Record) error {
	// Not ctx: an interrupted batch would leave its bills counted and not sent.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendLimit)
	defer cancel()
	if l.random.IntN(abandonOneIn) == 0 {
		l.abandon(ctx, records)
		if err := l.connect(); err != nil {
			return err
		}
	}
	for {
		err := l.client.ProduceSync(ctx, clone(records)...).FirstErr()
		if err == nil {
			l.Sent += int64(len(records))
			return nil
		}
		l.Unknown += int64(len(records))
		if ctx.Err() != nil {
			return fmt.Errorf("soak: sending bills: %w", err)
		}
		l.client.Close()
		if err := l.connect(); err != nil {
			return err
		}
	}
}

// abandon sends a batch and closes the producer before the answer.
func (l *load) abandon(ctx context.Context, records []*kgo.Record) {
	l.Unknown += int64(len(records))
	for _, r := range clone(records) {
		l.client.Produce(ctx, r, nil)
	}
	l.client.Close()
}

// clone copies records: a client writes into those that it sends.
func clone(records []*kgo.Record) []*kgo.Record {
	out := make([]*kgo.Record, len(records))
	for i, r := range records {
		out[i] = &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
	}
	return out
}

// pause stops sending, or goes on. When it returns no batch is under way.
func (l *load) pause(paused bool) {
	l.mu.Lock()
	l.paused = paused
	l.mu.Unlock()
}

// expected returns how many bills of each account were sent, and the counts.
func (l *load) expected() ([]int32, Counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.next), l.Counts
}
