package processor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// preparing is a system in memory that prepares transactions: rows are put into a memory's when they are committed. at is asked
// for each step before it is done; lost: it is done, and the answer is err.
type preparing struct {
	rows *memory
	at   func(step string, n int) (lost bool, err error)

	mu       sync.Mutex // guards the rest
	prepared map[sink.TransactionID][]string
	steps    map[string]int
	failed   int
	aborted  int
}

func newPreparing(rows *memory) *preparing {
	return &preparing{rows: rows, prepared: map[sink.TransactionID][]string{}, steps: map[string]int{}}
}

// step runs f under the lock, with what happens to it.
func (p *preparing) step(name string, f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[name]++
	if p.at != nil {
		if lost, err := p.at(name, p.steps[name]); err != nil {
			p.failed++
			if lost {
				f()
			}
			return err
		}
	}
	f()
	return nil
}

func (p *preparing) Capabilities() sink.Capabilities {
	return sink.Capabilities{Transactions: true, Open: true, Pending: true, Recoverable: true, Repeatable: true}
}
func (p *preparing) Check(context.Context) error { return nil }
func (p *preparing) Close() error                { return nil }

func (p *preparing) Participant(context.Context, sink.Partition) (sink.Participant, error) {
	return &preparingPart{preparing: p}, nil
}

type preparingPart struct {
	*preparing
	id   sink.TransactionID
	open []string
}

func (p *preparingPart) Begin(_ context.Context, id sink.TransactionID) error {
	p.id, p.open = id, nil
	return nil
}

func (p *preparingPart) Write(_ context.Context, rows []sink.Row) error {
	for _, r := range rows {
		p.open = append(p.open, fmt.Sprintf("%s%s/%s", r.Values[0], r.Values[1], r.ID))
	}
	return nil
}

func (p *preparingPart) Prepare(context.Context) error {
	return p.step("prepare", func() { p.prepared[p.id] = p.open })
}

func (p *preparingPart) Commit(_ context.Context, id sink.TransactionID) error {
	return p.step("commit", func() {
		p.rows.mu.Lock()
		p.rows.rows = append(p.rows.rows, p.prepared[id]...)
		p.rows.mu.Unlock()
		delete(p.prepared, id)
	})
}

func (p *preparingPart) Abort(_ context.Context, id sink.TransactionID) error {
	return p.step("abort", func() {
		if _, ok := p.prepared[id]; ok {
			p.aborted++
		}
		delete(p.prepared, id)
	})
}

func (p *preparingPart) Recover(context.Context) (all []sink.TransactionID, err error) {
	err = p.step("recover", func() {
		for id := range p.prepared {
			all = append(all, id)
		}
	})
	return all, err
}

func twoColumns() sink.Table {
	return sink.Table{Name: "t", Columns: []sink.Column{{Name: "k", Kind: sink.Text}, {Name: "v", Kind: sink.Text}}}
}

func decidedTarget(t *testing.T, p *preparing) sink.Decided {
	t.Helper()
	target, err := sink.NewTwoPhase(p, twoColumns())
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// TestTwoPhaseWritesEachRecordOnce: whatever gets lost between a target, the group's offset and the target again.
func TestTwoPhaseWritesEachRecordOnce(t *testing.T) {
	gone := errors.New("the server went away")
	every := func(step string, lost bool) func(string, int) (bool, error) {
		return func(s string, n int) (bool, error) {
			if s == step && n%3 == 1 {
				return lost, gone
			}
			return false, nil
		}
	}
	own := func(r kmsg.Request) bool {
		e, ok := r.(*kmsg.EndTxnRequest)
		return ok && strings.HasSuffix(e.TransactionalID, "-sink")
	}
	for name, c := range map[string]struct {
		at    func(string, int) (bool, error)
		fault faultnet.Action // of decisions' EndTxn
	}{
		"without faults":                  {},
		"prepare fails":                   {at: every("prepare", false)},
		"answers to prepare are lost":     {at: every("prepare", true)},
		"commit fails":                    {at: every("commit", false)},
		"answers to commit are lost":      {at: every("commit", true)},
		"recover fails":                   {at: every("recover", false)},
		"answers to decisions are lost":   {fault: faultnet.LoseAnswer},
		"decisions are lost on their way": {fault: faultnet.LoseRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSinkWorld(t, newMemory(sink.TwoPhase), 0)
			p := newPreparing(w.target)
			p.at = c.at
			hits := 0
			if c.fault != 0 {
				n := faultnet.New(nil)
				w.dial = n.Dial
				var mu sync.Mutex
				var arm func()
				arm = func() {
					n.Next(faultnet.KeyOf("EndTxn"), faultnet.Fault{Do: c.fault, Match: own, Hit: func() {
						mu.Lock()
						defer mu.Unlock()
						if hits++; hits < 6 {
							arm()
						}
					}})
				}
				arm()
			}
			for round := range 3 { // each a process
				w.send(round*30, round*30+30)
				if err := w.appInto(decidedTarget(t, p), topology.PolicyStop, w.complete(round*30+30)); err != nil {
					t.Fatal(err)
				}
			}
			w.exactly(90)
			if len(p.prepared) > 0 {
				t.Errorf("%d transactions are still prepared", len(p.prepared))
			}
			if c.at != nil && p.failed == 0 || c.fault != 0 && hits < 3 {
				t.Errorf("%d steps failed, %d decisions", p.failed, hits)
			}
			for part, offset := range w.groupOffsets("app-table-sink", 2) {
				if offset <= 0 {
					t.Errorf("partition %d: the group's offset is %d", part, offset)
				}
			}
			if strings.Contains(name, "prepare are lost") && p.aborted == 0 {
				t.Error("nothing that was prepared and not decided was aborted")
			}
		})
	}
}

