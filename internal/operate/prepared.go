package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// preparedAge is how long a transaction of a target may be prepared before it is strange: a batch's is for a moment, and what was left behind is ended
// at the next claim, or by the owner within a minute.
const preparedAge = 2 * time.Minute

// byHand is how somebody ends a transaction whose pipeline will not.
const byHand = "PostgreSQL: COMMIT PREPARED 'NAME' or ROLLBACK PREPARED 'NAME'; MySQL, MariaDB: XA COMMIT or XA ROLLBACK 'what stands before the colon','what stands behind it'"

// prepared names what stays prepared in the target of a sink: it holds its rows, and in PostgreSQL all vacuuming, until somebody ends it.
func (d *doctor) prepared(ctx context.Context, check string, s *topology.Subtopology) {
	target, ok := s.External.Target.(sink.Decided)
	if !ok || target.Class() != sink.TwoPhase {
		return
	}
	pending, err := target.Pending(ctx)
	if err != nil {
		d.note(check, Warning, "", "what is prepared in its target could not be listed: %v", err)
		return
	}
	var decided *decisions
	for _, id := range pending {
		age := time.Since(id.Time()).Round(time.Second)
		if age < preparedAge {
			continue
		}
		if !id.OfSink(d.topo.Name() + "/" + s.External.Name) {
			d.note(check, Warning, "the pipeline that has prepared it ends it: start that one, or run doctor with its file. Nothing else in streamd touches it",
				"transaction %s in its target has been prepared for %v by another pipeline or sink, and is not ended", id, age)
			continue
		}
		if decided == nil {
			if decided, err = d.decided(ctx, d.topo.SourceTopic(s.Sources[0])); err != nil {
				d.note(check, Warning, "end nothing by hand before it can be read", "whether transaction %s in its target counts, prepared for %v, could not be read: %v", id, age, err)
				return
			}
		}
		if !decided.made[id.Partition()] {
			d.note(check, Warning, "look into the sink's topic for the rows of each (its name has the offset after the last one), and end it by hand. "+byHand,
				"transaction %s in its target has been prepared for %v, and the group's offset does not say whether it counts: it was set by hand, or lost", id, age)
			continue
		}
		if decided.counts[id] {
			d.note(check, Warning, "start the pipeline: it commits it. By hand: COMMIT it, never the other way. "+byHand,
				"transaction %s in its target has been prepared for %v, and the group's offset says that it counts: its rows are not to be seen yet", id, age)
			continue
		}
		d.note(check, Warning, "start the pipeline: it rolls it back, unless it is of a topic that was deleted and made anew. By hand, while the pipeline is stopped: ROLL it BACK. "+byHand,
			"transaction %s in its target has been prepared for %v, and nothing says that it counts: it holds its rows", id, age)
	}
}

// decisions are what the group's offsets say of a sink's topic.
type decisions struct {
	counts map[sink.TransactionID]bool // those that are named
	// made are the partitions with a decision. There is one, which names nothing, before anything is prepared.
	made map[record.Partition]bool
}

// decided reads the offsets of a topic, when no transaction with them is open any more: what is prepared may be what that one decides.
func (d *doctor) decided(ctx context.Context, topic string) (*decisions, error) {
	there, err := d.describe(ctx, []string{topic})
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = d.p.Name, true
	t := kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic, t.TopicID = topic, there[topic].id
	for n := range there[topic].partitions {
		t.Partitions = append(t.Partitions, n)
	}
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.Topics = d.p.Name, append(g.Topics, t)
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, d.kgo)
	if err != nil {
		return nil, failed("the group's offsets", err)
	}
	x := &decisions{counts: map[sink.TransactionID]bool{}, made: map[record.Partition]bool{}}
	for _, g := range resp.Groups {
		if err := failedCode("the group's offsets", g.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if err := failedCode(fmt.Sprintf("the group's offset of %s/%d", topic, p.Partition), p.ErrorCode); err != nil {
					return nil, err
				}
				if last, ok := sink.ParseDecision(record.Offset(p.Offset), deref(p.Metadata)); ok {
					x.counts[last.ID], x.made[record.Partition(p.Partition)] = true, true
				}
			}
		}
	}
	return x, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
