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
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/postgres"
	"github.com/streamd/streamd/topology"
)

type bill struct {
	ID       string    `json:"bill_id"`
	Account  string    `json:"account"`
	Amount   string    `json:"amount"` // decimal digits: money is no float
	IssuedAt time.Time `json:"issued_at"`
}

type rec = record.Record[string, bill]

// ledger is the table that the bills go to.
func ledger() sink.Table {
	return sink.Table{Name: "bills", Columns: []sink.Column{
		{Name: "bill_id", Kind: sink.Text}, {Name: "account", Kind: sink.Text}, {Name: "amount", Kind: sink.Decimal}, {Name: "issued_at", Kind: sink.Timestamp},
	}}
}

// build says what is computed.
func build(target sink.Target) (*topology.Topology, error) {
	b := topology.New("bills-in-go")
	bills := topology.From(b, "bills.raw", serde.String(), serde.JSON[bill](), topology.ID(func(r rec) record.ID { return record.StringID(r.Value.ID) }))
	unique := topology.Dedup(bills, "unique", topology.Retention(30*24*time.Hour), topology.ScopeStream())
	topology.Into(unique, "ledger", serde.String(), serde.JSON[bill](), target, func(r rec) (sink.Row, error) {
		return sink.Row{Values: []any{r.Value.ID, r.Value.Account, r.Value.Amount, r.Value.IssuedAt}}, nil
	})
	return b.Build()
}

func main() {
	target, err := postgres.Open(postgres.Config{DSN: os.Getenv("BILLS_DSN"), Table: ledger()})
	if err != nil {
		log.Fatal(err)
	}
	topo, err := build(target)
	if err != nil {
		log.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(os.Args[1:]...), processor.WithLogger(slog.Default()))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := app.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
