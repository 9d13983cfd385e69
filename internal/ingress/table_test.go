package ingress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/internal/simbroker"
)

// table is a table in memory. Of its rows those up to decided are decided.
type table struct {
	rows           []int64
	decided, given int64
	reader         any // whose it is
	away           error
	columns        string
}

// fakeRows reads it.
type fakeRows struct {
	t     *table
	begun bool
}

func (f *fakeRows) Check(context.Context) error { return f.t.away }
func (f *fakeRows) Close() error                { f.End(); return nil }

func (f *fakeRows) End() {
	if f.begun && f.t.reader == f {
		f.t.reader = nil
	}
	f.begun = false
}

func (f *fakeRows) Begin(context.Context) (bool, error) {
	if f.t.away != nil {
		return false, f.t.away
	}
	if f.t.reader != nil {
		return false, nil
	}
	f.t.reader, f.begun = f, true
	return true, nil
}

func (f *fakeRows) Decided(_ context.Context, after int64) (Decision, error) {
	d := Decision{UpTo: max(after, f.t.decided), Given: f.t.given}
	if f.t.given > f.t.decided {
		d.Undecided = "a writer"
	}
	return d, f.t.away
}

func (f *fakeRows) Read(_ context.Context, after, upTo int64, add func(Row) bool) (bool, error) {
	slices.Sort(f.t.rows)
	for _, n := range f.t.rows {
		if n > after && n <= upTo && !add(Row{n, fmt.Appendf(nil, `{"id":%d%s}`, n, f.t.columns)}) {
			return true, nil
		}
	}
	return false, nil
}

// tableRig is a table that is read until nothing is new.
type tableRig struct {
	*rig
	table  *table
	cfg    TableConfig
	newLog func() *Log
}

func newTableRig(t *testing.T) *tableRig {
	r := &tableRig{rig: newRig(t), table: &table{}, cfg: TableConfig{Table: "orders", Column: "id", Positions: positionsTopic, Poll: time.Hour}}
	r.newLog = r.log
	if err := r.b.Client("setup").CreateTopic(t.Context(), broker.Topic{Name: positionsTopic, Partitions: 1, Cleanup: broker.Compact}); err != nil {
		t.Fatal(err)
	}
	return r
}

// run is a process that ends when idle is called the n-th time: it waits for something then.
func (r *tableRig) run(waits int, idle func(time.Duration)) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rows := &fakeRows{t: r.table}
	x := NewTable(r.cfg, rows, r.newLog)
	x.pause = func(_ context.Context, d time.Duration) error {
		if idle != nil {
			idle(d)
		}
		if waits--; waits <= 0 {
			cancel()
			return ctx.Err()
		}
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(simbroker.Crash); !ok {
				panic(p)
			}
			err = errors.New("killed")
			if r.table.reader == rows {
				r.table.reader = nil // its session has ended
			}
		}
	}()
	return x.Run(ctx)
}

func (r *tableRig) want(numbers ...int64) {
	r.t.Helper()
	want := map[string]int{}
	for _, n := range numbers {
		want[fmt.Sprintf("s/orders/%d", n)]++
	}
	got := r.counts()
	for id, n := range got {
		if want[id] != n {
			r.t.Errorf("%s stands %d times, want %d", id, n, want[id])
		}
	}
	if len(got) != len(want) {
		r.t.Errorf("%d rows, want %d", len(got), len(want))
	}
}

// Only what is decided is read, and each row once, also by the next process.
func TestTableIsReadAsFarAsItIsDecided(t *testing.T) {
	r := newTableRig(t)
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2, 9}, 2, 9
	if err := r.run(1, nil); err != nil {
		t.Fatal(err)
	}
	r.want(1, 2)
	r.table.rows, r.table.decided = append(r.table.rows, 5, 7), 9
	for range 2 {
		if err := r.run(1, nil); err != nil {
			t.Fatal(err)
		}
		r.want(1, 2, 5, 7, 9)
	}
}

