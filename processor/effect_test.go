package processor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// callee is the other system: it does a call once for each idempotency key, and looks at each that comes.
type callee struct {
	w     *world
	calls []string         // value and attempt of each, as they came, with a question mark if it is uncertain
	byKey map[string]int64 // by idempotency key: the value that was asked for
	last  map[string]int64 // by record key: the highest value
	bad   []string
	fail  func(n int64) error

	waiting []func() // calls that are under way
	made    int
}

func newCallee(w *world) *callee {
	return &callee{w: w, byKey: map[string]int64{}, last: map[string]int64{}}
}

func (c *callee) complain(format string, args ...any) {
	c.bad = append(c.bad, fmt.Sprintf(format, args...))
}

// charge is the function of the effect. Records of a key have ascending values.
func (c *callee) charge(_ context.Context, call topology.Call[string, int64]) (int64, error) {
	how := ""
	if call.Uncertain {
		how = "?"
	}
	c.calls = append(c.calls, fmt.Sprintf("%d.%d%s", call.Request, call.Attempt, how))
	if !c.committed(call.Request) {
		c.complain("call %d comes before its record is committed", call.Request)
	}
	if v, ok := c.byKey[call.IdempotencyKey]; ok && v != call.Request {
		c.complain("key %s is that of %d and of %d", call.IdempotencyKey, v, call.Request)
	}
	if len(call.IdempotencyKey) != 32 {
		c.complain("key %q", call.IdempotencyKey)
	}
	for k, v := range c.byKey {
		if v == call.Request && k != call.IdempotencyKey {
			c.complain("%d comes under the keys %s and %s", v, k, call.IdempotencyKey)
		}
	}
	if call.Request < c.last[call.Key] && c.byKey[call.IdempotencyKey] == 0 {
		c.complain("%s: call %d comes for the first time after %d", call.Key, call.Request, c.last[call.Key])
	}
	c.last[call.Key] = max(c.last[call.Key], call.Request)
	c.byKey[call.IdempotencyKey] = call.Request
	if c.fail != nil {
		if err := c.fail(call.Request); err != nil {
			return 0, err
		}
	}
	return call.Request, nil
}

// committed says whether the record of a value is, by the output of its own transaction.
func (c *callee) committed(v int64) bool {
	for p := range record.Partition(2) {
		for _, r := range c.w.b.Committed(record.TopicPartition{Topic: "echo", Partition: p}) {
			if int64(binary.BigEndian.Uint64(r.Value)) == v {
				return true
			}
		}
	}
	return false
}

// hold keeps the calls until one is let go.
func (c *callee) hold() { c.w.call = func(run func()) { c.waiting = append(c.waiting, run) } }

// letGo makes one of the calls under way: another one each time, so that they end in any order.
func (c *callee) letGo() {
	if len(c.waiting) == 0 {
		return
	}
	i := c.made * 7 % len(c.waiting)
	c.made++
	run := c.waiting[i]
	c.waiting = slices.Delete(c.waiting, i, i+1)
	run()
}

// charging is the topology of these tests: what is charged goes to out, what is committed to echo.
func charging(t *testing.T, c *callee, opts ...topology.EffectOption) *topology.Topology {
	t.Helper()
	return numbers(t, nil, func(in *topology.Stream[string, int64]) {
		u := topology.Dedup(in, "unique", topology.Retention(time.Hour))
		topology.To(u, "echo", serde.String(), serde.Int64())
		out := topology.Effect(u, "charge", serde.Int64(), serde.Int64(), c.charge, opts...)
		topology.To(out, "out", serde.String(), serde.Int64())
	})
}

func newCharging(t *testing.T, opts ...topology.EffectOption) (*world, *callee) {
	t.Helper()
	w := newWorld(t, nil)
	w.b.MarkerDelay = func(tp record.TopicPartition, _ string) time.Duration {
		if tp.Topic == "echo" {
			return 0 // what is committed is seen there at once: a call must not come before
		}
		return 2 * time.Millisecond
	}
	c := newCallee(w)
	w.topo = charging(t, c, opts...)
	w.opts = []Option{WithErrorPolicy(topology.PolicyDeadLetter, "dlq")}
	return w, c
}

const chargesPerPartition = 9

// feedCharges sends three records to each partition, of two keys, and one of them twice.
func (w *world) feedCharges(portion int) {
	for p := range record.Partition(2) {
		for i := range 3 {
			n := int64(portion*3+i)*2 + int64(p) + 1
			w.send(p, fmt.Sprintf("k%d-%d", p, i%2), fmt.Sprint(n), n)
			if i == 1 {
				w.send(p, fmt.Sprintf("k%d-%d", p, i%2), fmt.Sprint(n), n)
			}
		}
	}
}

