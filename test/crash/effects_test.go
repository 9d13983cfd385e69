//go:build kafka

package crash

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/crash/effects"
)

// TestEffectsUnderKills: two instances that call a bank are killed with kill -9 at random, some of them with their disk, while calls are under way. Each order is
// paid, under one key; each has one receipt; those of a customer come in order.
func TestEffectsUnderKills(t *testing.T) {
	kills, orders := 6, 2400
	if os.Getenv("STREAMD_SOAK") != "" {
		kills, orders = 60, 24_000
	}
	bank := effects.NewBank()
	server := httptest.NewServer(bank)
	t.Cleanup(server.Close)
	f := newProgramFixture(t, 2*time.Minute+time.Duration(kills)*5*time.Second, "./test/crash/effects/run", fmt.Sprintf(`{"Brokers": ["BROKERS"], "Bank": %q}`, server.URL))
	if err := CreateTopics(f.ctx, f.kafka.Addresses(), effects.Partitions, effects.Orders, effects.Receipts); err != nil {
		t.Fatal(err)
	}
	seen, last := map[string]int{}, map[string]int{}
	var wrong []string
	receipts := f.follow(effects.Receipts, func(where string, value []byte) {
		var customer string
		var n int
		if _, err := fmt.Sscanf(string(value), "%s %d", &customer, &n); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %q: %v", where, value, err))
		}
		if n <= last[customer] {
			wrong = append(wrong, fmt.Sprintf("%s: %s has %d after %d", where, customer, n, last[customer]))
		}
		seen[string(value)], last[customer] = seen[string(value)]+1, n
	})
	daemons := []*Daemon{f.daemon("a", "--instance-id", "a"), f.daemon("b", "--instance-id", "b")}
	for _, d := range daemons {
		f.start(d)
	}
	sent := make(chan error, 1)
	go func() { sent <- f.sendOrders(orders, kills) }()
	for i := range kills {
		d := daemons[i%len(daemons)]
		f.pause(d, 200*time.Millisecond, 2*time.Second)
		d.Kill()
		if i%3 == 2 {
			if err := os.RemoveAll(d.Dir); err != nil {
				t.Fatal(err)
			}
		}
		f.start(d)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if err := receipts.AwaitCount(f.ctx, func() int64 { return int64(len(seen)) }, int64(orders)); err != nil {
		t.Error(err)
	}
	f.stop(daemons...)
	if err := receipts.AwaitEnd(f.ctx); err != nil {
		t.Fatal(err)
	}
	paid, calls, bad := bank.Paid()
	receipts.Locked(func() { bad = append(bad, wrong...) })
	for order, n := range seen {
		if n != 1 {
			bad = append(bad, fmt.Sprintf("%d receipts of %s", n, order))
		}
	}
	if paid != orders || len(seen) != orders || len(bad) > 0 {
		t.Errorf("%d orders: %d paid by %d calls, %d with a receipt; %s", orders, paid, calls, len(seen), strings.Join(bad[:min(len(bad), 10)], "; "))
	}
	t.Logf("%d kills; %d orders, %d calls", kills, orders, calls)
}

// sendOrders sends them as long as the kills last, one each 1.1 s on average.
func (f *fixture) sendOrders(orders, kills int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(f.kafka.Addresses()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	start, each := time.Now(), time.Duration(kills)*1100*time.Millisecond/time.Duration(orders)
	for i := range orders {
		if i%20 == 0 {
			if err := sleepUntil(f.ctx, start.Add(time.Duration(i)*each)); err != nil {
				return err
			}
		}
		customer := fmt.Sprintf("c%d", i%97)
		client.Produce(f.ctx, &kgo.Record{
			Topic: effects.Orders, Partition: int32(i % 97 % effects.Partitions), Key: []byte(customer), Value: fmt.Appendf(nil, "%s %d", customer, i+1),
			Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Appendf(nil, "order-%d", i)}},
		}, nil)
	}
	return client.Flush(f.ctx)
}