// Whichever request meets whichever fault, each row is there once, without a dedup step.
func TestTableEveryFault(t *testing.T) {
	for name, act := range map[string]simbroker.Action{
		"request lost": {Verdict: simbroker.LoseRequest},
		"answer lost":  {Verdict: simbroker.LoseAnswer},
		"late":         {Verdict: simbroker.Hold, Requests: 3},
		"twice":        {Verdict: simbroker.Repeat, Requests: 2},
		"killed":       {Verdict: simbroker.CrashBefore},
		"killed after": {Verdict: simbroker.CrashAfter},
		"moving":       {Verdict: simbroker.Refuse, Code: simbroker.CoordinatorLoadInProgress},
		"unknown":      {Verdict: simbroker.HandleThenFail, Code: simbroker.CoordinatorNotAvailable},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				r := newTableRig(t)
				first, hit := r.b.Calls(), false
				r.b.SetFault(func(c simbroker.Call) simbroker.Action {
					if hit || c.N != first+n {
						return simbroker.Action{}
					}
					hit = true
					return act
				})
				var want []int64
				for round := range int64(3) {
					for i := range int64(3) {
						want = append(want, 10*round+i+1)
					}
					r.table.rows, r.table.decided, r.table.given = want, want[len(want)-1], want[len(want)-1]
					for range 2 { // the second one is for a process that was killed, or fenced by a request that came late
						_ = r.run(3, nil)
					}
				}
				r.b.DeliverHeld()
				r.want(want...)
				if !hit || t.Failed() {
					t.Logf("%d requests", n)
					break
				}
			}
		})
	}
}

// Two processes: one stands by as long as the other one reads. If it takes over while the other one believes to read, that one is fenced, writes nothing any more,
// and does not end.
func TestTableIsReadByOne(t *testing.T) {
	r := newTableRig(t)
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2}, 2, 2
	waited := 0
	err := r.run(4, func(d time.Duration) {
		switch waited++; waited {
		case 1: // the lock is lost without its holder knowing
			r.want(1, 2)
			r.table.reader = nil
			r.table.rows, r.table.decided, r.table.given = []int64{1, 2, 3}, 3, 3
			if err := r.run(1, nil); err != nil {
				t.Error(err)
			}
			r.want(1, 2, 3)
			r.table.rows, r.table.decided, r.table.given = []int64{1, 2, 3, 4}, 4, 4
			r.table.reader = "the other one"
		case 2, 3:
			if d != standBy {
				t.Errorf("it waits %v, want to stand by", d)
			}
			r.want(1, 2, 3)
			if waited == 3 {
				r.table.reader = nil
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	r.want(1, 2, 3, 4)
}

// A database that is away is waited for; a table that began anew, and one that is not as it must be, end the source.
func TestTableFails(t *testing.T) {
	r := newTableRig(t)
	r.table.rows, r.table.decided, r.table.given = []int64{7}, 7, 7
	r.table.away = errors.New("away")
	if err := r.run(3, func(time.Duration) { r.table.away = nil }); err != nil {
		t.Fatal(err)
	}
	r.want(7)
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2}, 2, 2
	var setup *SetupError
	if err := r.run(1, nil); !errors.As(err, &setup) || !strings.Contains(err.Error(), "read up to number 7, but has given out 2 only") {
		t.Error(err)
	}
	r.want(7)
	r.table.given, r.table.decided, r.table.rows = 9, 9, []int64{8, 9}
	r.table.columns, r.cfg.KeyField = `,"k":1.5`, "k"
	if err := r.run(1, nil); !errors.As(err, &setup) || !strings.Contains(err.Error(), `row 8 of table "orders": field "k"`) {
		t.Error(err)
	}
	r.table.away = &SetupError{Err: errors.New("gone"), Remedy: "bring it back"}
	if err := r.run(1, nil); !errors.As(err, &setup) {
		t.Error(err)
	}
}

// The first number may be chosen as long as nothing was read; a sequence that has not got so far yet is no table that began anew.
func TestTableAfter(t *testing.T) {
	r := newTableRig(t)
	r.cfg.After = 2
	if err := r.run(1, nil); err != nil {
		t.Fatal(err)
	}
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2, 3}, 3, 3
	for _, after := range []int64{2, 100} {
		r.cfg.After = after
		if err := r.run(1, nil); err != nil {
			t.Fatal(err)
		}
		r.want(3)
	}
}

// A number that the database did not give out is not read: those below it, which it gives out later, would be passed over.
func TestTableStopsBeforeNumbersOfOthers(t *testing.T) {
	r := newTableRig(t)
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2, 1000}, 1000, 2
	var setup *SetupError
	if err := r.run(1, nil); !errors.As(err, &setup) || !strings.Contains(err.Error(), "number 1000, and has given out 2 only") {
		t.Error(err)
	}
	r.want()
	r.table.given = 1000 // as the remedy says
	if err := r.run(1, nil); err != nil {
		t.Error(err)
	}
	r.want(1, 2, 1000)
}

