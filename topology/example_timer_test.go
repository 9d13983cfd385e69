package topology_test

import (
	"strconv"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// In these examples the record "a=5@12" has the time of 12 seconds after 1970, and "@12" lets the host's clock come to it.

func ExampleTimers() {
	b := topology.New("app")
	silent := topology.Timers("silent", serde.String())
	// A sensor that says nothing for ten seconds.
	alarms := topology.Process(source(b), "watch", func(ctx topology.Context, r pair, _ topology.Emit[string, string]) error {
		return silent.Set(ctx, r.Key, r.Timestamp.Add(10*time.Second)) // puts it off
	}, topology.OnTimer(silent, func(_ topology.Context, t topology.Timer[string], emit topology.Emit[string, string]) error {
		emit(pair{Key: t.Key, Value: "silent at " + t.At.Format(time.TimeOnly)})
		return nil
	}))
	topology.To(alarms, "alarms", serde.String(), serde.String())
	topology.RunExample(b, "ann=x@1", "bob=x@2", "ann=x@8", "cid=x@13", "cid=x@19")
	// Output:
	// alarms: bob=silent at 00:00:12
	// alarms: ann=silent at 00:00:18
}

func ExampleWallTimers() {
	b := topology.New("app")
	silent := topology.WallTimers("silent", serde.String())
	// A sensor that says nothing until 00:01:00 by the host's clock, whatever the times of the records are.
	alarms := topology.Process(source(b), "watch", func(ctx topology.Context, r pair, _ topology.Emit[string, string]) error {
		if r.Value == "off" {
			return silent.Cancel(ctx, r.Key)
		}
		return silent.Set(ctx, r.Key, time.Unix(60, 0))
	}, topology.OnTimer(silent, func(_ topology.Context, t topology.Timer[string], emit topology.Emit[string, string]) error {
		emit(pair{Key: t.Key, Value: "silent at " + t.At.UTC().Format(time.TimeOnly)})
		return nil
	}))
	topology.To(alarms, "alarms", serde.String(), serde.String())
	topology.RunExample(b, "ann=x@1", "bob=x@2", "cid=x@900", "@59", "bob=off@901", "@60")
	// Output:
	// alarms: ann=silent at 00:01:00
	// alarms: cid=silent at 00:01:00
}

func ExampleOnTimer() {
	b := topology.New("app")
	retry := topology.Timers("retry", serde.String())
	tries := topology.KeyValue("tries", serde.String(), serde.Int64())
	// Three reminders, each later than the one before.
	reminders := topology.Process(source(b), "remind", func(ctx topology.Context, r pair, _ topology.Emit[string, string]) error {
		return retry.Set(ctx, r.Key, r.Timestamp.Add(time.Second))
	}, topology.WithStore(tries), topology.OnTimer(retry, func(ctx topology.Context, t topology.Timer[string], emit topology.Emit[string, string]) error {
		n, _, err := tries.Get(ctx, t.Key)
		if err != nil {
			return err
		}
		n++
		emit(pair{Key: t.Key, Value: "reminder " + strconv.FormatInt(n, 10) + " at " + t.At.Format(time.TimeOnly)})
		if n == 3 {
			return tries.Delete(ctx, t.Key)
		}
		if err := tries.Put(ctx, t.Key, n); err != nil {
			return err
		}
		return retry.Set(ctx, t.Key, t.At.Add(time.Second<<n))
	}))
	topology.To(reminders, "reminders", serde.String(), serde.String())
	topology.RunExample(b, "ann=x@1", "bob=x@9")
	// Output:
	// reminders: ann=reminder 1 at 00:00:02
	// reminders: ann=reminder 2 at 00:00:04
	// reminders: ann=reminder 3 at 00:00:08
}

func ExampleTimerStore_Cancel() {
	b := topology.New("app")
	deadline := topology.Timers("deadline", serde.String())
	unpaid := topology.Process(source(b), "watch", func(ctx topology.Context, r pair, _ topology.Emit[string, string]) error {
		if r.Value == "paid" {
			return deadline.Cancel(ctx, r.Key)
		}
		return deadline.Set(ctx, r.Key, r.Timestamp.Add(10*time.Second))
	}, topology.OnTimer(deadline, func(_ topology.Context, t topology.Timer[string], emit topology.Emit[string, string]) error {
		emit(pair{Key: t.Key, Value: "not paid"})
		return nil
	}))
	topology.To(unpaid, "unpaid", serde.String(), serde.String())
	topology.RunExample(b, "pen=order@1", "book=order@2", "pen=paid@5", "ink=order@20")
	// Output: unpaid: book=not paid
}

func ExamplePunctuate() {
	b := topology.New("app")
	counts := topology.KeyValue("counts", serde.String(), serde.Int64())
	type emit = topology.Emit[string, int64]
	report := topology.Process(source(b), "report", func(ctx topology.Context, r pair, _ emit) error {
		n, _, err := counts.Get(ctx, r.Key)
		if err != nil {
			return err
		}
		return counts.Put(ctx, r.Key, n+1)
	}, topology.WithStore(counts), topology.Punctuate(10*time.Second, func(ctx topology.Context, _ time.Time, emit emit) error {
		return counts.All(ctx, func(key string, n int64) bool {
			emit(record.Record[string, int64]{Key: key, Value: n})
			return true
		})
	}))
	topology.To(report, "report", serde.String(), serde.JSON[int64]())
	topology.RunExample(b, "a=x@1", "a=x@5", "b=x@9", "a=x@11", "a=x@45")
	// Output:
	// report: a=2
	// report: b=1
	// report: a=3
	// report: b=1
}

func ExamplePunctuateWall() {
	b := topology.New("app")
	newest := topology.KeyValue("newest", serde.String(), serde.String())
	type emit = topology.Emit[string, string]
	// The newest value of each key, every ten seconds of the host's clock: also while no record comes.
	report := topology.Process(source(b), "report", func(ctx topology.Context, r pair, _ emit) error {
		return newest.Put(ctx, r.Key, r.Value)
	}, topology.WithStore(newest), topology.PunctuateWall(10*time.Second, func(ctx topology.Context, _ time.Time, emit emit) error {
		return newest.All(ctx, func(key, value string) bool {
			emit(pair{Key: key, Value: value})
			return true
		})
	}))
	topology.To(report, "report", serde.String(), serde.String())
	topology.RunExample(b, "@1000", "a=1@1", "a=2@500", "@1010", "a=3@501", "@1019", "@1020", "@1030")
	// Output:
	// report: a=2
	// report: a=3
	// report: a=3
}
