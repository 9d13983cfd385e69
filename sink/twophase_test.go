package sink_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// noted is a system that prepares transactions and notes what is done to them.
type noted struct {
	prepared []sink.TransactionID
	ended    []string
}

func (n *noted) Capabilities() sink.Capabilities {
	return sink.Capabilities{Transactions: true, Open: true, Pending: true, Recoverable: true, Repeatable: true}
}
func (n *noted) Check(context.Context) error { return nil }
func (n *noted) Close() error                { return nil }

func (n *noted) Participant(context.Context, sink.Partition) (sink.Participant, error) {
	return &notedPart{noted: n}, nil
}

// notedPart is one partition's part of it. Nothing is written.
type notedPart struct {
	*noted
	sink.Participant
}

func (n *notedPart) Close() error { return nil }

func (n *notedPart) Recover(context.Context) ([]sink.TransactionID, error) {
	return slices.Clone(n.prepared), nil
}

func (n *notedPart) Commit(_ context.Context, id sink.TransactionID) error {
	n.ended = append(n.ended, "commit "+string(id))
	return nil
}

func (n *notedPart) Abort(_ context.Context, id sink.TransactionID) error {
	n.ended = append(n.ended, "abort "+string(id))
	return nil
}

// standing is a place where one decision stands.
type standing struct {
	last sink.Decision
	made []sink.Decision
}

func (s *standing) Last(context.Context) (sink.Decision, bool, error) { return s.last, true, nil }

func (s *standing) Decide(_ context.Context, d sink.Decision) error {
	s.made = append(s.made, d)
	return nil
}

// TestDecisionOfAnotherTopic: a group's offset outlives its topic, or is copied to another cluster with its metadata. It says nothing of the topic that
// has the name now: to go on at it would leave out what stands before, or write again what stands behind.
func TestDecisionOfAnotherTopic(t *testing.T) {
	table := sink.Table{Name: "t", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}}
	p := sink.Partition{Sink: "app/table", TopicPartition: record.TopicPartition{Topic: "app-table-sink", Partition: 1}, TopicID: "now"}
	for name, change := range map[string]func(*sink.Partition){
		"":                  func(*sink.Partition) {},
		"another topic":     func(p *sink.Partition) { p.TopicID = "before" },
		"another partition": func(p *sink.Partition) { p.TopicPartition.Partition = 11 },
		"another sink":      func(p *sink.Partition) { p.Sink = "app/tables" },
	} {
		of := p
		change(&of)
		id, open := sink.NewTransactionID(of, 7, time.Now()), sink.NewTransactionID(p, 9, time.Now())
		system, at := &noted{prepared: []sink.TransactionID{open}}, &standing{last: sink.Decision{Next: 7, ID: id}}
		target, err := sink.NewTwoPhase(system, table)
		if err != nil {
			t.Fatal(err)
		}
		w, err := target.ClaimDecided(t.Context(), p, at)
		if name == "" {
			if err != nil {
				t.Fatal(err)
			}
			if next, ok := w.Next(); next != 7 || !ok || len(at.made) != 1 || !slices.Equal(system.ended, []string{"commit " + string(id), "abort " + string(open)}) {
				t.Errorf("next %d, %v; decided %v, ended %v", next, ok, at.made, system.ended)
			}
			continue
		}
		var setup *sink.SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), string(id)) || setup.Remedy == "" || len(at.made)+len(system.ended) != 0 {
			t.Errorf("%s: %v; decided %v, ended %v", name, err, at.made, system.ended)
		}
	}
}