// How far a table was read by one column says nothing of another one.
func TestTableByAnotherColumn(t *testing.T) {
	r := newTableRig(t)
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2}, 2, 2
	if err := r.run(1, nil); err != nil {
		t.Fatal(err)
	}
	r.cfg.Column = "nr"
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2, 3}, 3, 3
	var setup *SetupError
	if err := r.run(1, nil); !errors.As(err, &setup) || !strings.Contains(err.Error(), "id of orders") || r.table.reader != nil {
		t.Error(err, r.table.reader)
	}
	r.want(1, 2)
}

// Pauses grow while the database is away, and begin again with the next time.
func TestTablePausesBeginAgain(t *testing.T) {
	r := newTableRig(t)
	r.table.away = errors.New("away")
	var pauses []time.Duration
	if err := r.run(7, func(d time.Duration) {
		pauses = append(pauses, d)
		switch len(pauses) {
		case 3:
			r.table.away = nil
		case 4:
			r.table.away = errors.New("away again")
		}
	}); err != nil {
		t.Fatal(err)
	}
	want := []time.Duration{tableRetry, 2 * tableRetry, 4 * tableRetry, r.cfg.Poll, tableRetry, 2 * tableRetry, 4 * tableRetry}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
}

// Who stands by after the database was away has no failing table.
func TestTableThatStandsByDoesNotFail(t *testing.T) {
	r := newTableRig(t)
	registry := prometheus.NewRegistry()
	var err error
	if r.metrics, err = metric.NewIngress(registry, "p", []metric.Source{{Name: "s", Table: true}}); err != nil {
		t.Fatal(err)
	}
	failing := func() float64 {
		all, err := registry.Gather()
		for _, f := range all {
			if f.GetName() == "streamd_ingress_table_failing" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("no such metric", err)
		return 0
	}
	r.table.away = errors.New("away")
	waits := 0
	if err := r.run(2, func(time.Duration) {
		waits++
		if got, want := failing(), float64(2-waits); got != want {
			t.Errorf("wait %d: failing is %v, want %v", waits, got, want)
		}
		r.table.away, r.table.reader = nil, "another one"
	}); err != nil {
		t.Fatal(err)
	}
}

// Source b-c of pipeline a and source c of pipeline a-b have one topic of positions. Each goes by its own.
func TestTablePositionsAreOfOneSource(t *testing.T) {
	r := newTableRig(t)
	r.table.rows, r.table.decided, r.table.given = []int64{1, 2}, 2, 2
	if err := r.run(1, nil); err != nil {
		t.Fatal(err)
	}
	r.newLog = func() *Log {
		cfg := r.log().cfg
		cfg.TransactionalID, cfg.Source = "another", "another"
		return NewLog(cfg)
	}
	if err := r.run(1, nil); err != nil {
		t.Fatal(err)
	}
	if got := r.counts(); got["another/orders/1"] != 1 || got["another/orders/2"] != 1 {
		t.Error(got)
	}
}
