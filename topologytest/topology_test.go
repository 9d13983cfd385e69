package topologytest_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/topologytest"
)

type pair = record.Record[string, int64]

// fake is a test whose failures are looked at.
type fake struct {
	messages []string
	cleanups []func()
}

func (f *fake) Helper()          {}
func (f *fake) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }
func (f *fake) Errorf(format string, args ...any) {
	f.messages = append(f.messages, fmt.Sprintf(format, args...))
}

func (f *fake) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

// failures runs a test and returns what it complains of.
func failures(test func(t topologytest.TB)) string {
	f := &fake{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(f.cleanups) - 1; i >= 0; i-- {
				f.cleanups[i]()
			}
		}()
		test(f)
	}()
	<-done
	return strings.Join(f.messages, "\n")
}

// bills is the topology of these tests: dedup by the header, sums by key, and by the key's first letter behind a repartition.
func bills() (*topology.Topology, error) {
	b := topology.New("app")
	in := topology.From(b, "bills", serde.String(), serde.Int64())
	unique := topology.Dedup(in, "unique", topology.Retention(time.Hour))
	topology.To(unique, "copy", serde.String(), serde.Int64())
	add := func(a int64, r pair) (int64, error) { return a + r.Value, nil }
	topology.To(topology.Aggregate(unique, "totals", serde.Int64(), add), "bill-totals", serde.String(), serde.Int64())
	by := topology.KeyBy(unique, "by-letter", serde.String(), func(r pair) (string, error) { return r.Key[:1], nil })
	topology.To(topology.Aggregate(by, "letters", serde.Int64(), add), "letter-totals", serde.String(), serde.Int64())
	return b.Build()
}

func must(t *testing.T, topo *topology.Topology, err error) *topology.Topology {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func built(t *testing.T) *topology.Topology {
	t.Helper()
	topo, err := bills()
	return must(t, topo, err)
}

var crashPoints = []topologytest.CrashPoint{
	topologytest.BeforeCommit, topologytest.BeforeOffsets, topologytest.BeforeEndTxn, topologytest.AfterEndTxn,
	topologytest.AfterCommitBeforeApply, topologytest.AfterApply,
}

func TestEveryCrashPoint(t *testing.T) {
	for _, p := range crashPoints {
		for _, instances := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d instances", p, instances), func(t *testing.T) {
				d := topologytest.New(t, built(t), topologytest.Partitions("bills", 4), topologytest.Instances(instances))
				in := topologytest.Input(d, "bills", serde.String(), serde.Int64())
				totals := topologytest.Output(d, "bill-totals", serde.String(), serde.Int64())
				letters := topologytest.Output(d, "letter-totals", serde.String(), serde.Int64())
				in.Send("ann", 5, topologytest.ID("b1"))
				in.Send("ann", 5, topologytest.ID("b1"))
				totals.ExpectValues(5)
				d.CrashAt(p)
				in.Send("ann", 7, topologytest.ID("b2"))
				in.Send("ann", 5, topologytest.ID("b1"))
				totals.ExpectValues(12)
				totals.ExpectNone()
				letters.ExpectValues(5, 12)
				if v, ok := topologytest.Store(d, "totals", serde.String(), serde.Int64()).Get("ann"); !ok || v != 12 {
					t.Errorf("store: %d, %v", v, ok)
				}
			})
		}
	}
}

func TestDuringRestore(t *testing.T) {
	d := topologytest.New(t, built(t))
	in := topologytest.Input(d, "bills", serde.String(), serde.Int64())
	out := topologytest.Output(d, "bill-totals", serde.String(), serde.Int64())
	in.Send("ann", 1, topologytest.ID("1"))
	d.Run()
	d.CrashAt(topologytest.DuringRestore)
	d.LoseDisks()
	in.Send("ann", 2, topologytest.ID("2"))
	out.ExpectValues(1, 3)
}

func TestFenceAndRebalance(t *testing.T) {
	for _, instances := range []int{1, 2, 3} {
		d := topologytest.New(t, built(t), topologytest.Partitions("bills", 3), topologytest.Instances(instances))
		in := topologytest.Input(d, "bills", serde.String(), serde.Int64())
		out := topologytest.Output(d, "bill-totals", serde.String(), serde.Int64())
		want := map[string]int64{}
		for i := range 30 {
			key := string(rune('a' + i%5))
			want[key] += int64(i)
			in.Send(key, int64(i), topologytest.ID(fmt.Sprint(i)))
			switch i % 10 {
			case 1:
				d.LoseSessions()
			case 3:
				d.Fence()
			case 6:
				d.Rebalance()
			case 9:
				d.Crash()
			}
		}
		if got := topologytest.Table(out); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d instances: %v, want %v", instances, got, want)
		}
	}
}

