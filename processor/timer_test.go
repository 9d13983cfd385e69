package processor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

type (
	textEmit  = topology.Emit[string, string]
	textTimer = topology.Timer[string]
)

// toFirst writes text to partition 0.
func toFirst(s *topology.Stream[string, string]) {
	topology.To(s, "out", serde.String(), serde.String(), topology.Partition(func(record.Record[string, string], int32) record.Partition { return 0 }))
}

// timerRules is what the timers of the oracle's test are for: one watches for silence of its key, put off by each record and cancelled by some;
// the other sets itself again, twice, and is in the past for late records.
const (
	silence    = 3000 // ms
	cancelling = 7    // a value divisible by it cancels
	firstEcho  = 1000
	echoEvery  = 2500
	echoes     = 3
	tickEvery  = 4000
)

// timersTopology is dedup, then an operator with timers and a schedule, then windows of what those make.
func timersTopology(t *testing.T) *topology.Topology {
	quiet, echo := topology.Timers("quiet", serde.String()), topology.Timers("echo", serde.String())
	counts := topology.KeyValue("counts", serde.String(), serde.Int64())
	show := func(what string, ms int64) string { return fmt.Sprintf("%s@%d", what, ms) }
	return numbers(t, never, func(in *topology.Stream[string, int64]) {
		once := topology.Dedup(in, "unique", topology.Retention(24*time.Hour))
		out := topology.Process(once, "watch", func(ctx topology.Context, r record.Record[string, int64], _ textEmit) error {
			if r.Value%cancelling == 0 {
				return quiet.Cancel(ctx, r.Key)
			}
			return errors.Join(
				quiet.Set(ctx, r.Key, r.Timestamp.Add(silence*time.Millisecond)),
				echo.Set(ctx, r.Key+strconv.FormatInt(r.Value, 10), r.Timestamp.Add(firstEcho*time.Millisecond)))
		}, topology.OnTimer(quiet, func(_ topology.Context, x textTimer, emit textEmit) error {
			emit(record.Record[string, string]{Key: show("quiet "+x.Key, x.At.Sub(epoch).Milliseconds())})
			return nil
		}), topology.OnTimer(echo, func(ctx topology.Context, x textTimer, emit textEmit) error {
			n, _, err := counts.Get(ctx, x.Key)
			if err != nil {
				return err
			}
			emit(record.Record[string, string]{Key: show("echo "+x.Key, x.At.Sub(epoch).Milliseconds()), Value: strconv.FormatInt(n, 10)})
			if n+1 == echoes {
				return counts.Delete(ctx, x.Key)
			}
			return errors.Join(counts.Put(ctx, x.Key, n+1), echo.Set(ctx, x.Key, x.At.Add(echoEvery*time.Millisecond)))
		}), topology.Punctuate(tickEvery*time.Millisecond, func(_ topology.Context, tick time.Time, emit textEmit) error {
			emit(record.Record[string, string]{Key: show("tick", tick.Sub(epoch).Milliseconds())})
			return nil
		}), topology.WithStore(counts), topology.PreserveKey())
		perMinute := topology.Count(topology.WindowedBy(out, window.Tumbling(time.Minute)), "per-minute", topology.EmitOnClose())
		toFirst(topology.Merge("all", out, topology.Map(perMinute, func(r record.Record[inWin, int64]) (string, string, error) {
			return show("minute "+r.Key.Key, r.Key.End.Sub(epoch).Milliseconds()), strconv.FormatInt(r.Value, 10), nil
		})))
	})
}

