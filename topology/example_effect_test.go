package topology_test

import (
	"context"
	"fmt"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// bank does a charge once, however often it comes under the same key.
type bank map[string]string

func (b bank) charge(_ context.Context, key, cents string) (string, error) {
	if b[key] == "" {
		b[key] = fmt.Sprintf("receipt %d for %s", len(b)+1, cents)
	}
	return b[key], nil
}

func ExampleEffect() {
	b, bank := topology.New("shop"), bank{}
	orders := topology.From(b, "orders", serde.String(), serde.String())
	receipts := topology.Effect(orders, "charge", serde.String(), serde.String(),
		func(ctx context.Context, call topology.Call[string, string]) (string, error) {
			return bank.charge(ctx, call.IdempotencyKey, call.Request)
		}, topology.Timeout(5*time.Second), topology.Idempotent())
	topology.To(receipts, "receipts", serde.String(), serde.String())
	topology.RunExample(b, "ann=500#o1", "bob=700#o2")
	// Output:
	// receipts: ann=receipt 1 for 500
	// receipts: bob=receipt 2 for 700
}
