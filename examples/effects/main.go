package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// maxAnswer is as much of the bank's answer as is kept, in bytes.
const maxAnswer = 4 << 10

// build reads orders (customer: what to charge, as the bank takes it) and writes the bank's answers.
func build(bank string) (*topology.Topology, error) {
	b := topology.New("effects")
	orders := topology.From(b, "orders", serde.String(), serde.String())
	once := topology.Dedup(orders, "once", topology.Retention(24*time.Hour))
	receipts := topology.Effect(once, "charge", serde.String(), serde.String(), func(ctx context.Context, call topology.Call[string, string]) (string, error) {
		return charge(ctx, bank, call)
	}, topology.Timeout(10*time.Second), topology.Idempotent())
	topology.To(receipts, "receipts", serde.String(), serde.String())
	return b.Build()
}

// charge asks the bank. A card that is refused is an answer; a bank that is down is tried again.
func charge(ctx context.Context, bank string, call topology.Call[string, string]) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, bank, strings.NewReader(call.Request))
	if err != nil {
		return "", topology.Permanent(err)
	}
	r.Header.Set("Idempotency-Key", call.IdempotencyKey)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case err != nil:
		return "", err
	case answer.StatusCode == http.StatusPaymentRequired:
		return "refused", nil
	case answer.StatusCode != http.StatusOK:
		return "", fmt.Errorf("the bank says %s", answer.Status)
	}
	return string(text), nil
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: effects BROKER BANK")
	}
	topo, err := build(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := app.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
