package kafka

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

// openIn is what a leader says: something of pid is open in each partition for which open is true.
func openIn(r *kmsg.DescribeProducersRequest, pid int64, code int16, open func(topic string, n int32) bool) *kmsg.DescribeProducersResponse {
	resp := r.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, at := range r.Topics {
		topic := kmsg.NewDescribeProducersResponseTopic()
		topic.Topic = at.Topic
		for _, n := range at.Partitions {
			part := kmsg.NewDescribeProducersResponseTopicPartition()
			part.Partition, part.ErrorCode = n, code
			if code != 0 {
				part.ErrorMessage = kmsg.StringPtr("why")
			}
			for id := pid - 1; id <= pid; id++ { // one of another producer is nobody's business
				a := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
				a.ProducerID, a.ProducerEpoch, a.CurrentTxnStartOffset = id, 3, 17
				if id == pid && !open(at.Topic, n) {
					a.CurrentTxnStartOffset = -1
				}
				part.ActiveProducers = append(part.ActiveProducers, a)
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

// TestLeftOpen: where an older transaction of the producer was left open, the next one does not even begin: its abort would end the old one, too.
func TestLeftOpen(t *testing.T) {
	f := newFake(t, 3)
	topic := makeTopic(t, f.c, 2)
	p := newProducer(t, f.c, "x")
	addValues(p, tpOf(topic, 0), "a")
	mustCommit(t, p)
	var left atomic.Bool
	left.Store(true)
	f.ControlKey(int16(kmsg.DescribeProducers), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return openIn(r.(*kmsg.DescribeProducersRequest), p.pid, 0, func(topic string, n int32) bool { return n == 1 && left.Load() }), nil, true
	})
	// Of what was looked at in this epoch nothing is asked again; 1 is new in it.
	addValues(p, tpOf(topic, 0), "b")
	mustCommit(t, p)
	f.net.Seen()
	addValues(p, tpOf(topic, 0), "c")
	addValues(p, tpOf(topic, 1), "d")
	for range 2 {
		_, out, err := p.Commit(testContext(t), broker.GroupMeta{Generation: -1}, nil)
		if out != broker.NotCommitted || !errors.Is(err, broker.ErrLeftOpen) || !strings.Contains(err.Error(), "from offset 17 on") {
			t.Fatalf("%v, %v", out, err)
		}
		if seen := f.net.Seen(); slices.Contains(seen, 24) || slices.Contains(seen, 0) {
			t.Fatalf("the transaction was begun: requests %v", seen)
		}
		if err := p.Init(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	left.Store(false)
	mustCommit(t, p)
	if got := readValues(t, f.c, tpOf(topic, 1)); !slices.Equal(got, []string{"d"}) {
		t.Error(got)
	}
}

// TestLeftOpenIsAskedOnce: once for each partition and epoch, before the partition is added.
func TestLeftOpenIsAskedOnce(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 1)
	p := newProducer(t, f.c, "x")
	transaction := func(want ...faultnet.Key) {
		t.Helper()
		f.net.Seen()
		addValues(p, tpOf(topic, 0), "v")
		mustCommit(t, p)
		got := slices.DeleteFunc(f.net.Seen(), func(k faultnet.Key) bool { return !slices.Contains([]faultnet.Key{0, 24, 26, keyDescribeProducers}, k) })
		if !slices.Equal(got, want) {
			t.Errorf("requests %v, want %v", got, want)
		}
	}
	transaction(keyDescribeProducers, 24, 0, 26)
	transaction(24, 0, 26)
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	transaction(keyDescribeProducers, 24, 0, 26)
	// Not to be answered, or by one that is no leader any more, is to ask again.
	for _, fault := range []func(faultnet.Key){
		f.net.LoseRequest, f.net.LoseAnswer, func(k faultnet.Key) { f.net.Refuse(k, kerr.NotLeaderForPartition.Code, 1) },
	} {
		if err := p.Init(testContext(t)); err != nil {
			t.Fatal(err)
		}
		fault(keyDescribeProducers)
		transaction(keyDescribeProducers, keyDescribeProducers, 24, 0, 26)
	}
	// Not to be allowed to ask is not to know, and no reason to stand still.
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	f.net.Refuse(keyDescribeProducers, kerr.TopicAuthorizationFailed.Code, 1)
	transaction(keyDescribeProducers, 24, 0, 26)
	// Nor is a broker that does not know the question.
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	f.c.tellsProducers = false
	transaction(24, 0, 26)
}

// TestLeftOpenByAnOldLeader: a leader that slept, and was replaced meanwhile, answers for a moment as of then. One answer stops nobody: after new
// metadata the leader is asked again.
func TestLeftOpenByAnOldLeader(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 1)
	p := newProducer(t, f.c, "x")
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	f.ControlKey(int16(kmsg.DescribeProducers), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		old := asked.Add(1) == 1
		return openIn(r.(*kmsg.DescribeProducersRequest), p.pid, 0, func(string, int32) bool { return old }), nil, true
	})
	addValues(p, tpOf(topic, 0), "a")
	f.net.Seen()
	mustCommit(t, p)
	got := slices.DeleteFunc(f.net.Seen(), func(k faultnet.Key) bool { return !slices.Contains([]faultnet.Key{3, 24, keyDescribeProducers}, k) })
	if n := len(got); n < 4 || got[0] != keyDescribeProducers || got[1] != 3 || got[n-2] != keyDescribeProducers || got[n-1] != 24 {
		t.Errorf("requests %v, want the question, metadata, the question again, and the transaction", got)
	}
}

// offsetsLeftOpen makes a cluster in which a transaction of the producer is open where the group "bills-chaos" has its offsets.
func offsetsLeftOpen(t *testing.T) (*fake, *producer, []broker.OffsetCommit) {
	t.Helper()
	f := newFake(t, 1)
	if err := f.c.CreateTopic(testContext(t), broker.Topic{Name: broker.OffsetsTopic, Partitions: 5, Replicas: -1, Cleanup: broker.Compact}); err != nil {
		t.Fatal(err)
	}
	p := newProducer(t, f.c, "x")
	f.ControlKey(int16(kmsg.DescribeProducers), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return openIn(r.(*kmsg.DescribeProducersRequest), p.pid, 0, func(topic string, n int32) bool { return topic == broker.OffsetsTopic && n == 2 }), nil, true
	})
	offsets := []broker.OffsetCommit{{TopicPartition: tpOf("in", 0), Next: 1}}
	return f, p, offsets
}

// TestLeftOpenOffsets: the offsets of the group are looked at as well.
func TestLeftOpenOffsets(t *testing.T) {
	_, p, offsets := offsetsLeftOpen(t)
	_, out, err := p.Commit(testContext(t), broker.GroupMeta{Group: "bills-chaos", Member: "m", Generation: 1}, offsets)
	if out != broker.NotCommitted || !errors.Is(err, broker.ErrLeftOpen) || !strings.Contains(err.Error(), "__consumer_offsets/2") {
		t.Fatalf("%v, %v", out, err)
	}
}

// TestLeftOpenOffsetsAfterAFault: that the metadata could not be read says nothing of what is open in the offsets.
func TestLeftOpenOffsetsAfterAFault(t *testing.T) {
	f, p, offsets := offsetsLeftOpen(t)
	for range 4 { // of each address and of what is tried again
		f.net.LoseRequest(3)
	}
	_, out, err := p.Commit(testContext(t), broker.GroupMeta{Group: "bills-chaos", Member: "m", Generation: 1}, offsets)
	if out != broker.NotCommitted || !errors.Is(err, broker.ErrLeftOpen) {
		t.Fatalf("%v, %v", out, err)
	}
}

// TestDecodeProducers: as another library writes the answer; a broken one is an error.
func TestDecodeProducers(t *testing.T) {
	req := kmsg.NewPtrDescribeProducersRequest()
	req.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "a", Partitions: []int32{0, 7}}, {Topic: "bb", Partitions: []int32{1}}}
	for _, code := range []int16{0, kerr.TopicAuthorizationFailed.Code} {
		b := openIn(req, 5, code, func(_ string, n int32) bool { return n == 7 }).AppendTo([]byte{0})
		got, _, err := decodeProducers(b, 5)
		want := map[record.TopicPartition]openAnswer{
			tpOf("a", 0): {code: sarama.KError(code)}, tpOf("a", 7): {sarama.KError(code), &openTxn{3, 17}}, tpOf("bb", 1): {code: sarama.KError(code)},
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %v", got, err)
		}
		for i := range b {
			if _, _, err := decodeProducers(b[:i], 5); err == nil {
				t.Errorf("%d of %d bytes are read without an error", i, len(b))
			}
		}
	}
	for _, b := range [][]byte{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, {0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xf}} {
		if _, _, err := decodeProducers(b, 5); err == nil {
			t.Errorf("%x is read without an error", b)
		}
	}
}
