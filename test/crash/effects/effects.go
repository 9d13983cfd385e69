package effects

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// The names of the application and of its topics, which have Partitions partitions.
const (
	App        = "effects-under-kills"
	Orders     = "orders"
	Receipts   = "receipts"
	Partitions = 4
)

// Config is the file of the program.
type Config struct {
	Brokers []string
	Bank    string // its address
}

// Build reads the file and makes the topology.
func Build(file []byte) (brokers []string, topo *topology.Topology, err error) {
	var c Config
	if err := json.Unmarshal(file, &c); err != nil {
		return nil, nil, err
	}
	b := topology.New(App)
	orders := topology.From(b, Orders, serde.String(), serde.String(), topology.IDHeader("id"))
	receipts := topology.Effect(orders, "charge", serde.String(), serde.String(), func(ctx context.Context, call topology.Call[string, string]) (string, error) {
		return call.Request, charge(ctx, c.Bank, call)
	}, topology.Concurrency(8), topology.Timeout(5*time.Second), topology.Retries(-1, 20*time.Millisecond), topology.Idempotent())
	topology.To(receipts, Receipts, serde.String(), serde.String())
	topo, err = b.Build()
	return c.Brokers, topo, err
}

func charge(ctx context.Context, bank string, call topology.Call[string, string]) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, bank, strings.NewReader(call.Request))
	if err != nil {
		return topology.Permanent(err)
	}
	r.Header.Set("Idempotency-Key", call.IdempotencyKey)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the bank says %s", answer.Status)
	}
	return nil
}

// Bank is the system that is called: it does a call once for each idempotency key. Orders of a customer are numbers that grow.
type Bank struct {
	mu    sync.Mutex // guards all
	calls int
	keys  map[string]string // the order of each idempotency key
	paid  map[string]string // the idempotency key of each order
	last  map[string]int    // of each customer
	wrong []string
}

// NewBank makes an empty one.
func NewBank() *Bank {
	return &Bank{keys: map[string]string{}, paid: map[string]string{}, last: map[string]int{}}
}

const maxOrder = 1 << 10

// ServeHTTP takes a call. Every seventh answer is an error, before or after it was carried out, and every third one takes its time.
func (b *Bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxOrder))
	if err != nil {
		return // its sender was killed
	}
	n := b.count()
	if n%14 == 0 {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	b.take(string(body), r.Header.Get("Idempotency-Key"))
	if n%3 == 0 {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-r.Context().Done():
		}
	}
	if n%14 == 7 {
		http.Error(w, "down after all", http.StatusServiceUnavailable)
	}
}

func (b *Bank) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	return b.calls
}

func (b *Bank) take(order, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, ok := b.keys[key]; ok && old != order {
		b.wrong = append(b.wrong, fmt.Sprintf("key %q is that of %q and of %q", key, old, order))
	}
	if old, ok := b.paid[order]; ok {
		if old != key {
			b.wrong = append(b.wrong, fmt.Sprintf("%q comes under the keys %q and %q", order, old, key))
		}
		return
	}
	b.keys[key], b.paid[order] = order, key
	var customer string
	var n int
	if _, err := fmt.Sscanf(order, "%s %d", &customer, &n); err != nil {
		b.wrong = append(b.wrong, fmt.Sprintf("order %q: %v", order, err))
	}
	if n <= b.last[customer] {
		b.wrong = append(b.wrong, fmt.Sprintf("%s: %d comes for the first time after %d", customer, n, b.last[customer]))
	}
	b.last[customer] = n
}

// Paid is how many orders were paid by how many calls, and what was wrong with them.
func (b *Bank) Paid() (orders, calls int, wrong []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.paid), b.calls, b.wrong
}
