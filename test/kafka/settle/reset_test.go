//go:build kafka

package settle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/test/crash"
)

// bill is a record of the pipeline that is reset.
type bill struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Cents   int    `json:"cents"`
}

// totals are what it writes: for each account one value for each new bill, in order.
type totals map[string][]string

// forgetful is a pipeline that is reset again and again: dedup, a repartition topic, totals.
type forgetful struct {
	*world
	name, file string
	daemon     *crash.Daemon
	raw        *rawlog.Cluster
	producer   *kgo.Client
	bills      []bill                     // all that was sent, copies included
	read       map[rawlog.Partition]int64 // how far the totals were read
}

func newForgetful(w *world, name string) *forgetful {
	w.Helper()
	w.topics(name+"-in", name+"-out")
	f := &forgetful{world: w, name: name, producer: w.client(), read: map[rawlog.Partition]int64{}}
	f.file = w.file(name, fmt.Sprintf(`  - {name: unique, dedup: {id: value.id, retention: 7d, expected_ids: 10k, scope: partition}}
  - {name: totals, aggregate: {by: value.account, fields: {n: {count: true}, cents: {sum: value.cents}}}}
  - {name: out, to: {topic: %s-out}}
`, name))
	f.daemon = &crash.Daemon{
		Program: w.bin, File: f.file, Dir: filepath.Join(w.dir, name), HTTP: "off", Log: filepath.Join(w.dir, name+".log"),
		Args: []string{"--instance-id", "one"}, Env: []string{fault.Variable + "=" + filepath.Join(w.dir, "table")},
	}
	w.Cleanup(f.daemon.Kill)
	var err error
	if f.raw, err = rawlog.Open(rawlog.Config{Brokers: w.brokers}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(f.raw.Close)
	for n := range 40 {
		b := bill{fmt.Sprint(n), string("abcde"[n%5]), n}
		f.send(b)
		if n%4 == 0 {
			f.send(b)
		}
	}
	return f
}

func (f *forgetful) send(b bill) {
	f.Helper()
	value, err := json.Marshal(b)
	if err != nil {
		f.Fatal(err)
	}
	r := &kgo.Record{Topic: f.name + "-in", Partition: int32(b.Account[0]) % 2, Key: []byte(b.Account), Value: value}
	if err := f.producer.ProduceSync(f.Context(), r).FirstErr(); err != nil {
		f.Fatal(err)
	}
	f.bills = append(f.bills, b)
}

// whole is what a pipeline writes that has done nothing yet.
func (f *forgetful) whole() totals {
	out, seen, cents := totals{}, map[string]bool{}, map[string]int{}
	for _, b := range f.bills {
		if !seen[b.ID] {
			seen[b.ID] = true
			cents[b.Account] += b.Cents
			out[b.Account] = append(out[b.Account], fmt.Sprintf("%d %d", len(out[b.Account])+1, cents[b.Account]))
		}
	}
	return out
}

// more adds what was written since the last time.
func (f *forgetful) more(to totals) {
	f.Helper()
	bounds, err := f.raw.Bounds(f.Context(), f.name+"-out")
	if err != nil {
		f.Fatal(err)
	}
	spans := map[rawlog.Partition]rawlog.Span{}
	for p, b := range bounds {
		spans[p] = rawlog.Span{From: f.read[p], To: b.Stable}
		f.read[p] = b.Stable
	}
	err = f.raw.Read(f.Context(), spans, func(r rawlog.Record) error {
		var v struct {
			N     int
			Cents string
		}
		if err := json.Unmarshal(r.Value, &v); err != nil {
			return err
		}
		to[string(r.Key)] = append(to[string(r.Key)], fmt.Sprintf("%d %s", v.N, v.Cents))
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
}

// start lets the pipeline run until it has written enough, or has ended, and returns what it has written.
func (f *forgetful) start(enough func(totals) bool) totals {
	f.Helper()
	if err := f.daemon.Start(); err != nil {
		f.Fatal(err)
	}
	out := totals{}
	f.await(out, enough)
	return out
}

// await adds what the pipeline writes until that is enough, or the pipeline has ended.
func (f *forgetful) await(out totals, enough func(totals) bool) {
	f.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	limit := time.After(patience)
	for {
		running := f.daemon.Running()
		if f.more(out); !running || enough(out) {
			return
		}
		select {
		case <-look.C:
		case <-limit:
			f.Fatalf("%s stands still, at %v\n%s", f.name, out, f.daemon.Tail())
		}
	}
}

// stop ends the pipeline if it runs, takes it out of its group, and adds what it wrote last.
func (f *forgetful) stop(out totals) {
	f.Helper()
	if f.daemon.Running() {
		if code, err := f.daemon.Stop(patience); code != 0 || err != nil {
			f.Fatalf("it ended with %d, %v\n%s", code, err, f.daemon.Tail())
		}
	}
	if e := f.run(0, "leave", f.file, "--instance", "one"); e.code != 0 && e.code != 78 { // 78: it did not come that far
		f.Fatalf("leave ended with %d\n%s", e.code, e.out)
	}
	f.more(out)
}

// reset resets the pipeline, or dies after a time unless that is 0.
func (f *forgetful) reset(kill time.Duration) ending {
	f.Helper()
	return f.run(kill, "reset", f.file, "--data-dir", f.daemon.Dir, "--execute")
}

// refused looks that nothing is begun while it runs.
func (f *forgetful) refused(when string) {
	f.Helper()
	begun := f.table.Hits("reset.fenced") + f.table.Hits("reset.offsets")
	e := f.reset(0)
	if e.code != 75 || !strings.Contains(e.out, "has active members") || f.table.Hits("reset.fenced")+f.table.Hits("reset.offsets") != begun {
		f.Fatalf("%s, while it runs, a reset ended with %d\n%s", when, e.code, e.out)
	}
	if !f.daemon.Running() {
		f.Fatalf("%s, it ended by a reset that was refused\n%s", when, f.daemon.Tail())
	}
}

// plan is what a reset would do.
func (f *forgetful) plan() (p struct {
	Topics []string
	Logs   []string `json:"id_logs"`
},
) {
	f.Helper()
	e := f.run(0, "reset", f.file, "--data-dir", f.daemon.Dir, "--json")
	if err := json.Unmarshal([]byte(e.out), &p); err != nil || e.code != 0 {
		f.Fatalf("%v\n%s", err, e.out)
	}
	return p
}

// others is what is there that a reset has nothing to do with: all topics but those it deletes, and another group.
func (f *forgetful) others(deleted []string, group string) any {
	f.Helper()
	topics, err := f.raw.Topics(f.Context(), "")
	if err != nil {
		f.Fatal(err)
	}
	topics = slices.DeleteFunc(topics, func(t string) bool {
		return strings.HasPrefix(t, "__") || slices.Contains(deleted, t) || t == changelog.ResetsTopic(f.name)
	})
	bounds, err := f.raw.Bounds(f.Context(), topics...)
	if err != nil {
		f.Fatal(err)
	}
	for p, b := range bounds { // a pipeline deletes what it has read of its own repartition topics, when it is time
		if strings.HasSuffix(p.Topic, "-repartition") {
			bounds[p] = rawlog.Bounds{Start: b.Stable, Stable: b.Stable, End: b.End}
		}
	}
	committed, err := f.raw.Committed(f.Context(), group)
	if err != nil {
		f.Fatal(err)
	}
	return []any{bounds, committed}
}

// begun looks that nothing is left of what the pipeline has done.
func (f *forgetful) begun(when string, deleted []string) {
	f.Helper()
	for _, t := range deleted {
		if left, err := f.raw.Topics(f.Context(), t); err != nil || len(left) > 0 {
			f.Fatalf("%s: %v are left, %v", when, left, err)
		}
	}
	if _, err := os.Stat(filepath.Join(f.daemon.Dir, f.name)); !errors.Is(err, fs.ErrNotExist) {
		f.Fatalf("%s: the local state is left: %v", when, err)
	}
	at, err := f.raw.Committed(f.Context(), f.name)
	if err != nil {
		f.Fatal(err)
	}
	for n := range int32(2) {
		if o, ok := at[rawlog.Partition{Topic: f.name + "-in", Number: n}]; !ok || o.Next != 0 {
			f.Fatalf("%s: the group is at %v", when, at)
		}
	}
}

// older keeps a copy of the local state, as another machine would have it, and returns what puts it back.
func (f *forgetful) older() (back func()) {
	f.Helper()
	dir, kept := filepath.Join(f.daemon.Dir, f.name), filepath.Join(f.TempDir(), "older")
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		f.Fatal(err)
	}
	return func() {
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
			f.Fatal(err)
		}
	}
}

// TestResetKilled: reset --execute dies by kill -9 at each of its steps, and at any moment. Run again, it completes: nothing is left, and
// the pipeline writes what one does that has done nothing yet. Whoever starts the pipeline between the two gets what the old one would
// have written, what a new one writes, or a refusal: no mixture. A local store from before, as another machine has it, hinders no start after
// it. Another pipeline, whose name begins as this one's, goes on.
func TestResetKilled(t *testing.T) {
	w := newWorld(t)
	f, neighbour := newForgetful(w, "reset"), newForgetful(w, "reset-too")
	all := func(f *forgetful) func(totals) bool {
		return func(out totals) bool { return count(out) >= count(f.whole()) }
	}
	whole := func(when string) {
		t.Helper()
		out := f.start(all(f))
		f.stop(out)
		if !reflect.DeepEqual(out, f.whole()) {
			t.Fatalf("%s: a pipeline that begins anew has written %v, want %v\n%s", when, out, f.whole(), f.daemon.Tail())
		}
	}
	next := neighbour.start(all(neighbour))

	first := f.start(all(f))
	f.refused("at first")
	f.stop(first)
	plan := f.plan()
	deleted := slices.Concat(plan.Topics, plan.Logs)
	if len(plan.Topics) != 2 || len(plan.Logs) != 2 {
		t.Fatalf("to be deleted are %v", plan)
	}

	before := map[string]uint64{}
	for _, p := range fault.ResetNames() {
		before[p] = w.table.Hits(p)
	}
	back := f.older()
	begun := time.Now()
	if e := f.reset(0); e.code != 0 {
		t.Fatalf("a reset ended with %d\n%s", e.code, e.out)
	}
	took := time.Since(begun)
	hits := map[string]uint64{}
	for _, p := range fault.ResetNames() {
		hits[p] = w.table.Hits(p) - before[p]
	}
	f.begun("not killed", deleted)
	back()
	whole("not killed")

	kills, refusals := 0, 0
	for _, point := range fault.ResetNames() {
		if hits[point] == 0 {
			t.Fatalf("%s was never met", point)
		}
		for nth := uint64(1); nth <= hits[point]; nth++ {
			when := fmt.Sprintf("%s, hit %d of %d", point, nth, hits[point])
			back := f.older()
			w.table.Arm(point, nth, fault.Kill)
			if e := f.reset(0); !e.killed {
				t.Fatalf("%s: it was not killed, but ended with %d\n%s", when, e.code, e.out)
			}
			w.table.Disarm(point)
			kills++
			f.send(bill{when, fmt.Sprintf("%d", kills), kills}) // another account each time
			out := f.start(func(out totals) bool { return len(out[fmt.Sprint(kills)]) > 0 })
			if f.daemon.Running() {
				f.refused(when)
			} else {
				refusals++
			}
			f.stop(out)
			for account, got := range out {
				if want := f.whole()[account]; len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
					t.Fatalf("%s, then a start: account %s has %v, want %v\n%s", when, account, got, want, f.daemon.Tail())
				}
			}
			others := f.others(deleted, neighbour.name)
			if e := f.reset(0); e.code != 0 {
				t.Fatalf("%s: the next reset ended with %d\n%s", when, e.code, e.out)
			}
			f.begun(when, deleted)
			if now := f.others(deleted, neighbour.name); !reflect.DeepEqual(now, others) {
				t.Fatalf("%s: what is no part of it was %v, is %v", when, others, now)
			}
			back()
			whole(when)
		}
	}
	random := 0
	for i := range moments {
		when := fmt.Sprintf("moment %d of %d", i+1, moments)
		if e := f.reset(took * time.Duration(2*i+1) / (2 * moments)); e.killed {
			random++
		} else if e.code != 0 {
			t.Fatalf("%s: it ended with %d\n%s", when, e.code, e.out)
		}
		if e := f.reset(0); e.code != 0 {
			t.Fatalf("%s: the next reset ended with %d\n%s", when, e.code, e.out)
		}
		f.begun(when, deleted)
		whole(when)
	}
	t.Logf("%d kills at points, %d at any moment; a reset takes %v; %d starts between two resets were refused", kills, random, took, refusals)

	neighbour.send(bill{"last", "z", 1})
	neighbour.await(next, all(neighbour))
	neighbour.stop(next)
	if !reflect.DeepEqual(next, neighbour.whole()) {
		t.Errorf("another pipeline has written %v, want %v", next, neighbour.whole())
	}
}

func count(t totals) (n int) {
	for all := range maps.Values(t) {
		n += len(all)
	}
	return n
}
