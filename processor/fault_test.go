package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// feed is the input of the fault tests: 12 records per partition, every third one twice, in three portions.
func (w *world) feed(portion int) {
	for p := range record.Partition(2) {
		for i := range 4 {
			n := portion*4 + i
			id := fmt.Sprintf("%d-%d", p, n)
			w.send(p, fmt.Sprintf("k%d", p), id, 1)
			if n%3 == 0 {
				w.send(p, fmt.Sprintf("k%d", p), id, 1)
			}
			if n > 4 {
				w.send(p, fmt.Sprintf("k%d", p), fmt.Sprintf("%d-%d", p, n-4), 1) // of an earlier portion
			}
		}
	}
}

const (
	feedDistinct   = 24
	feedDuplicates = 2*4 + 2*7
)

// run drives the application through the three portions, starting a new process whenever one ends.
func (w *world) run(wipe bool) (s *Stepper, lives int, err error) {
	portion := 0
	for lives = 1; lives < 20; lives++ {
		ended, lifeErr := w.oneLife(&s, &portion)
		if lifeErr != nil {
			return s, lives, lifeErr
		}
		if !ended {
			return s, lives, nil
		}
		if wipe {
			w.disk = newMemoryLog()
		}
	}
	return s, lives, errors.New("too many lives")
}

// oneLife runs one process until it is done, or until it crashes.
func (w *world) oneLife(out **Stepper, portion *int) (crashed bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(simbroker.Crash); !ok {
				panic(v)
			}
			crashed = true
		}
	}()
	s := w.live()
	*out = s
	for ; ; *portion++ {
		for range 150 {
			err := s.Step(context.Background(), 0)
			if errors.Is(err, broker.ErrFenced) {
				return true, nil // a late Init of its own: the process ends and its supervisor starts it again
			}
			if err != nil {
				return false, err
			}
			if w.stepped != nil {
				w.stepped()
			}
			w.b.Advance(5 * time.Millisecond)
		}
		if *portion == 3 {
			return false, nil
		}
		if w.input != nil {
			w.input(*portion)
		} else {
			w.feed(*portion)
		}
	}
}

// check compares everything that can be seen with what must be.
func (w *world) check(s *Stepper) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if got := w.read("echo"); len(got) != feedDistinct {
		bad("echo has %d records, want %d: %v", len(got), feedDistinct, got)
	}
	out := w.read("out")
	if len(out) != feedDistinct {
		bad("out has %d records, want %d: %v", len(out), feedDistinct, out)
	}
	for i, o := range out {
		if want := fmt.Sprintf("k=%d", i+1); o != want {
			bad("out[%d] is %s, want %s", i, o, want)
			break
		}
	}
	counts := map[topology.CounterKind]uint64{}
	for _, o := range s.Status().Operators {
		if o.Name == "unique" {
			for k, v := range o.Counters {
				counts[topology.CounterKind(k)] = v
			}
		}
	}
	dups := counts[topology.CounterDuplicateCommitted] + counts[topology.CounterDuplicateOpen]
	if dups != feedDuplicates || counts[topology.CounterOut] != feedDistinct || counts[topology.CounterChecked] != feedDistinct+feedDuplicates {
		bad("counters: %d duplicates (want %d), %d out (want %d), %d checked", dups, feedDuplicates, counts[topology.CounterOut], feedDistinct, counts[topology.CounterChecked])
	}
	if s.Status().State != Running {
		bad("state %s", s.Status().State)
	}
	for _, t := range s.Status().Tasks {
		for _, in := range t.Inputs {
			if in.Lag != 0 {
				bad("task %s: lag %d of %s/%d", t.Name, in.Lag, in.Topic, in.Partition)
			}
		}
	}
	return problems
}

// TestEveryFaultAtEveryRequest runs the same little job once for each request that it makes and each
// thing that can become of it. The committed result must not depend on it. (CRASH 1-11, 13, 14, 22, 23, 39, 40)
func TestEveryFaultAtEveryRequest(t *testing.T) {
	stride := stride
	if os.Getenv("STREAMD_SOAK") != "" {
		stride = 1
	}
	hit := everyFault(t, stride, func() (*world, func(*Stepper) []string) {
		w := newWorld(t, totals(t))
		return w, w.check
	})
	enoughFaults(t, stride, hit, simbroker.InitProducerID, simbroker.OffsetFetch)
}

// enoughFaults fails if a request of a commit, or one of the others, was hit less often than proves anything.
func enoughFaults(t *testing.T, stride int, hit map[simbroker.API]int, others ...simbroker.API) {
	t.Helper()
	for _, api := range append(others, simbroker.EndTxn, simbroker.Produce, simbroker.TxnOffsetCommit, simbroker.AddPartitionsToTxn) {
		if hit[api] < 20/stride {
			t.Errorf("only %d faults at %s: the run proves nothing", hit[api], api)
		}
	}
}