// problems compares what is committed, and what the callee saw, with what must be: each value once in out, in order by key, and
// called at least once.
func (c *callee) problems(want int) []string {
	bad := slices.Clone(c.bad)
	last, seen := map[string]int64{}, map[int64]int{}
	for p := range record.Partition(2) {
		for _, r := range c.w.b.Committed(record.TopicPartition{Topic: "out", Partition: p}) {
			v := int64(binary.BigEndian.Uint64(r.Value))
			seen[v]++
			if v <= last[string(r.Key)] {
				bad = append(bad, fmt.Sprintf("out: %s has %d after %d", r.Key, v, last[string(r.Key)]))
			}
			last[string(r.Key)] = v
			if id, _ := r.Headers.Get("record-id"); c.byKey[string(id)] != v {
				bad = append(bad, fmt.Sprintf("out: %d has the ID %s, which is no key that was called for it", v, id))
			}
		}
	}
	for v := range int64(want) {
		if seen[v+1] != 1 {
			bad = append(bad, fmt.Sprintf("out: %d is there %d times", v+1, seen[v+1]))
		}
	}
	if len(seen) != want || len(c.byKey) != want {
		bad = append(bad, fmt.Sprintf("%d values and %d keys, want %d", len(seen), len(c.byKey), want))
	}
	if n := c.intents(); n != 0 {
		bad = append(bad, fmt.Sprintf("%d calls are left in the state", n))
	}
	return bad
}

// intents is how many calls the changelog has.
func (c *callee) intents() int {
	left := map[string]bool{}
	for p := range record.Partition(2) {
		for _, r := range c.w.b.Committed(record.TopicPartition{Topic: "app-charge-changelog", Partition: p}) {
			k := fmt.Sprintf("%d %x", p, r.Key)
			if left[k] = true; r.Value == nil {
				delete(left, k)
			}
		}
	}
	return len(left)
}

// TestEffectUnderEveryFault: whatever becomes of any request of either transaction, each committed record is called and its outcome handed on
// once, in the order of its key. Calls of a process that has died or lost its tasks go on.
func TestEffectUnderEveryFault(t *testing.T) {
	stride := stride
	if os.Getenv("STREAMD_SOAK") != "" {
		stride = 1
	}
	enoughFaults(t, stride, everyFault(t, stride, func() (*world, func(*Stepper) []string) {
		w, c := newCharging(t)
		c.hold()
		w.input, w.stepped = w.feedCharges, c.letGo
		return w, func(*Stepper) []string { return c.problems(2 * chargesPerPartition) }
	}))
}

// TestEffectCrashAtEveryPoint kills the process at each place where it may die between two things: before and after each call, before and after
// each step of both commits, in a restore; with and without its disk.
func TestEffectCrashAtEveryPoint(t *testing.T) {
	for _, wipe := range []bool{false, true} {
		hit := map[string]int{}
		for at, done := 1, false; !done; at += 1 + at/40 { // the later ones are like the earlier ones
			w, c := newCharging(t)
			w.input = w.feedCharges
			n := 0
			w.point = func(name string) {
				if n++; n == at {
					hit[name]++
					panic(simbroker.Crash{})
				}
			}
			if at%2 == 0 {
				c.hold()
				w.stepped = c.letGo
			}
			_, lives, err := w.run(wipe)
			done = lives == 1
			if p := c.problems(2 * chargesPerPartition); err != nil || p != nil {
				t.Fatalf("crash at point %d of %d, wiped %v: %v, %v", at, n, wipe, err, p)
			}
		}
		for _, name := range []string{"commit.prepared", "commit.acked", "commit.applied", "effect.call", "effect.called", "restore.done"} {
			if hit[name] < 2 {
				t.Errorf("wiped %v: only %d crashes at %s", wipe, hit[name], name)
			}
		}
	}
}

// crashAt makes the process die at the nth hit of a point.
func (w *world) crashAt(point string, nth int) {
	n := 0
	w.point = func(name string) {
		if name != point {
			return
		}
		if n++; n == nth {
			panic(simbroker.Crash{})
		}
	}
}

// untilCrash steps a process until it dies.
func (w *world) untilCrash(s *Stepper) (died bool) {
	w.t.Helper()
	defer func() {
		if v := recover(); v != nil {
			if _, died = v.(simbroker.Crash); !died {
				panic(v)
			}
		}
	}()
	w.settle(s)
	return false
}

