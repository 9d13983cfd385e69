package processor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// tapTask is a task that drops repeats, then what is not below 100, and fails at 7.
func tapTask(t testing.TB, taps *tapPoint) *Task {
	t.Helper()
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64())
	unique := topology.Dedup(in, "unique", topology.Retention(time.Hour), topology.ID(func(r record.Record[string, int64]) record.ID { return record.StringID(strconv.FormatInt(r.Value, 10)) }))
	small := topology.Filter(unique, func(r record.Record[string, int64]) (bool, error) { return r.Value < 100, nil }, topology.Name("small"))
	mapped := topology.MapValues(small, func(r record.Record[string, int64]) (int64, error) {
		if r.Value == 7 {
			return 0, errors.New("seven")
		}
		return r.Value * 10, nil
	}, topology.Name("mapped"), topology.OnError(topology.PolicySkip))
	topology.To(mapped, "out", serde.String(), serde.Int64(), topology.Name("publish"))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	log, err := txlog.Open(txlog.Options{Dir: t.TempDir(), App: "app"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	local, err := logAdapter{log}.Task("in/0")
	if err != nil {
		t.Fatal(err)
	}
	task, err := newTask(taskConfig{
		sub: topo.Subtopologies()[0], inputs: []record.TopicPartition{{Topic: "in"}}, inputIDs: []string{"uuid"}, clusterID: "cluster",
		sinks: []sinkTarget{{operator: "publish", topic: "out", partitions: 1, maxBytes: 1 << 20}}, idLog: "ids", idLogBytes: 1 << 20, taps: taps,
	}, "in/0", local, record.CommitPoint{Incarnation: 1})
	if err != nil {
		t.Fatal(err)
	}
	task.changelogs = []record.ChangelogPosition{{TopicPartition: record.TopicPartition{Topic: "ids"}}}
	return task
}

// feed runs records with these values, from the offset on, and forgets the transaction.
func feed(t testing.TB, task *Task, from record.Offset, values ...int64) {
	t.Helper()
	x := broker.Batch{TopicPartition: record.TopicPartition{Topic: "in"}, Next: from + record.Offset(len(values))}
	for i, v := range values {
		x.Records = append(x.Records, tapRecord(from+record.Offset(i), v))
	}
	task.AddRecords(x)
	for n := 1; n > 0; {
		var err error
		if n, err = task.Process(start, quantum); err != nil {
			t.Fatal(err)
		}
	}
}

func tapRecord(at record.Offset, v int64) broker.Record {
	return broker.Record{
		Offset: at, Timestamp: epoch, Key: []byte("k" + strconv.FormatInt(v, 10)), Value: binary.BigEndian.AppendUint64(nil, uint64(v)),
		Headers: record.Headers{{Key: "h", Value: []byte("x")}},
	}
}

// drain takes what a tap has.
func drain(x *tap) []Tapped {
	var out []Tapped
	for len(x.out) > 0 {
		out = append(out, <-x.out)
	}
	return out
}

// TestTap: each step tells what became of the records that reached it.
func TestTap(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  TapConfig
		want string
	}{
		{"source", TapConfig{Step: "in"}, "in/0@0 out; in/0@1 out; in/0@2 out; in/0@3 undone; in/0@4 out"},
		{"dedup", TapConfig{Step: "unique"}, "in/0@0 out; in/0@1 duplicate; in/0@2 out; in/0@3 undone; in/0@4 out"},
		{"duplicates", TapConfig{Step: "unique", Results: []string{"duplicate"}}, "in/0@1 duplicate"},
		{"filter", TapConfig{Step: "small"}, "in/0@0 out; in/0@2 filtered; in/0@3 undone; in/0@4 out"},
		{"map", TapConfig{Step: "mapped"}, "in/0@0 out; in/0@3 error seven; in/0@4 out"},
		{"errors", TapConfig{Step: "mapped", Results: []string{TapError}}, "in/0@3 error seven"},
		{"sink", TapConfig{Step: "publish"}, "in/0@0 out to out/0; in/0@4 out to out/0"},
		{"key", TapConfig{Step: "in", Key: []byte("k2")}, "in/0@4 out"},
		{"no such key", TapConfig{Step: "in", Key: []byte{}}, ""},
		{"ID", TapConfig{Step: "in", ID: "1"}, "in/0@0 out; in/0@1 out"},
		{"ID at a step behind", TapConfig{Step: "publish", ID: "2"}, "in/0@4 out to out/0"},
		{"no such ID", TapConfig{Step: "in", ID: "3"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			taps := &tapPoint{}
			task := tapTask(t, taps)
			c.cfg.Rate = 100
			x := &tap{TapConfig: c.cfg, hash: c.cfg.ID.Hash(), out: make(chan Tapped, tapQueue)}
			if err := taps.add(x); err != nil {
				t.Fatal(err)
			}
			feed(t, task, 0, 1, 1, 500, 7, 2)
			var got []string
			for _, s := range drain(x) {
				line := s.Position + " " + strings.Join(s.Results, ",")
				if s.To != "" {
					line += " to " + s.To
				}
				if i := strings.LastIndex(s.Error, ": "); slices.Contains(s.Results, TapError) {
					line += " " + s.Error[i+1:]
				}
				got = append(got, line)
			}
			if text := strings.ReplaceAll(strings.Join(got, "; "), "  ", " "); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
			for _, l := range task.ids {
				if l.tapped {
					t.Error("the dedup step goes on telling")
				}
			}
		})
	}
}