// everyFault runs the job of fresh, which also says how to check its end, under each fault, at each stride-th request, and
// returns how many runs had their fault at which request.
func everyFault(t *testing.T, stride int, fresh func() (w *world, check func(*Stepper) []string)) map[simbroker.API]int {
	t.Helper()
	base, check := fresh()
	s, _, err := base.run(false)
	if err != nil {
		t.Fatal(err)
	}
	if p := check(s); p != nil {
		t.Fatalf("without a fault: %v", p)
	}
	requests := base.b.Calls()
	apis := make([]simbroker.API, requests+1) // of each request of a run without faults
	w, _ := fresh()
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.N < len(apis) {
			apis[c.N] = c.API
		}
		return simbroker.Action{}
	})
	if _, _, err := w.run(false); err != nil {
		t.Fatal(err)
	}
	faults := map[string]simbroker.Action{
		"crash before": {Verdict: simbroker.CrashBefore},
		"crash after":  {Verdict: simbroker.CrashAfter},
		"lose request": {Verdict: simbroker.LoseRequest, Wait: 100 * time.Millisecond},
		"lose answer":  {Verdict: simbroker.LoseAnswer, Wait: 100 * time.Millisecond},
		"hold 3":       {Verdict: simbroker.Hold, Requests: 3, Wait: 10 * time.Millisecond},
		"hold 40":      {Verdict: simbroker.Hold, Requests: 40, Wait: 10 * time.Millisecond},
	}
	for _, code := range []simbroker.Code{
		simbroker.UnknownServerError, simbroker.InvalidTxnState, simbroker.InvalidProducerEpoch, simbroker.CoordinatorNotAvailable,
		simbroker.NotCoordinator, simbroker.ConcurrentTransactions, simbroker.TransactionAbortable, simbroker.IllegalGeneration,
	} {
		faults[fmt.Sprintf("refuse %d", code)] = simbroker.Action{Verdict: simbroker.Refuse, Code: code}
		faults[fmt.Sprintf("handle, then fail %d", code)] = simbroker.Action{Verdict: simbroker.HandleThenFail, Code: code}
	}
	runs, shift, transactional := 0, 0, map[simbroker.API]int{}
	for _, name := range slices.Sorted(maps.Keys(faults)) { // which third of the requests a fault hits must not be chance
		action := faults[name]
		for _, wipe := range []bool{false, true} {
			crash := action.Verdict == simbroker.CrashBefore || action.Verdict == simbroker.CrashAfter
			if wipe && !crash {
				continue
			}
			shift++ // another third of the requests for each fault
			for n := 1 + shift%stride; n <= requests; n += stride {
				if apis[n] == simbroker.Fetch && n%16 != 0 || !faultable(apis[n], crash, action.Code) {
					continue
				}
				w, check := fresh()
				var hit simbroker.API
				w.b.SetFault(func(c simbroker.Call) simbroker.Action {
					if c.N != n || c.Client == "setup" || !faultable(c.API, crash, action.Code) {
						return simbroker.Action{}
					}
					hit = c.API
					return action
				})
				s, lives, err := w.run(wipe)
				if hit == "" {
					continue
				}
				runs++
				transactional[hit]++
				where := fmt.Sprintf("%s at request %d (%s), wipe=%v, %d lives", name, n, hit, wipe, lives)
				if err != nil {
					t.Errorf("%s: %v", where, err)
				} else if p := check(s); p != nil {
					t.Errorf("%s: %v", where, p)
				}
			}
		}
	}
	t.Logf("%d runs: %v", runs, transactional)
	return transactional
}

// faultable says which requests a fault may hit: all for a crash; else those that the runtime itself
// answers for (topics are looked at once, at the start, where an error is an error).
func faultable(api simbroker.API, crash bool, code simbroker.Code) bool {
	switch code {
	case simbroker.InvalidProducerEpoch:
		if api == simbroker.InitProducerID || api == simbroker.OffsetFetch {
			return false // from Init it means another owner: the end of the process, see TestFencedByAnother
		}
	case simbroker.IllegalGeneration:
		return api == simbroker.TxnOffsetCommit
	case simbroker.ConcurrentTransactions, simbroker.InvalidTxnState, simbroker.TransactionAbortable:
		if api == simbroker.OffsetFetch {
			return false
		}
	}
	switch api {
	case simbroker.Metadata, simbroker.CreateTopics, simbroker.DeleteRecords, simbroker.ListOffsets, simbroker.Fetch:
		return crash
	case simbroker.Sleep:
		return false
	}
	return true
}