// TestEffectUncertain: a process dies when the callee has the call and nobody has its outcome.
func TestEffectUncertain(t *testing.T) {
	t.Run("retry", func(t *testing.T) {
		w, c := newCharging(t)
		w.crashAt("effect.called", 1)
		s := w.live()
		w.send(0, "ann", "x", 1)
		if !w.untilCrash(s) {
			t.Fatal("the process did not die")
		}
		s = w.live()
		w.settle(s)
		if p := c.problems(1); p != nil {
			t.Error(p)
		}
		if want := []string{"1.1", "1.1?"}; !slices.Equal(c.calls, want) {
			t.Errorf("calls %v, want %v", c.calls, want)
		}
	})
	for _, policy := range []topology.Policy{topology.PolicyDeadLetter, topology.PolicyStop, topology.PolicySkip} {
		t.Run(fmt.Sprintf("fail, policy %d", policy), func(t *testing.T) {
			w, c := newCharging(t, topology.OnUncertain(topology.Fail), topology.OnError(policy))
			w.crashAt("effect.called", 1)
			s := w.live()
			w.send(0, "ann", "x", 1)
			if !w.untilCrash(s) {
				t.Fatal("the process did not die")
			}
			s = w.live()
			if policy == topology.PolicyStop {
				for range 2 { // it stops again at each start
					err := w.stepUntil(s)
					var due *TimerError
					if !errors.Is(err, topology.ErrUncertain) || !errors.As(err, &due) || due.Operator != "charge" || !strings.Contains(err.Error(), "ann") {
						t.Fatalf("stopped with %v", err)
					}
					s = w.live()
				}
			} else {
				w.send(0, "ann", "y", 2)
				w.settle(s)
				if got := w.read("out"); !slices.Equal(got, []string{"ann=2"}) || c.intents() != 0 {
					t.Errorf("out %v, %d calls left", got, c.intents())
				}
				dead := w.records("dlq")
				if want := int(policy - topology.PolicyStop); policy == topology.PolicyDeadLetter && want != len(dead) {
					t.Fatalf("%d dead letters", len(dead))
				}
				for _, d := range dead {
					why, _ := d.Headers.Get("__streams.errors.message")
					id, _ := d.Headers.Get("id")
					if string(d.Key) != "ann" || binary.BigEndian.Uint64(d.Value) != 1 || string(id) != "x" || !strings.Contains(string(why), "not known whether") {
						t.Errorf("dead letter %q %x %v", d.Key, d.Value, d.Headers)
					}
				}
			}
			if n := slices.Index(c.calls, "1.1"); n != 0 || slices.Contains(c.calls[1:], "1.1") {
				t.Errorf("calls %v: the uncertain one was made again", c.calls)
			}
		})
	}
}

// TestEffectOrderAndBound: calls of a key one after the other, of other keys beside them, so many at a time; the backlog holds the input, not more.
func TestEffectOrderAndBound(t *testing.T) {
	w, c := newCharging(t, topology.Concurrency(2), topology.Backlog(5))
	c.hold()
	s := w.live()
	for i := range int64(20) {
		w.send(0, []string{"ann", "ann", "bob", "cid"}[i%4], fmt.Sprint(i+1), i+1)
	}
	w.settle(s)
	effect := func() EffectStatus {
		for _, o := range s.Status().Operators {
			if o.Name == "charge" {
				return *o.Effect
			}
		}
		return EffectStatus{}
	}
	if got := effect(); got != (EffectStatus{Waiting: 3, Running: 2}) || len(c.waiting) != 2 {
		t.Fatalf("with two places and a backlog of five: %+v, %d under way", got, len(c.waiting))
	}
	if next := w.b.Position("app", record.TopicPartition{Topic: "in", Partition: 0}).Next; next != 5 {
		t.Fatalf("the input is at %d, want 5", next)
	}
	c.waiting[1]() // of bob: ann's first is slow
	c.waiting = c.waiting[:1]
	w.settle(s)
	if got := w.read("out"); !slices.Equal(got, []string{"bob=3"}) {
		t.Fatalf("out %v: a slow call holds up others", got)
	}
	for range 3 {
		if len(c.waiting) == 2 {
			c.waiting[1]()
			c.waiting = c.waiting[:1]
		}
		w.settle(s)
	}
	if slices.Contains(c.calls, "2.1") {
		t.Fatalf("calls %v: the second one of ann was made before the outcome of the first", c.calls)
	}
	for range 40 {
		c.letGo()
		w.work(s, 100*time.Millisecond)
	}
	if p := c.problems(20); p != nil {
		t.Error(p)
	}
}

