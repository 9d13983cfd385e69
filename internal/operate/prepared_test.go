package operate

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// holding is a target that has prepared something.
type holding struct {
	sink.Decided
	pending []sink.TransactionID
}

func (h *holding) Class() sink.Class { return sink.TwoPhase }

func (h *holding) Pending(context.Context) ([]sink.TransactionID, error) { return h.pending, nil }

// TestDoctorNamesWhatStaysPrepared: with its age, whether it counts, and what to do; what is of now is a batch under way, and what is of others is theirs.
func TestDoctorNamesWhatStaysPrepared(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "in", Partitions: 1}, {Name: "app-table-sink", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	part := sink.Partition{Sink: "app/table", TopicPartition: record.TopicPartition{Topic: "app-table-sink"}, TopicID: "x"}
	other := part
	other.Sink = "other/table"
	old := time.Now().Add(-time.Hour)
	counts, leftover, foreign := sink.NewTransactionID(part, 7, old), sink.NewTransactionID(part, 9, old), sink.NewTransactionID(other, 7, old)
	undecided := part
	undecided.TopicPartition.Partition = 1
	lost := sink.NewTransactionID(undecided, 7, old)
	target := &holding{pending: []sink.TransactionID{counts, leftover, foreign, lost, sink.NewTransactionID(part, 7, time.Now())}}
	build := topology.New("app")
	topology.Into(topology.From(build, "in", serde.String(), serde.String()), "table", serde.String(), serde.String(), target, func(record.Record[string, string]) (sink.Row, error) { return sink.Row{}, nil })
	topo, err := build.Build()
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Address()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	metadata := sink.Decision{Next: 7, ID: counts}.Metadata()
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group = "app"
	at := kmsg.NewOffsetCommitRequestTopicPartition()
	at.Offset, at.Metadata = 7, &metadata
	of := kmsg.NewOffsetCommitRequestTopic()
	of.Topic, of.Partitions = "app-table-sink", append(of.Partitions, at)
	ask := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &of.Topic
	ask.Topics = append(ask.Topics, topic)
	there, err := ask.RequestWith(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	of.TopicID = there.Topics[0].TopicID
	commit.Topics = append(commit.Topics, of)
	if resp, err := commit.RequestWith(t.Context(), cl); err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	d := &doctor{client: &client{kgo: cl}, p: &pipeline.Pipeline{Name: "app"}, topo: topo, out: &Examination{}}
	for _, s := range topo.Subtopologies() {
		if s.External != nil {
			d.prepared(t.Context(), "sink table", s)
		}
	}
	if len(d.out.Findings) != 4 {
		t.Fatalf("%+v", d.out.Findings)
	}
	for id, want := range map[sink.TransactionID]string{counts: "says that it counts", leftover: "nothing says that it counts", foreign: "by another pipeline", lost: "does not say whether it counts"} {
		if !slices.ContainsFunc(d.out.Findings, func(f Finding) bool {
			return f.Severity == Warning && f.Remedy != "" && strings.Contains(f.Message, string(id)) && strings.Contains(f.Message, want) && strings.Contains(f.Message, "for 1h0m")
		}) {
			t.Errorf("%s: nothing that says %q in %+v", id, want, d.out.Findings)
		}
	}

	// A transaction with a decision is open: what it names counts or not, and nobody knows yet.
	tx, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.TransactionalID("app-i-sink"))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	pid, epoch, err := tx.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = "app-i-sink", pid, epoch, "app"
	if resp, err := add.RequestWith(t.Context(), cl); err != nil || resp.ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	decide := kmsg.NewPtrTxnOffsetCommitRequest()
	decide.TransactionalID, decide.ProducerID, decide.ProducerEpoch, decide.Group = "app-i-sink", pid, epoch, "app"
	next := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	named := sink.Decision{Next: 9, ID: leftover}.Metadata()
	next.Offset, next.Metadata = 9, &named
	in := kmsg.NewTxnOffsetCommitRequestTopic()
	in.Topic, in.TopicID, in.Partitions = "app-table-sink", of.TopicID, append(in.Partitions, next)
	decide.Topics = append(decide.Topics, in)
	if resp, err := decide.RequestWith(t.Context(), cl); err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	d.out = &Examination{}
	for _, s := range topo.Subtopologies() {
		if s.External != nil {
			d.prepared(t.Context(), "sink table", s)
		}
	}
	if len(d.out.Findings) == 0 {
		t.Error("nothing is said of what is prepared")
	}
	for _, f := range d.out.Findings {
		if strings.Contains(f.Remedy, "ROLL it BACK") || !strings.Contains(f.Message, "could not be read") {
			t.Errorf("while a decision is open: %s (%s)", f.Message, f.Remedy)
		}
	}
}

// TestTwoPhaseNeedsDelete: without the right to delete records of its topic a sink of the class stops at its first decision, with rows that are prepared.
func TestTwoPhaseNeedsDelete(t *testing.T) {
	for class, want := range map[sink.Class]bool{sink.TwoPhase: true, sink.Ledger: false} {
		build := topology.New("app")
		topology.Into(topology.From(build, "in", serde.String(), serde.String()), "table", serde.String(), serde.String(), &classed{class: class}, func(record.Record[string, string]) (sink.Row, error) { return sink.Row{}, nil })
		topo, err := build.Build()
		if err != nil {
			t.Fatal(err)
		}
		_, internal := needs(&pipeline.Pipeline{Name: "app"}, topo)
		at := slices.IndexFunc(internal, func(n need) bool { return n.name == "app-table-sink" })
		if at < 0 || slices.Contains(internal[at].operations, kmsg.ACLOperationDelete) != want || !slices.Contains(internal[at].operations, kmsg.ACLOperationWrite) {
			t.Errorf("%s: %+v", class, internal)
		}
	}
}

// classed is a target of a class.
type classed struct {
	sink.Target
	class sink.Class
}

func (c *classed) Class() sink.Class { return c.class }