// oracleTimers is what the timers must do, by definition: a list of all timers that are set, searched for the earliest.
func oracleTimers(all []sample) (out []string) {
	type timer struct {
		kind int // in the order of declaration
		key  string
	}
	set := map[timer]int64{}
	counts := map[string]int{}
	lastTick := int64(-1 << 60)
	mark := int64(-1 << 60)
	fire := func() {
		for {
			var first *timer
			for k, at := range set {
				if at > mark {
					continue
				}
				if first == nil || at < set[*first] || at == set[*first] && (k.kind < first.kind || k.kind == first.kind && k.key < first.key) {
					first = &k
				}
			}
			if first == nil {
				break
			}
			at := set[*first]
			delete(set, *first)
			if first.kind == 0 {
				out = append(out, fmt.Sprintf("quiet %s@%d=", first.key, at))
				continue
			}
			out = append(out, fmt.Sprintf("echo %s@%d=%d", first.key, at, counts[first.key]))
			if counts[first.key]++; counts[first.key] == echoes {
				delete(counts, first.key)
			} else {
				set[*first] = at + echoEvery
			}
		}
		tick := mark - (mark%tickEvery+tickEvery)%tickEvery
		if lastTick > -1<<60 && tick > lastTick {
			out = append(out, fmt.Sprintf("tick@%d=", tick))
		}
		lastTick = tick
	}
	for _, s := range all {
		if s.mark > mark {
			mark = s.mark
			fire()
		}
		if s.v%cancelling == 0 {
			delete(set, timer{0, s.key})
			continue
		}
		set[timer{0, s.key}] = s.at + silence
		set[timer{1, s.key + strconv.FormatInt(s.v, 10)}] = s.at + firstEcho
		fire()
	}
	return out
}