func TestDuplicatesAndOrder(t *testing.T) {
	d := topologytest.New(t, built(t), topologytest.Partitions("bills", 2), topologytest.Duplicates(1), topologytest.Reordered(5))
	bills := topologytest.Input(d, "bills", serde.String(), serde.Int64())
	out := topologytest.Output(d, "copy", serde.String(), serde.Int64())
	for i := range 50 {
		bills.Send(string(rune('a'+i%7)), int64(i), topologytest.ID(fmt.Sprint(i)))
	}
	out.AssertExactlyOnce(bills.IDs(func(v int64) string { return fmt.Sprint(v) }), func(r topologytest.Record[string, int64]) string { return string(r.ID()) })
	inOrder := true
	var last int64 = -1
	for _, r := range out.Records() {
		if r.Position.Partition == 0 {
			inOrder = inOrder && r.Value > last
			last = r.Value
		}
	}
	if inOrder {
		t.Error("the input was to be out of order")
	}
}

// TestPageViewTable is the classic exercise: offsets (0, 1000), counts (app1, 50000), (app2, 10000), all at one commit.
// After a crash, with or without the disk, the same table comes back, and goes on.
func TestPageViewTable(t *testing.T) {
	b := topology.New("pv")
	views := topology.From(b, "pageviews", serde.String(), serde.Int64())
	topology.To(topology.Sum(views, "counts", func(r pair) (int64, error) { return r.Value, nil }), "table", serde.String(), serde.Int64())
	topo, err := b.Build()
	d := topologytest.New(t, must(t, topo, err), topologytest.Partitions("pageviews", 2))
	in := topologytest.Input(d, "pageviews", serde.String(), serde.Int64())
	counts := topologytest.Store(d, "counts", serde.String(), serde.Int64())
	table := func() string {
		st := d.Status()[0].Tasks
		s := "offsets"
		for _, task := range st {
			for _, in := range task.Inputs {
				s += fmt.Sprintf(" %d", in.Next)
			}
		}
		for _, e := range counts.All() {
			s += fmt.Sprintf(", %s %d", e.Key, e.Value)
		}
		return s
	}
	for i := range 1000 {
		app := "app1"
		if i%2 == 1 {
			app = "app2"
		}
		in.Send(app, map[string]int64{"app1": 100, "app2": 20}[app], topologytest.ToPartition(1))
	}
	const want = "offsets 0 1000, app1 50000, app2 10000"
	if got := table(); got != want {
		t.Fatalf("the table is %q, want %q", got, want)
	}
	d.Crash()
	if got := table(); got != want {
		t.Errorf("after a crash the table is %q", got)
	}
	d.LoseDisks()
	if got := table(); got != want {
		t.Errorf("after the loss of the disk the table is %q", got)
	}
	d.CrashAt(topologytest.AfterCommitBeforeApply)
	in.Send("app2", 1, topologytest.ToPartition(1))
	if got := table(); got != "offsets 0 1001, app1 50000, app2 10001" {
		t.Errorf("it goes on with %q", got)
	}
}

// TestSumDiesInMemory: a sum commits at 4 and is 12 in memory when the process dies. After the restart it is 4, and then right.
func TestSumDiesInMemory(t *testing.T) {
	b := topology.New("sum")
	in := topology.From(b, "numbers", serde.String(), serde.Int64())
	topology.To(topology.Sum(in, "sum", func(r pair) (int64, error) { return r.Value, nil }), "sums", serde.String(), serde.Int64())
	topo, err := b.Build()
	d := topologytest.New(t, must(t, topo, err))
	numbers := topologytest.Input(d, "numbers", serde.String(), serde.Int64())
	sums := topologytest.Output(d, "sums", serde.String(), serde.Int64())
	store := topologytest.Store(d, "sum", serde.String(), serde.Int64())
	numbers.Send("s", 4)
	sums.ExpectValues(4)
	d.CrashAt(topologytest.BeforeCommit)
	numbers.Send("s", 3)
	numbers.Send("s", 5)
	sums.ExpectValues(7, 12) // not 12 + 8: the sum of 12 died with the process
	if v, _ := store.Get("s"); v != 12 {
		t.Errorf("the store says %d", v)
	}
	if st := d.Status()[0].Tasks[0]; st.Inputs[0].Next != 3 || st.Sequence != 2 {
		t.Errorf("the task is at %+v", st)
	}
}