// A group's offset that no decision was committed with says nothing of the target: not a class that followed the target before, nor a lost group.
func TestTwoPhaseNeedsDecisions(t *testing.T) {
	t.Parallel()
	w := newSinkWorld(t, newMemory(sink.Ledger), 20)
	if err := w.app(topology.PolicyStop, w.complete(20)); err != nil {
		t.Fatal(err)
	}
	err := w.appInto(decidedTarget(t, newPreparing(w.target)), topology.PolicyStop, func() bool { return false })
	var setup *sink.SetupError
	if !errors.As(err, &setup) || !strings.Contains(err.Error(), "is no decision of this sink") {
		t.Errorf("the offset of another class: %v", err)
	}
}

// Another class writes behind a decision, and dies before the group's offset follows. The decision must not hold any more: to go on at it would write those
// rows again.
func TestTwoPhaseAfterAnotherClass(t *testing.T) {
	t.Parallel()
	w := newSinkWorld(t, newMemory(sink.TwoPhase), 20)
	p := newPreparing(w.target)
	if err := w.appInto(decidedTarget(t, p), topology.PolicyStop, w.complete(20)); err != nil {
		t.Fatal(err)
	}
	other := newMemory(sink.Plain)
	idle := func() bool { return w.status().State == processor.Running }
	if err := w.appInto(other, topology.PolicyStop, idle); err != nil {
		t.Fatal(err)
	}
	w.send(20, 25)
	if err := w.appInto(decidedTarget(t, p), topology.PolicyStop, w.complete(25)); err != nil {
		t.Fatalf("the other class has written nothing: %v", err)
	}
	w.send(25, 40)
	other.before = func(int, sink.Batch) (bool, error) { return true, errors.New("no answer") }
	if err := w.appInto(other, topology.PolicyStop, func() bool { return len(other.count()) >= 15 }); err != nil {
		t.Fatal(err)
	}
	err := w.appInto(decidedTarget(t, p), topology.PolicyStop, w.complete(40))
	var setup *sink.SetupError
	if !errors.As(err, &setup) || !strings.Contains(err.Error(), "is no decision of this sink") {
		t.Errorf("%v", err)
	}
	w.exactly(25)
}

// The group is lost, with all that was decided, and the topic still has nearly all records: they must not be written again.
func TestTwoPhaseThatLostItsGroup(t *testing.T) {
	t.Parallel()
	w := newSinkWorld(t, newMemory(sink.TwoPhase), 20)
	p := newPreparing(w.target)
	if err := w.appInto(decidedTarget(t, p), topology.PolicyStop, w.complete(20)); err != nil {
		t.Fatal(err)
	}
	w.forgetGroup()
	err := w.appInto(decidedTarget(t, p), topology.PolicyStop, func() bool { return false })
	if !errors.Is(err, processor.ErrOffsets) || !strings.Contains(err.Error(), "neither the target nor the consumer group") {
		t.Errorf("%v", err)
	}
	w.exactly(20)
	if !slices.ContainsFunc(w.target.rows, func(r string) bool { return strings.HasSuffix(r, "/id0") }) {
		t.Error("the first record is missing")
	}
}