// TestTapChangesNothing: with taps, taken off and hung up in the middle, a task does what it does without.
func TestTapChangesNothing(t *testing.T) {
	values := []int64{1, 1, 500, 7, 2, 3, 7, 3, 101, 4}
	result := func(tapped bool) string {
		taps := &tapPoint{}
		task := tapTask(t, taps)
		a := &tap{TapConfig: TapConfig{Step: "in", Rate: 2, ID: "1"}, out: make(chan Tapped, 1)}
		b := &tap{TapConfig: TapConfig{Step: "mapped", Rate: 1000}, out: make(chan Tapped, tapQueue)}
		for i, v := range values {
			if tapped && i%3 == 0 {
				taps.remove(a)
				_, _ = taps.add(a), taps.add(b)
			}
			if tapped && i%4 == 3 {
				taps.remove(b)
			}
			feed(t, task, record.Offset(i), v)
		}
		txn := task.PrepareCommit(start)
		return fmt.Sprintf("%+v\n%+v\n%+v", txn.Outputs, txn.Changelog, txn.Batch.Position)
	}
	if with, without := result(true), result(false); with != without {
		t.Errorf("with taps\n%s\nwithout\n%s", with, without)
	}
}

// TestTapBounds: nobody waits for one who does not read, what passes unseen is counted, and large values are cut.
func TestTapBounds(t *testing.T) {
	x := &tap{TapConfig: TapConfig{Rate: 3}, out: make(chan Tapped, 2)}
	big := make([]byte, 2*maxTapBytes)
	big[0] = 'v'
	now := start
	for range 5 { // two fit
		x.show(Tapped{}, epoch, nil, big, record.Headers{{Key: "a", Value: big}}, now)
	}
	got := drain(x)
	if len(got) != 2 || len(got[0].Value) != maxTapBytes || !got[0].Cut || len(got[0].Headers) != 0 || got[0].Key != nil {
		t.Fatalf("%d records, %d bytes, cut %v", len(got), len(got[0].Value), got[0].Cut)
	}
	if clear(big); got[0].Value[0] != 'v' {
		t.Error("what is shown is the task's own memory")
	}
	x.show(Tapped{}, epoch, []byte{}, nil, nil, now) // the third of this second
	x.show(Tapped{}, epoch, nil, nil, nil, now)      // too fast
	x.show(Tapped{}, epoch, nil, nil, nil, now.Add(time.Second))
	if got := drain(x); len(got) != 2 || got[0].Missed != 3 || got[1].Missed != 1 || got[0].Key == nil || got[0].Cut {
		t.Fatalf("%+v", got)
	}
}

// TestTapEvery: a sample is no loss.
func TestTapEvery(t *testing.T) {
	x := &tap{TapConfig: TapConfig{Rate: 100, Every: 3}, out: make(chan Tapped, 10)}
	for i := range 7 {
		x.show(Tapped{Position: strconv.Itoa(i)}, epoch, nil, nil, nil, start)
	}
	var got []string
	for _, s := range drain(x) {
		got = append(got, s.Position)
	}
	if text := strings.Join(got, " "); text != "0 3 6" || x.takeMissed() != 0 {
		t.Errorf("shown: %s", text)
	}
	x = &tap{TapConfig: TapConfig{Rate: 1}, out: make(chan Tapped, 10)}
	for range 3 {
		x.show(Tapped{}, epoch, nil, nil, nil, start)
	}
	if n := x.takeMissed(); n != 2 || x.takeMissed() != 0 {
		t.Errorf("%d missed", n)
	}
}

// TestTapPoint: taps come and go while tasks look, up to a limit.
func TestTapPoint(t *testing.T) {
	p := &tapPoint{}
	var xs []*tap
	for range maxTaps {
		xs = append(xs, &tap{})
		if err := p.add(xs[len(xs)-1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.add(&tap{}); !errors.Is(err, errTaps) {
		t.Errorf("one too many: %v", err)
	}
	var wg sync.WaitGroup
	for _, x := range xs {
		wg.Go(func() {
			for range 100 {
				p.remove(x)
				_ = len(p.current())
				if err := p.add(x); err != nil {
					t.Error(err)
				}
			}
			p.remove(x)
		})
	}
	wg.Wait()
	if p.current() != nil || (*tapPoint)(nil).current() != nil {
		t.Error("taps are left")
	}
}

// BenchmarkTap is a task without the hook, with it, and with taps of which one asks for an ID.
func BenchmarkTap(b *testing.B) {
	for _, c := range []struct {
		name string
		hook bool
		open int
	}{{"none", false, 0}, {"not tapped", true, 0}, {"tapped", true, 1}, {"tapped four times", true, maxTaps}} {
		b.Run(c.name, func(b *testing.B) {
			var taps *tapPoint
			if c.hook {
				taps = &tapPoint{}
			}
			task := tapTask(b, taps)
			for range c.open {
				if err := taps.add(&tap{TapConfig: TapConfig{Step: "unique", Rate: 100, ID: "1"}, out: make(chan Tapped, 1)}); err != nil {
					b.Fatal(err)
				}
			}
			values := make([]int64, 1000)
			for i := range values {
				values[i] = 1
			}
			b.ResetTimer()
			for i := 0; i < b.N; i += len(values) {
				feed(b, task, record.Offset(i), values...)
				if i%100_000 == 0 {
					task.Abort()
				}
			}
		})
	}
}