func TestExpectStop(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64())
	odd := topology.MapValues(in, func(r pair) (int64, error) {
		if r.Value < 0 {
			return 0, fmt.Errorf("%d is negative", r.Value)
		}
		return r.Value, nil
	})
	topology.To(odd, "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	d := topologytest.New(t, must(t, topo, err))
	topologytest.Input(d, "in", serde.String(), serde.Int64()).Send("k", -1)
	if err := d.ExpectStop(); !strings.Contains(err.Error(), "-1 is negative") || !strings.Contains(err.Error(), "in/0@0") {
		t.Error(err)
	}
}

// TestMessages: what a test kit is for is what it says when something is wrong.
func TestMessages(t *testing.T) {
	topo := built(t)
	kit := func(t topologytest.TB) (*topologytest.Driver, *topologytest.InputTopic[string, int64], *topologytest.OutputTopic[string, int64]) {
		d := topologytest.New(t, topo)
		return d, topologytest.Input(d, "bills", serde.String(), serde.Int64()), topologytest.Output(d, "bill-totals", serde.String(), serde.Int64())
	}
	for name, c := range map[string]struct {
		test func(t topologytest.TB)
		want []string
	}{
		"missing": {func(t topologytest.TB) {
			_, in, out := kit(t)
			in.Send("ann", 1, topologytest.ID("1"))
			out.ExpectValues(1, 2)
		}, []string{"1 of 2 records came", "the next one was to be 2", `#1 to bills/0: "ann"`}},
		"too many": {func(t topologytest.TB) {
			_, in, out := kit(t)
			in.Send("ann", 1, topologytest.ID("1"))
			out.ExpectNone()
		}, []string{"1 records came, want 0", "bill-totals/0@0 with 1"}},
		"other": {func(t topologytest.TB) {
			d, in, out := kit(t)
			d.CrashAt(topologytest.AfterEndTxn)
			in.Send("ann", 1, topologytest.ID("1"))
			out.ExpectValues(2)
		}, []string{"is\n\t1, want\n\t2", "process a dies after the end of the transaction, after record #1"}},
		"twice": {func(t topologytest.TB) {
			_, in, out := kit(t)
			in.Send("ann", 1, topologytest.ID("1"))
			in.Send("ann", 0, topologytest.ID("2"))
			out.AssertExactlyOnce([]string{"1", "3"}, func(r topologytest.Record[string, int64]) string { return fmt.Sprint(r.Value) })
		}, []string{`"1" is in bill-totals/0@0 and again in bill-totals/0@1`, `"3", ID 2 of what was sent, is missing`}},
		"no such topic": {func(t topologytest.TB) {
			d, _, _ := kit(t)
			topologytest.Output(d, "billtotals", serde.String(), serde.Int64())
		}, []string{`no input or output topic "billtotals"`}},
		"no such store": {func(t topologytest.TB) {
			d, _, _ := kit(t)
			topologytest.Store(d, "total", serde.String(), serde.Int64())
		}, []string{`no state store "total"`}},
		"a crash that never came": {func(t topologytest.TB) {
			d, _, _ := kit(t)
			d.CrashAt(topologytest.BeforeCommit)
			d.Run()
		}, []string{"no process came to the point"}},
		"never looked": {func(t topologytest.TB) {
			_, in, _ := kit(t)
			in.Send("ann", 1)
		}, []string{"1 records were sent and never processed"}},
		"no such point": {func(t topologytest.TB) {
			d, _, _ := kit(t)
			d.CrashAt("lunch")
		}, []string{"there is no such point"}},
		"wrong partition": {func(t topologytest.TB) {
			_, in, _ := kit(t)
			in.Send("ann", 1, topologytest.ToPartition(3))
		}, []string{"bills/3: the topic has 1 partitions"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := failures(c.test)
			for _, w := range c.want {
				if !strings.Contains(got, w) {
					t.Errorf("the message is\n%s\nwant %q in it", got, w)
				}
			}
		})
	}
}