// TestTimersAgainstAnOracle: what timers and ticks do is what the definition says, in its order; and it does not depend on
// batches, duplicates, commits, crashes and lost disks: not in order, not in IDs.
func TestTimersAgainstAnOracle(t *testing.T) {
	topo := timersTopology(t)
	for seed := range uint64(12) {
		all := randomSamples(rand.New(rand.NewPCG(seed, 1)), 120)
		w, _ := play(t, topo, all, nil)
		var got []string
		for _, line := range w.readLines("out", false) {
			if !strings.HasPrefix(line, "minute") {
				got = append(got, line)
			}
		}
		sameLines(t, got, oracleTimers(all))
		first := w.readLines("out", true)
		if len(got) < 100 || len(first) < len(got)+10 {
			t.Errorf("only %d timers and %d windows", len(got), len(first)-len(got))
		}
		w, _ = play(t, topo, all, rand.New(rand.NewPCG(seed, 2)))
		sameLines(t, w.readLines("out", true), first)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// manyTimers sets a timer for each record: by event time for even values, by the host's clock for odd ones. Some are
// put off or brought forward first, some set for nothing and cancelled. What comes of a timer says by how many ms it was late.
func manyTimers(t *testing.T) *topology.Topology {
	event, wall := topology.Timers("event", serde.String()), topology.WallTimers("wall", serde.String())
	late := func(timers *topology.TimerStore[string]) func(topology.Context, textTimer, textEmit) error {
		return func(ctx topology.Context, x textTimer, emit textEmit) error {
			now, err := timers.Now(ctx)
			emit(record.Record[string, string]{Key: x.Key, Value: strconv.FormatInt(now.Sub(x.At).Milliseconds(), 10)})
			return err
		}
	}
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.String(), topology.IDHeader("id"), topology.WithIdleness(-1))
	once := topology.Dedup(in, "unique", topology.Retention(24*time.Hour))
	out := topology.Process(once, "remind", func(ctx topology.Context, r record.Record[string, string], _ textEmit) error {
		n, err := strconv.Atoi(r.Value)
		if err != nil {
			return err
		}
		timers := event
		at := r.Timestamp
		if n%2 == 1 {
			timers = wall
			if at, err = wall.Now(ctx); err != nil {
				return err
			}
		}
		at = at.Add(time.Duration(n%977) * time.Millisecond)
		switch n % 10 {
		case 2, 3:
			err = timers.Set(ctx, r.Key, at.Add(-time.Minute))
		case 4, 5:
			err = timers.Set(ctx, r.Key, at.Add(time.Hour))
		case 6, 7:
			err = errors.Join(timers.Set(ctx, r.Key+"x", at), timers.Cancel(ctx, r.Key+"x"))
		}
		return errors.Join(err, timers.Set(ctx, r.Key, at))
	}, topology.OnTimer(event, late(event)), topology.OnTimer(wall, late(wall)))
	topology.To(out, "out", serde.String(), serde.String())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// TestManyTimers: each fires once, none early, though the process dies at 20 moments, and now and then with
// its disk. STREAMD_SOAK=1: 100,000 of them.
func TestManyTimers(t *testing.T) {
	const kills = 20
	timers := 10_000
	if os.Getenv("STREAMD_SOAK") != "" {
		timers = 100_000
	}
	w := newWorld(t, manyTimers(t))
	r := rand.New(rand.NewPCG(7, 7))
	sent, killed, sending := 0, 0, 0
	life := func() (crashed bool) {
		defer func() {
			if v := recover(); v != nil {
				if _, ok := v.(simbroker.Crash); !ok {
					panic(v)
				}
				crashed = true
			}
		}()
		s := w.live()
		calls, last := 0, 20+r.IntN(60*timers/10_000)
		verdict := []simbroker.Verdict{simbroker.CrashBefore, simbroker.CrashAfter}[r.IntN(2)]
		w.b.SetFault(func(c simbroker.Call) simbroker.Action {
			if calls++; killed < kills && calls == last {
				return simbroker.Action{Verdict: verdict}
			}
			return simbroker.Action{}
		})
		for quietFor := 0; quietFor < 100; {
			for n := 0; sent < timers+2 && n < 400; n++ {
				key, value, at, p := strconv.Itoa(sent), strconv.Itoa(sent), w.b.Now(), sent/2%2
				if sent >= timers { // the last records only move time, in both partitions
					key, at, p = "end"+key, at.Add(20*time.Second), sent%2
				}
				w.b.Append(record.TopicPartition{Topic: "in", Partition: record.Partition(p)}, broker.Record{
					Key: []byte(key), Value: []byte(value), Timestamp: at, Headers: record.Headers{{Key: "id", Value: []byte(key)}},
				})
				sent++
			}
			if err := s.Step(context.Background(), 0); err != nil {
				t.Fatal(err)
			}
			w.b.Advance(20 * time.Millisecond)
			if quietFor++; sent < timers+2 || killed < kills || !w.quiet(2, s)() {
				quietFor = 0
			}
		}
		return false
	}
	for life() {
		if killed++; sent < timers {
			sending++
		}
		if r.IntN(4) == 0 {
			w.disk = newMemoryLog()
		}
	}
	w.b.SetFault(func(simbroker.Call) simbroker.Action { return simbroker.Action{} })
	w.work(w.live(), 15*time.Second)
	if killed != kills {
		t.Errorf("%d kills, want %d", killed, kills)
	}
	fired := map[string]int{}
	for p := range record.Partition(2) {
		for _, x := range w.b.Committed(record.TopicPartition{Topic: "out", Partition: p}) {
			key := string(x.Key)
			fired[key]++
			if fired[key] > 1 {
				t.Fatalf("timer %s fired %d times", key, fired[key])
			}
			if strings.HasPrefix(string(x.Value), "-") {
				t.Fatalf("timer %s fired %s ms late", key, x.Value)
			}
		}
	}
	missing := 0
	for i := range timers {
		if fired[strconv.Itoa(i)] == 0 {
			if missing++; missing < 10 {
				t.Errorf("timer %d did not fire", i)
			}
		}
	}
	if missing > 0 {
		t.Errorf("%d timers did not fire", missing)
	}
	t.Logf("%d timers, each fired once and none early, %d kills, %d of them while timers were being set", timers, killed, sending)
}

// deadKeys are the keys of the dead letters.
func (w *world) deadKeys() (keys []string) {
	for p := range record.Partition(2) {
		for _, x := range w.b.Committed(record.TopicPartition{Topic: "dlq", Partition: p}) {
			keys = append(keys, string(x.Key))
		}
	}
	return keys
}

// TestTimerThatFails: the operator's policy decides, about an error, about an output that is too large, and about one of
// an operator behind; and what else is due is done. A window whose result is too large is no different.
func TestTimerThatFails(t *testing.T) {
	type build = func(in *topology.Stream[string, int64], policy topology.Policy) *topology.Stream[string, string]
	timers := topology.Timers("timers", serde.String())
	set := func(ctx topology.Context, r record.Record[string, int64], _ textEmit) error {
		return timers.Set(ctx, r.Key, epoch.Add(5*time.Second))
	}
	large := strings.Repeat("x", 2<<20)
	onTimer := func(in *topology.Stream[string, int64], p topology.Policy, bad func(emit textEmit) error) *topology.Stream[string, string] {
		return topology.Process(in, "remind", set, topology.OnError(p), topology.OnTimer(timers, func(_ topology.Context, x textTimer, emit textEmit) error {
			if x.Key == "bad" {
				return bad(emit)
			}
			emit(record.Record[string, string]{Key: x.Key, Value: "1"})
			return nil
		}))
	}
	for name, build := range map[string]build{
		"error": func(in *topology.Stream[string, int64], p topology.Policy) *topology.Stream[string, string] {
			return onTimer(in, p, func(emit textEmit) error { emit(record.Record[string, string]{Key: "never"}); return errors.New("no") })
		},
		"large": func(in *topology.Stream[string, int64], p topology.Policy) *topology.Stream[string, string] {
			return onTimer(in, p, func(emit textEmit) error { emit(record.Record[string, string]{Key: large}); return nil })
		},
		"behind": func(in *topology.Stream[string, int64], p topology.Policy) *topology.Stream[string, string] {
			out := onTimer(in, p, func(emit textEmit) error { emit(record.Record[string, string]{Key: "bad"}); return nil })
			return topology.Filter(out, func(r record.Record[string, string]) (bool, error) {
				if r.Key == "bad" {
					return false, errors.New("no")
				}
				return true, nil
			}, topology.OnError(p))
		},
		"window": func(in *topology.Stream[string, int64], _ topology.Policy) *topology.Stream[string, string] {
			n := topology.Count(topology.WindowedBy(in, window.Tumbling(4*time.Second)), "counts", topology.EmitOnClose())
			return topology.Map(n, func(r record.Record[inWin, int64]) (string, string, error) {
				if r.Key.Key == "bad" {
					return large, "", nil
				}
				return r.Key.Key, strconv.FormatInt(r.Value, 10), nil
			})
		},
	} {
		for _, policy := range []topology.Policy{topology.PolicyStop, topology.PolicySkip, topology.PolicyDeadLetter} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
					topology.To(build(in, policy), "out", serde.String(), serde.String(), topology.OnError(policy),
						topology.Partition(func(record.Record[string, string], int32) record.Partition { return 0 }))
				})
				w := newWorld(t, topo)
				w.opts = []Option{WithErrorPolicy(topology.PolicyStop, "dlq")}
				s := w.live()
				for _, key := range []string{"a", "bad", "c", "d"} {
					w.sendAt(0, key, 1, 1)
				}
				w.work(s, time.Second)
				w.sendAt(0, "z", 10, 1)
				want := "a=1 c=1 d=1"
				if policy == topology.PolicyStop {
					err := w.stepUntil(s)
					var te *TimerError
					if !errors.As(err, &te) || !strings.HasSuffix(string(te.Key), "bad") {
						t.Errorf("stop: %v", err)
					}
					want = ""
				} else {
					w.work(s, time.Second)
					w.work(w.live(), time.Second)
				}
				if name != "window" { // z's is due at once
					want = strings.Replace(want, "d=1", "d=1 z=1", 1)
				}
				if got := strings.Join(w.readLines("out", false), " "); got != want {
					t.Errorf("out: %q, want %q", got, want)
				}
				dead := w.deadKeys()
				if policy == topology.PolicyDeadLetter != (len(dead) == 1 && strings.HasSuffix(dead[0], "bad")) || policy != topology.PolicyDeadLetter && len(dead) > 0 {
					t.Errorf("dead letters: %q", dead)
				}
			})
		}
	}
}