// TestEffectOutcomeSurvivesAbort: what the callee said is not asked again when the transaction that was to hand it on is refused.
func TestEffectOutcomeSurvivesAbort(t *testing.T) {
	w, c := newCharging(t)
	c.hold()
	s := w.live()
	w.send(0, "ann", "x", 1)
	w.settle(s)
	refused := 0
	w.b.SetFault(func(x simbroker.Call) simbroker.Action {
		if x.API == simbroker.TxnOffsetCommit && refused < 2 {
			refused++
			return simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.IllegalGeneration}
		}
		return simbroker.Action{}
	})
	c.letGo()
	w.settle(s)
	if p := c.problems(1); p != nil || refused != 2 || len(c.calls) != 1 {
		t.Errorf("%v; %d commits refused, calls %v", p, refused, c.calls)
	}
}

// TestEffectZombie: a process loses its tasks while it calls, and goes on. Its outcome is not taken, neither while it knows nothing of that nor afterwards.
func TestEffectZombie(t *testing.T) {
	w, c := newCharging(t)
	c.hold()
	old := w.live()
	w.send(0, "ann", "x", 1)
	w.settle(old)
	if len(c.waiting) != 1 {
		t.Fatalf("%d calls under way", len(c.waiting))
	}
	zombie := c.waiting[0]
	c.waiting = nil
	g := w.b.Group("app")
	g.Remove("a") // it stands still, and does not hear of it
	heir := w.member("b", newMemoryLog(), 0)
	w.settle(heir)
	if len(c.waiting) != 1 {
		t.Fatalf("%d calls of the heir under way", len(c.waiting))
	}
	zombie()
	for range 200 { // the old one wakes up and wants to commit
		if err := old.Step(context.Background(), 0); err != nil && !errors.Is(err, broker.ErrFenced) {
			t.Fatal(err)
		}
		w.b.Advance(time.Millisecond)
	}
	if got := w.read("out"); len(got) != 0 {
		t.Fatalf("out %v: the outcome of the old owner was taken", got)
	}
	c.letGo()
	w.settle(heir)
	if p := c.problems(1); p != nil || len(c.calls) != 2 {
		t.Errorf("%v; calls %v", p, c.calls)
	}
}

// TestEffectMadeAnew: a task is made anew in the process that has its calls under way, since a commit whose answer was lost has gone through. Calls have the
// same numbers again: the outcome of an old one is not that of the new one, which still is under way.
func TestEffectMadeAnew(t *testing.T) {
	w, c := newCharging(t)
	c.hold()
	s := w.live()
	w.send(0, "ann", "x", 1)
	w.settle(s)
	old := s.workers[0].runs[0].task
	lost := false
	w.b.SetFault(func(x simbroker.Call) simbroker.Action {
		if x.API != simbroker.EndTxn || lost {
			return simbroker.Action{}
		}
		lost = true
		return simbroker.Action{Verdict: simbroker.LoseAnswer}
	})
	w.send(0, "ann", "y", 2)
	w.settle(s)
	if s.workers[0].runs[0].task == old || len(c.waiting) != 2 {
		t.Fatalf("made anew: %v; %d calls under way, want one of each", s.workers[0].runs[0].task != old, len(c.waiting))
	}
	c.waiting[0]()
	c.waiting = c.waiting[1:]
	w.settle(s)
	if got := w.read("out"); len(got) != 0 || len(c.waiting) != 1 {
		t.Fatalf("out %v, %d calls under way: the outcome of the old task's call was taken", got, len(c.waiting))
	}
	for range 2 {
		c.letGo()
		w.settle(s)
	}
	if p := c.problems(2); p != nil {
		t.Errorf("%v; calls %v", p, c.calls)
	}
}

// TestEffectDrain: a process that ends, or gives its tasks away, lets its calls end first, for a while.
func TestEffectDrain(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer bool // the callee answers while it waits
		calls  int
	}{{"answered", true, 1}, {"not answered", false, 2}} {
		for _, how := range []string{"stop", "revoke"} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				w, x := newCharging(t)
				x.hold()
				s := w.live()
				w.send(0, "ann", "x", 1)
				w.settle(s)
				if len(x.waiting) != 1 {
					t.Fatalf("%d calls under way", len(x.waiting))
				}
				s.engine.sleep = func(ctx context.Context, d time.Duration) error {
					if w.b.Advance(d); c.answer {
						x.letGo()
					}
					return ctx.Err()
				}
				if how == "stop" {
					s.Stop()
					for !s.Stopped(0) {
						if err := s.Step(context.Background(), 0); err != nil {
							t.Fatal(err)
						}
					}
				}
				if how == "revoke" {
					s.Revoked(context.Background(), []record.TopicPartition{{Topic: "in", Partition: 0}, {Topic: "in", Partition: 1}})
				}
				w.b.Group("app").Remove("a")
				if got := w.read("out"); (len(got) == 1) != c.answer {
					t.Fatalf("out %v", got)
				}
				w.instance = "b"
				s = w.live()
				w.settle(s)
				for range 3 {
					x.letGo()
				}
				w.settle(s)
				if p := x.problems(1); p != nil || len(slices.Compact(slices.Sorted(maps.Values(x.byKey)))) != 1 {
					t.Error(p)
				}
			})
		}
	}
}

