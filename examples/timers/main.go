package main

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

const patience = 30 * time.Minute

func build() (*topology.Topology, error) {
	b := topology.New("timers")
	orders := topology.From(b, "orders", serde.String(), serde.String()) // order: placed or paid

	deadline := topology.Timers("deadline", serde.String())
	overdue := topology.KeyValue("overdue", serde.String(), serde.JSON[bool]())

	type event = record.Record[string, string]
	type emit = topology.Emit[string, string]
	unpaid := topology.Process(orders, "watch", func(ctx topology.Context, r event, emit emit) error {
		if r.Value == "placed" {
			return deadline.Set(ctx, r.Key, r.Timestamp.Add(patience))
		}
		late, _, err := overdue.Get(ctx, r.Key)
		if err == nil && late {
			emit(event{Key: r.Key, Value: "paid after all"})
		}
		return errors.Join(err, overdue.Delete(ctx, r.Key), deadline.Cancel(ctx, r.Key))
	}, topology.WithStore(overdue), topology.OnTimer(deadline, func(ctx topology.Context, t topology.Timer[string], emit emit) error {
		emit(event{Key: t.Key, Value: "not paid by " + t.At.Format(time.TimeOnly)})
		return overdue.Put(ctx, t.Key, true)
	}))
	topology.To(unpaid, "unpaid", serde.String(), serde.String())
	return b.Build()
}

func main() {
	topo, err := build()
	if err != nil {
		log.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(os.Args[1:]...))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(app.Run(context.Background()))
}
