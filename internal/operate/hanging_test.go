package operate

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
)

// state is one record of a coordinator's log about transactional ID "other".
type state struct {
	epoch int16
	what  kmsg.TransactionState
	parts []int32 // of topic "in"
}

func (s state) record(pid int64) *kgo.Record {
	v := kmsg.TxnMetadataValue{ProducerID: pid, ProducerEpoch: s.epoch, State: s.what}
	if len(s.parts) > 0 {
		v.Topics = []kmsg.TxnMetadataValueTopic{{Topic: "in", Partitions: s.parts}}
	}
	return &kgo.Record{Topic: broker.TransactionsTopic, Key: (&kmsg.TxnMetadataKey{TransactionalID: "other"}).AppendTo(nil), Value: v.AppendTo(nil)}
}

const (
	empty     = kmsg.TransactionStateEmpty
	ongoing   = kmsg.TransactionStateOngoing
	toCommit  = kmsg.TransactionStatePrepareCommit
	toAbort   = kmsg.TransactionStatePrepareAbort
	committed = kmsg.TransactionStateCompleteCommit
	aborted   = kmsg.TransactionStateCompleteAbort
)

// TestRuling: what a coordinator's log says about a transaction that hangs in in/0 under epoch 5. A wrong word loses or doubles records.
func TestRuling(t *testing.T) {
	in0, in1 := []int32{0}, []int32{1}
	for _, c := range []struct {
		name string
		log  []state
		want string
		hint string // of the remedy
	}{
		{"committed", []state{{5, ongoing, in0}, {5, toCommit, in0}, {5, committed, nil}}, "commit", "do not abort"},
		{"aborted by its producer", []state{{5, ongoing, in0}, {5, toAbort, in0}, {5, aborted, nil}}, "abort", "kafka-transactions.sh"},
		{"fenced", []state{{5, ongoing, in0}, {6, toAbort, in0}, {6, aborted, nil}, {7, empty, nil}}, "abort", "kafka-transactions.sh"},
		{"committed under protocol V2", []state{{5, ongoing, in0}, {6, toCommit, in0}, {6, committed, nil}}, "commit", "do not abort"},
		{"the last of its epoch", []state{
			{5, ongoing, in0}, {5, toCommit, in0}, {5, committed, nil}, {5, ongoing, in0}, {6, toAbort, in0}, {6, aborted, nil},
		}, "abort", "kafka-transactions.sh"},
		{"the next one wrote elsewhere", []state{
			{5, ongoing, in0}, {5, toCommit, in0}, {5, committed, nil}, {5, ongoing, in1}, {5, toAbort, in1}, {5, aborted, nil},
		}, "commit", "do not abort"},
		{"one of the next epoch got no further than its name", []state{
			{5, ongoing, in0}, {5, toCommit, in0}, {5, committed, nil}, {6, empty, nil}, {6, ongoing, in0}, {6, toAbort, in0}, {6, aborted, nil},
		}, "commit", "do not abort"},
		{"open, behind a committed one of its epoch", []state{{5, ongoing, in0}, {5, toCommit, in0}, {5, committed, nil}, {5, ongoing, in0}}, "", "none yet"},
		{"its markers are being written", []state{{5, ongoing, in0}, {5, toCommit, in0}}, "", "none yet"},
		{"compacted", []state{{5, committed, nil}, {6, ongoing, in1}, {6, toAbort, in1}, {6, aborted, nil}}, "", "only if it is known"},
		{"only its decision is left", []state{{5, toCommit, in0}, {5, committed, nil}}, "", "only if it is known"},
		{"an older epoch's", []state{{4, ongoing, in0}, {4, toCommit, in0}, {4, committed, nil}}, "", "only if it is known"},
		{"nothing", nil, "", "only if it is known"},
	} {
		x := &inspection{out: &Transactions{Hanging: []Hanging{{HeldPartition: HeldPartition{Topic: "in"}, Producer: 7, Epoch: 5}}}}
		got := make([]ruling, 1)
		for _, s := range c.log {
			// Another producer's of the same name and epoch says nothing.
			for _, r := range []*kgo.Record{state{s.epoch, toAbort, s.parts}.record(8), s.record(7)} {
				if err := x.rule(got, rawlog.Record{Key: r.Key, Value: r.Value}); err != nil {
					t.Fatal(err)
				}
			}
		}
		h := &x.out.Hanging[0]
		h.take(got[0])
		if h.Decided != c.want || !strings.Contains(h.Remedy, c.hint) {
			t.Errorf("%s: decided %q, remedy %q; want %q, %q", c.name, h.Decided, h.Remedy, c.want, c.hint)
		}
	}
	x := &inspection{out: &Transactions{Hanging: []Hanging{{}}}}
	for _, r := range []rawlog.Record{{Key: []byte{0}}, {Key: state{}.record(1).Key, Value: []byte{0, 9}}} {
		if x.rule(make([]ruling, 1), r) == nil {
			t.Errorf("%v is read without an error", r)
		}
	}
}

