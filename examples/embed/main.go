package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

type bill struct {
	ID, Account string
	Cents       int64
}

type total struct{ Bills, Cents int64 }

type rec = record.Record[string, bill]

func (t total) add(r rec) (total, error) { return total{t.Bills + 1, t.Cents + r.Value.Cents}, nil }

func main() {
	b := topology.New("billing") // names the consumer group, the transactions and the internal topics
	bills := topology.From(b, "bills", serde.String(), serde.JSON[bill](), topology.ID(func(r rec) record.ID { return record.StringID(r.Value.ID) }))
	byAccount := topology.KeyBy(topology.Dedup(bills, "unique", topology.Retention(7*24*time.Hour)), "by-account", serde.String(), func(r rec) (string, error) { return r.Value.Account, nil })
	topology.To(topology.Aggregate(byAccount, "totals", serde.JSON[total](), total.add), "bill-totals", serde.String(), serde.JSON[total]())
	topo, err := b.Build() // all mistakes at once
	if err != nil {
		log.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(os.Args[1:]...), processor.WithLogger(slog.Default()))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := app.Run(ctx); err != nil { // returns nil after a last commit when ctx ends
		log.Fatal(err)
	}
}