// TestEffectErrors: what the function cannot do goes to the policy, after so many attempts, and the next call of the key comes.
func TestEffectErrors(t *testing.T) {
	refused := errors.New("the card is refused")
	for _, c := range []struct {
		name  string
		fail  func(n int64) error
		calls []string
		dead  string
		out   []string
	}{
		{"always", func(n int64) error {
			if n == 1 {
				return refused
			}
			return nil
		}, []string{"1.1", "1.2", "1.3", "2.1"}, "after 3 attempts: the card is refused", []string{"ann=2"}},
		{"permanent", func(n int64) error {
			if n == 1 {
				return topology.Permanent(refused)
			}
			return nil
		}, []string{"1.1", "2.1"}, "the card is refused", []string{"ann=2"}},
		{"panic", func(n int64) error {
			if n == 1 {
				panic("no card")
			}
			return nil
		}, []string{"1.1", "2.1"}, "panic: no card", []string{"ann=2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, x := newCharging(t, topology.Retries(2, 10*time.Millisecond))
			x.fail = c.fail
			s := w.live()
			w.send(0, "ann", "x", 1)
			w.send(0, "ann", "y", 2)
			w.settle(s)
			if !slices.Equal(x.calls, c.calls) {
				t.Errorf("calls %v, want %v", x.calls, c.calls)
			}
			if got := w.read("out"); !slices.Equal(got, c.out) {
				t.Errorf("out %v, want %v", got, c.out)
			}
			dead := w.records("dlq")
			if len(dead) != 1 {
				t.Fatalf("%d dead letters", len(dead))
			}
			if why, _ := dead[0].Headers.Get("__streams.errors.message"); !strings.HasSuffix(string(why), c.dead) {
				t.Errorf("dead letter says %q, want %q", why, c.dead)
			}
			if x.bad != nil {
				t.Error(x.bad)
			}
		})
	}
}

// TestEffectHangs: a call that was given up keeps its place and its key until its function returns.
func TestEffectHangs(t *testing.T) {
	w, c := newCharging(t, topology.Concurrency(1))
	c.hold()
	s := w.live()
	w.send(0, "ann", "x", 1)
	w.send(0, "ann", "y", 2)
	w.settle(s)
	worker := s.workers[0]
	task := worker.runs[0].task
	worker.bring(called{task, "charge", topology.Outcome{Seq: 1, Hangs: true, Err: topology.ErrCallHangs}})
	w.settle(s)
	if dead := w.records("dlq"); len(dead) != 1 || len(c.waiting) != 1 {
		t.Fatalf("%d dead letters, %d calls under way", len(dead), len(c.waiting))
	}
	if got := task.chain.Calls[0].Stats(); got != (topology.EffectStats{Waiting: 1, Hanging: 1}) {
		t.Fatalf("%+v", got)
	}
	worker.bring(called{task, "charge", topology.Outcome{Seq: 1, Returned: true}})
	c.waiting = nil
	w.settle(s)
	c.letGo()
	w.settle(s)
	if got := w.read("out"); !slices.Equal(got, []string{"ann=2"}) {
		t.Errorf("out %v", got)
	}
}

// TestEffectWithoutID: a record that has no ID cannot be called for, since no repeat of the call could be told.
func TestEffectWithoutID(t *testing.T) {
	w := newWorld(t, nil)
	c := newCallee(w)
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"), topology.OnMissingID(topology.Forward))
	topology.To(in, "echo", serde.String(), serde.Int64())
	topology.To(topology.Effect(in, "charge", serde.Int64(), serde.Int64(), c.charge), "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w.topo = topo
	s := w.live()
	w.b.Append(record.TopicPartition{Topic: "in", Partition: 0}, broker.Record{Key: []byte("ann"), Value: make([]byte, 8), Timestamp: w.b.Now()})
	if err := w.stepUntil(s); !errors.Is(err, record.ErrNoID) {
		t.Errorf("stopped with %v", err)
	}
}