// hung is a producer with open transactions in "in" that the coordinator does not tell of: it holds them to be over.
type hung struct {
	*kfake.Cluster
	p     *pipeline.Pipeline
	pid   int64
	epoch int16
	last  int32 // what the leaders tell as the last sequence number
}

func newHung(t *testing.T) *hung {
	t.Helper()
	c, p := lettersCluster(t, 1)
	other := reader(t, c, kgo.TransactionalID("other"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := other.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for n := range int32(2) {
		if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: "in", Partition: n, Value: []byte("written")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	x := &hung{Cluster: c, p: p}
	var err error
	if x.pid, x.epoch, err = other.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	create := kmsg.NewPtrCreateTopicsRequest()
	states := kmsg.NewCreateTopicsRequestTopic()
	states.Topic, states.NumPartitions, states.ReplicationFactor = broker.TransactionsTopic, 1, 1
	create.Topics = append(create.Topics, states)
	if _, err := create.RequestWith(t.Context(), reader(t, c)); err != nil {
		t.Fatal(err)
	}
	c.ControlKey(int16(kmsg.ListTransactions), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return r.ResponseKind(), nil, true
	})
	c.ControlKey(int16(kmsg.DescribeProducers), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return x.producers(r.(*kmsg.DescribeProducersRequest)), nil, true
	})
	return x
}

// producers answers for the leaders.
func (x *hung) producers(r *kmsg.DescribeProducersRequest) *kmsg.DescribeProducersResponse {
	resp := r.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, at := range r.Topics {
		topic := kmsg.NewDescribeProducersResponseTopic()
		topic.Topic = at.Topic
		for _, n := range at.Partitions {
			part := kmsg.NewDescribeProducersResponseTopicPartition()
			part.Partition = n
			if at.Topic == "in" {
				part.ActiveProducers = append(part.ActiveProducers, x.active())
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func (x *hung) active() activeProducer {
	a := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
	a.ProducerID, a.ProducerEpoch, a.CurrentTxnStartOffset, a.CoordinatorEpoch, a.LastSequence = x.pid, int32(x.epoch), 0, -1, x.last
	return a
}

// decide writes the coordinator's log: in/0 was committed, in/1 aborted.
func (x *hung) decide(t *testing.T) {
	t.Helper()
	client := reader(t, x.Cluster)
	for _, s := range []state{
		{x.epoch, ongoing, []int32{0}},
		{x.epoch, toCommit, []int32{0}},
		{x.epoch, committed, nil},
		{x.epoch, ongoing, []int32{1}},
		{x.epoch, toAbort, []int32{1}},
		{x.epoch, aborted, nil},
	} {
		if err := client.ProduceSync(t.Context(), s.record(x.pid)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func (x *hung) list(t *testing.T) *Transactions {
	t.Helper()
	list, err := InspectTransactions(t.Context(), x.p, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Hanging) != 2 {
		t.Fatalf("hanging: %+v, want two", list.Hanging)
	}
	return list
}

// visible are the records in a partition of "in" that read_committed readers see, "waits" if they cannot go on.
func (x *hung) visible(t *testing.T, partition int32) (out string) {
	t.Helper()
	raw, err := connect(x.p.Kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.close()
	bounds, err := raw.Bounds(t.Context(), "in")
	if err != nil {
		t.Fatal(err)
	}
	p := rawlog.Partition{Topic: "in", Number: partition}
	if b := bounds[p]; b.Stable < b.End {
		return "waits"
	}
	one := map[rawlog.Partition]rawlog.Bounds{p: bounds[p]}
	if err := raw.Read(t.Context(), rawlog.Spans(one), func(r rawlog.Record) error { out += string(r.Value); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEndHanging: what hangs is ended as was decided, and readers see just that.
func TestEndHanging(t *testing.T) {
	x := newHung(t)
	// Nothing is known: nothing is done.
	list := x.list(t)
	n, err := EndHanging(t.Context(), x.p, list)
	if n != 0 || err != nil || x.visible(t, 0) != "waits" || list.Hanging[0].Done != "left: its decision is not known" {
		t.Fatalf("without a decision: %d ended, %v, %+v", n, err, list.Hanging)
	}
	x.decide(t)
	// Its producer has written since.
	list = x.list(t)
	x.last++
	n, err = EndHanging(t.Context(), x.p, list)
	if n != 0 || err != nil || x.visible(t, 0) != "waits" || !strings.Contains(list.Hanging[0].Done, "not as it was listed") {
		t.Fatalf("after another write: %d ended, %v, %+v", n, err, list.Hanging)
	}
	// The right is missing for one: the other is ended.
	list = x.list(t)
	x.refuseMarkers()
	n, err = EndHanging(t.Context(), x.p, list)
	if n != 1 || !errors.Is(err, broker.ErrAuthorization) || !strings.HasPrefix(list.Hanging[0].Done, "failed: ") || list.Hanging[1].Done != "ended: abort" {
		t.Fatalf("without a right: %d ended, %v, %+v", n, err, list.Hanging)
	}
	if a, b := x.visible(t, 0), x.visible(t, 1); a != "waits" || b != "" {
		t.Fatalf("in/0 %q, in/1 %q", a, b)
	}
	var plan, done strings.Builder
	if err := errors.Join(x.list(t).WriteHanging(&plan, false), list.WriteHanging(&done, true)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nothing done yet", "in/0 from offset 0, producer ", " (other)   commit\n", " (other)   abort\n", "2 of 2\n"} {
		if !strings.Contains(plan.String(), want) {
			t.Errorf("the plan lacks %q:\n%s", want, plan.String())
		}
	}
	if !strings.Contains(done.String(), "failed: operate: end the transaction in in/0") || !strings.Contains(done.String(), "1 of 2\n") {
		t.Error(done.String())
	}
	list = x.list(t)
	list.Hanging = slices.DeleteFunc(list.Hanging, func(h Hanging) bool { return h.Partition != 0 })
	if n, err = EndHanging(t.Context(), x.p, list); n != 1 || err != nil {
		t.Fatalf("%d ended, %v, %+v", n, err, list.Hanging)
	}
	if got := x.visible(t, 0); got != "written" {
		t.Errorf("in/0 shows %q: what was committed is lost", got)
	}
	if list.Hanging[0].ID != "other" || list.Hanging[0].Decided != "commit" {
		t.Errorf("%+v", list.Hanging[0])
	}
}

// refuseMarkers refuses the next request for markers.
func (x *hung) refuseMarkers() {
	x.ControlKey(int16(kmsg.WriteTxnMarkers), func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp := r.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
		for _, m := range r.(*kmsg.WriteTxnMarkersRequest).Markers {
			marker := kmsg.NewWriteTxnMarkersResponseMarker()
			for _, at := range m.Topics {
				topic := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
				topic.Topic = at.Topic
				for _, p := range at.Partitions {
					topic.Partitions = append(topic.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: kerr.ClusterAuthorizationFailed.Code})
				}
				marker.Topics = append(marker.Topics, topic)
			}
			resp.Markers = append(resp.Markers, marker)
		}
		return resp, nil, true
	})
}

// TestHangingOfABusyProducer: a coordinator that has left out the marker of one partition knows the producer well, and its next transactions. What
// it left out hangs all the same; what is over in a second look, or is named by a coordinator, does not.
func TestHangingOfABusyProducer(t *testing.T) {
	c, p := lettersCluster(t, 1)
	other := reader(t, c, kgo.TransactionalID("other"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := other.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	h := &hung{}
	var err error
	if h.pid, h.epoch, err = other.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	looks := 0
	c.ControlKey(int16(kmsg.DescribeProducers), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		looks++
		resp := h.producers(r.(*kmsg.DescribeProducersRequest))
		for _, at := range resp.Topics {
			for i := range at.Partitions {
				if part := &at.Partitions[i]; part.Partition == 0 && (at.Topic == "dead" || at.Topic == "out" && looks == 1) {
					part.ActiveProducers = []activeProducer{h.active()}
				}
			}
		}
		return resp, nil, true
	})
	x, err := InspectTransactions(t.Context(), p, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Open) != 1 || len(x.Hanging) != 2 || x.Hanging[0].Topic != "in" || x.Hanging[1].Topic != "in" {
		t.Fatalf("%d open, hanging %+v, want one and both of in", len(x.Open), x.Hanging)
	}
	var b strings.Builder
	if err := x.Write(&b, time.Now()); err != nil || strings.Count(b.String(), "! hanging: producer") != 2 || !strings.Contains(b.String(), "only if it is known that it was not committed") {
		t.Errorf("%v\n%s", err, b.String())
	}
	if err := other.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}