// TestTimersSurvive: timers that are far away are there after the process and its disk are gone, and fire by the host's clock
// when their time has come, late if nobody was there.
func TestTimersSurvive(t *testing.T) {
	timers := topology.WallTimers("timers", serde.String())
	topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
		toFirst(topology.Process(in, "remind", func(ctx topology.Context, r record.Record[string, int64], _ textEmit) error {
			return timers.Set(ctx, r.Key, start.Add(time.Duration(r.Value)*time.Minute))
		}, topology.OnTimer(timers, func(_ topology.Context, x textTimer, emit textEmit) error {
			emit(record.Record[string, string]{Key: x.Key, Value: x.At.Format(time.TimeOnly)})
			return nil
		})))
	})
	w := newWorld(t, topo)
	s := w.live()
	for i, key := range []string{"a", "b", "c"} {
		w.sendAt(0, key, 1, int64(10*(i+1)))
	}
	w.work(s, time.Second)
	expect := func(want string) {
		t.Helper()
		if got := strings.Join(w.readLines("out", false), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	w.disk = newMemoryLog()
	s = w.live()
	w.b.Advance(start.Add(10*time.Minute).Sub(w.b.Now()) - 2*time.Second)
	w.work(s, time.Second)
	expect("")
	w.work(s, 2*time.Second)
	expect("a=00:10:00")
	w.b.Advance(time.Hour) // nobody is there
	w.disk = newMemoryLog()
	s = w.live()
	w.work(s, time.Second)
	expect("a=00:10:00 b=00:20:00 c=00:30:00")
	if n := w.disk.tasks["in/0"].store("timers").Len(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// TestSilentPartition: an input partition that never gets a record holds up neither the timers nor the windows of its
// task for longer than its idleness, nor other tasks at all. // FIELD M11
func TestSilentPartition(t *testing.T) {
	b := topology.New("app")
	from := func(topic string) *topology.Stream[string, int64] {
		return topology.From(b, topic, serde.String(), serde.Int64(), topology.WithIdleness(4*time.Second))
	}
	both := topology.Merge("both", from("in"), from("echo"))
	timers := topology.Timers("timers", serde.String())
	rings := topology.Process(both, "remind", func(ctx topology.Context, r record.Record[string, int64], _ textEmit) error {
		return timers.Set(ctx, r.Key, r.Timestamp.Add(5*time.Second))
	}, topology.OnTimer(timers, func(_ topology.Context, x textTimer, emit textEmit) error {
		emit(record.Record[string, string]{Key: x.Key, Value: "ring"})
		return nil
	}))
	counts := topology.Count(topology.WindowedBy(both, window.Tumbling(5*time.Second)), "counts", topology.EmitOnClose())
	closed := topology.Map(counts, func(r record.Record[inWin, int64]) (string, string, error) { return r.Key.Key, "closed", nil })
	toFirst(topology.Merge("all", rings, closed))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	lines := func() string { return strings.Join(w.readLines("out", false), " ") }
	w.sendAt(0, "a", 1, 1)
	w.sendAt(0, "z", 6, 1)
	w.work(s, 2*time.Second)
	if got := lines(); got != "" {
		t.Errorf("%q before the other input is idle", got)
	}
	w.work(s, 3*time.Second)
	if got := lines(); got != "a=ring a=closed" && got != "a=closed a=ring" {
		t.Errorf("%q", got)
	}
}
