package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

var fetchKey = faultnet.KeyOf("Fetch")

func countKey(seen []faultnet.Key, k faultnet.Key) (n int) {
	for _, x := range seen {
		if x == k {
			n++
		}
	}
	return n
}

func fill(t testing.TB, c *Cluster, at record.TopicPartition, transactions, records int) {
	t.Helper()
	p := newProducer(t, c, fmt.Sprintf("fill-%s-%d", at.Topic, at.Partition))
	for i := range transactions {
		for k := range records {
			addValues(p, at, fmt.Sprint(i*records+k))
		}
		mustCommit(t, p)
	}
	p.Close()
}

// pollUntil polls until enough says so.
func pollUntil(t testing.TB, r broker.Reader, what string, enough func(broker.Batch) bool) {
	t.Helper()
	ctx := testContext(t)
	for {
		for _, b := range r.Poll(ctx, time.Second) {
			if enough(b) {
				return
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// awaitFetches waits until so many fetches were sent, and returns how many there were.
func awaitFetches(t *testing.T, f *fake, want int) int {
	t.Helper()
	n := 0
	for limit := time.Now().Add(60 * time.Second); n < want; time.Sleep(time.Millisecond) {
		if n += countKey(f.net.Seen(), fetchKey); time.Now().After(limit) {
			t.Fatalf("%d fetches, want %d", n, want)
		}
	}
	return n
}

func TestSlowConsumerStopsTheFetching(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	fill(t, f.c, at, 50, 10)
	r := f.c.NewReader(broker.ReaderConfig{MaxBytes: 100, MaxWait: 10 * time.Millisecond, Buffer: 3}).(*reader)
	defer r.Close()
	f.net.Seen()
	r.Seek(at, 0, 1)
	fetches := awaitFetches(t, f, 3)
	// That nothing more comes cannot be waited for. Without the limit all 50 batches would.
	for limit := time.Now().Add(300 * time.Millisecond); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		fetches += countKey(f.net.Seen(), fetchKey)
	}
	// Three batches wait, one is in hand.
	if fetches > 4 {
		t.Fatalf("%d fetches for a buffer of 3 that nobody empties", fetches)
	}
	got := 0
	pollUntil(t, r, "all records", func(b broker.Batch) bool { got += len(b.Records); return got == 500 })
}

func TestSeekDoesNotWaitForALongPoll(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 2)
	fill(t, f.c, tpOf(topic, 1), 1, 10)
	r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Minute})
	defer r.Close()
	r.Seek(tpOf(topic, 0), 0, 1) // empty: a long poll
	// Past the settling time the poll is long.
	for long, limit := false, time.Now().Add(60*time.Second); !long; {
		if time.Now().After(limit) {
			t.Fatal("no long poll")
		}
		rd := r.(*reader)
		rd.mu.Lock()
		for _, l := range rd.legs {
			long = l.interrupt != nil
		}
		rd.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	begin := time.Now()
	r.Seek(tpOf(topic, 1), 0, 2)
	pollUntil(t, r, "the other partition", func(b broker.Batch) bool { return b.Tag == 2 && len(b.Records) == 10 })
	if d := time.Since(begin); d > time.Minute {
		t.Fatalf("the seek waited %v for the poll of another partition", d)
	}
}

func TestReaderFollowsLeadersAndBrokers(t *testing.T) {
	f := newFake(t, 3)
	topic := makeTopic(t, f.c, 6)
	for i := range 6 {
		fill(t, f.c, tpOf(topic, i), 20, 10)
	}
	r := f.c.NewReader(broker.ReaderConfig{MaxBytes: 300, MaxWait: 10 * time.Millisecond})
	defer r.Close()
	for i := range 6 {
		r.Seek(tpOf(topic, i), 0, 1)
	}
	got := make([][]string, 6)
	total, step := 0, 0
	pollUntil(t, r, "all records", func(b broker.Batch) bool {
		if b.Err != nil {
			t.Fatal(b.Err)
		}
		for _, rec := range b.Records {
			got[b.Partition] = append(got[b.Partition], string(rec.Value))
		}
		total += len(b.Records)
		if step++; step%7 == 0 {
			f.ShufflePartitionLeaders()
		}
		if step%11 == 0 {
			f.net.LoseAnswer(fetchKey)
		}
		if step == 30 {
			// Back by the clock and not by a later step: all that is left to read may be on this broker.
			f.net.Down(f.ListenAddrs()[1], true)
			time.AfterFunc(300*time.Millisecond, func() { f.net.Down(f.ListenAddrs()[1], false) })
		}
		return total >= 1200
	})
	for i := range got {
		for k, v := range got[i] {
			if v != fmt.Sprint(k) {
				t.Fatalf("partition %d, record %d: %s", i, k, v)
			}
		}
	}
}

// corruptFetch answers a Fetch with a batch that has a flipped bit.
func corruptFetch(t testing.TB, damage func([]byte)) func(kmsg.Request) kmsg.Response {
	return func(req kmsg.Request) kmsg.Response {
		b := encodeBatch(t, randomOutputs(rand.New(rand.NewPCG(1, 1)), 5), codecNone, 0)
		damage(b)
		r := req.(*kmsg.FetchRequest)
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		for _, topic := range r.Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = topic.Topic
			for _, p := range topic.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.HighWatermark, rp.LastStableOffset, rp.RecordBatches = p.Partition, 5, 5, b
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
}

func TestCorruptBytes(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	fill(t, f.c, at, 1, 10)
	flip := func(b []byte) { b[70] ^= 4 }
	for _, c := range []struct {
		times  int
		damage func([]byte)
		want   error
	}{
		{1, flip, nil}, // the network heals
		{corruptTries, flip, broker.ErrCorrupt},
		{1, func(b []byte) { b[16] = 1 }, broker.ErrUnsupported},
	} {
		for range c.times {
			f.net.Answer(fetchKey, corruptFetch(t, c.damage))
		}
		r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Millisecond})
		r.Seek(at, 0, 1)
		pollUntil(t, r, "records or an error", func(b broker.Batch) bool {
			if c.want != nil {
				var e *broker.Error
				if !errors.Is(b.Err, c.want) || !errors.As(b.Err, &e) || e.Where != at.String()+"@0" || b.Next != 0 {
					t.Fatalf("%v, next %d; want %v at 0", b.Err, b.Next, c.want)
				}
				return true
			}
			if b.Err != nil {
				t.Fatal(b.Err)
			}
			return len(b.Records) == 10
		})
		if c.want != nil { // it stays so until the next Seek
			if more := r.Poll(testContext(t), 50*time.Millisecond); len(more) != 0 {
				t.Fatalf("%+v after an error", more)
			}
			r.Seek(at, 0, 2)
			pollUntil(t, r, "records after Seek", func(b broker.Batch) bool { return len(b.Records) == 10 && b.Tag == 2 })
		}
		r.Close()
	}
}

// TestFetchAnsweredWithEachCode: what heals is fetched again, what does not is delivered once.
func TestFetchAnsweredWithEachCode(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 1)
	at := tpOf(topic, 0)
	fill(t, f.c, at, 1, 3)
	for _, code := range sortedCodes() {
		times := 1
		if code == sarama.ErrOffsetOutOfRange {
			times = 2 // the first one is asked again: see fetchLeg.code
		}
		f.net.Refuse(fetchKey, int16(code), times)
		r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Millisecond})
		r.Seek(at, 0, 7)
		kind, react := classify(reqFetch, code)
		if react == suspect { // of a producer; here it is an answer that makes no sense
			kind = broker.ErrAbortable
		}
		pollUntil(t, r, fmt.Sprintf("code %d", code), func(b broker.Batch) bool {
			if fails := react == stop || fatal(kind); fails != (b.Err != nil) || fails && !errors.Is(b.Err, kind) {
				t.Fatalf("code %d (%v): %v", code, react, b.Err)
			}
			return b.Err != nil || len(b.Records) == 3
		})
		r.Close()
		f.net.Clear()
	}
}

func TestOneLargeBatchAmongMany(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 8)
	p := newProducer(t, f.c, "x")
	want := 0
	for i := range 8 {
		for range 3 {
			p.Add(broker.Output{TopicPartition: tpOf(topic, i), Value: make([]byte, 300<<10)})
			want++
		}
	}
	mustCommit(t, p)
	r := f.c.NewReader(broker.ReaderConfig{MaxBytes: 1000, MaxWait: 10 * time.Millisecond})
	defer r.Close()
	for i := range 8 {
		r.Seek(tpOf(topic, i), 0, 1)
	}
	got := 0
	pollUntil(t, r, "all records", func(b broker.Batch) bool { got += len(b.Records); return got == want })
}

func TestCloseEndsAPollAndALongPoll(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Minute})
	f.net.Seen()
	r.Seek(at, 0, 1)
	done := make(chan []broker.Batch)
	go func() { done <- r.Poll(context.Background(), 10*time.Minute) }()
	awaitFetches(t, f, 1)
	closed := make(chan struct{})
	go func() {
		r.Close()
		<-done
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("Close waits for the polls")
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	p := newProducer(t, f.c, "x")
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	stall := make(chan struct{})
	// An answer that never comes: kfake is asked to wait.
	f.ControlKey(26, func(kmsg.Request) (kmsg.Response, error, bool) {
		cancel()
		<-stall
		return nil, nil, false
	})
	defer close(stall)
	addValues(p, at, "v")
	_, out, err := p.Commit(ctx, broker.GroupMeta{}, nil)
	if out != broker.Unknown || !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, %v", out, err)
	}
}

// TestCommitDeadline: the deadline ends retries before EndTxn, and then nothing was committed. (CRASH 26)
func TestCommitDeadline(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	p := newProducer(t, f.c, "x", func(c *broker.ProducerConfig) { c.CommitDeadline = 300 * time.Millisecond })
	f.net.Refuse(faultnet.KeyOf("Produce"), int16(sarama.ErrNotEnoughReplicas), 1000)
	addValues(p, at, "v")
	begin := time.Now()
	_, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil)
	if d := time.Since(begin); out != broker.NotCommitted || !errors.Is(err, broker.ErrUnreachable) || d > 20*time.Second {
		t.Fatalf("%v, %v after %v", out, err, d)
	}
	f.net.Clear()
	for n := 0; ; n++ { // a busy machine may pass the deadline again, which must change nothing
		if err := p.Init(testContext(t)); err != nil {
			t.Fatal(err)
		}
		_, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil)
		if out == broker.Committed {
			break
		}
		if out != broker.NotCommitted || n == 50 {
			t.Fatalf("%v, %v", out, err)
		}
	}
	if got := readValues(t, f.c, at); !slices.Equal(got, []string{"v"}) {
		t.Fatal(got)
	}
}

func TestTooLargeNamesItsRecord(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 2, func(top *broker.Topic) { top.MaxMessageBytes = 4000 })
	for _, known := range []bool{false, true} {
		c := f.open(t)
		if known {
			if _, err := c.Topics(testContext(t), topic); err != nil {
				t.Fatal(err)
			}
		}
		p := newProducer(t, c, fmt.Sprint("large-", known))
		for i := range 40 {
			size := 300
			if i == 17 {
				size = 5000
			}
			p.Add(broker.Output{TopicPartition: tpOf(topic, i%2), Value: make([]byte, size)})
		}
		f.net.Seen()
		_, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil)
		var large *broker.TooLargeError
		if out != broker.NotCommitted || !errors.As(err, &large) || large.Index != 17 || large.Topic != topic || large.Bytes < 5000 {
			t.Fatalf("known %v: %v, %v", known, out, err)
		}
		if n := countKey(f.net.Seen(), faultnet.KeyOf("AddPartitionsToTxn")); known && n != 0 {
			t.Error("something was sent though the limit was known")
		}
		p.Reset()
		if err := p.Init(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for i := range 40 { // more than one batch, below the limit each
			p.Add(broker.Output{TopicPartition: tpOf(topic, i%2), Value: binary.BigEndian.AppendUint32(make([]byte, 300), uint32(i))})
		}
		r := mustCommit(t, p)
		if len(r.Next) != 2 {
			t.Fatal(r)
		}
	}
	if got := len(readRecords(t, f.c, tpOf(topic, 0))); got != 40 {
		t.Fatalf("%d records, want 40", got)
	}
}

// TestReadsFromThePreferredReplica: a broker that names a replica in the reader's rack is obeyed (KIP-392),
// and left again when that one cannot serve.
func TestReadsFromThePreferredReplica(t *testing.T) {
	f := newFake(t, 2)
	topic := makeTopic(t, f.c, 1)
	at := tpOf(topic, 0)
	fill(t, f.c, at, 1, 10)
	leader := f.LeaderFor(topic, 0)
	other := 1 - leader
	f.SetFollowers(topic, 0, []int32{other})
	r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Millisecond}).(*reader)
	defer r.Close()
	f.net.Answer(fetchKey, func(req kmsg.Request) kmsg.Response {
		resp := corruptFetch(t, func([]byte) {})(req).(*kmsg.FetchResponse)
		p := &resp.Topics[0].Partitions[0]
		p.RecordBatches, p.PreferredReadReplica = nil, other
		return resp
	})
	r.Seek(at, 0, 1)
	pollUntil(t, r, "records", func(b broker.Batch) bool { return len(b.Records) == 10 })
	r.mu.Lock()
	from := r.parts[at].leader
	r.mu.Unlock()
	if from != other {
		t.Fatalf("read from broker %d, want the replica %d", from, other)
	}
	f.SetFollowers(topic, 0, nil)
	fill2 := newProducer(t, f.c, "more")
	addValues(fill2, at, "last")
	mustCommit(t, fill2)
	pollUntil(t, r, "the last record", func(b broker.Batch) bool { return len(b.Records) == 1 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parts[at].leader != leader {
		t.Fatalf("read from broker %d, want the leader %d", r.parts[at].leader, leader)
	}
}

// emptyFetch answers that nothing is there, as a broker does whose log ends at the position that it is asked for.
func emptyFetch(preferred int32) func(kmsg.Request) kmsg.Response {
	return func(req kmsg.Request) kmsg.Response {
		r := req.(*kmsg.FetchRequest)
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		for _, topic := range r.Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = topic.Topic
			for _, p := range topic.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.HighWatermark, rp.LastStableOffset, rp.PreferredReadReplica = p.Partition, p.FetchOffset, p.FetchOffset, preferred
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
}

// TestReplicaThatLags: a replica to read from does not know of what its leader has. That it has nothing makes no input idle: the answer
// that says so is the leader's, and says how much there is.
func TestReplicaThatLags(t *testing.T) {
	f := newFake(t, 2)
	topic := makeTopic(t, f.c, 1)
	at := tpOf(topic, 0)
	other := 1 - f.LeaderFor(topic, 0)
	f.SetFollowers(topic, 0, []int32{other})
	fill(t, f.c, at, 1, 10)
	r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Millisecond, Pace: 10 * time.Millisecond, Answers: true}).(*reader)
	defer r.Close()
	f.net.Answer(fetchKey, func(req kmsg.Request) kmsg.Response {
		resp := emptyFetch(other)(req).(*kmsg.FetchResponse)
		resp.Topics[0].Partitions[0].LastStableOffset = 11 // it sends us away, and knows what it has
		return resp
	})
	var caughtUp atomic.Bool
	var lags func(kmsg.Request) kmsg.Response
	lags = func(req kmsg.Request) kmsg.Response {
		if !caughtUp.Load() {
			f.net.Answer(fetchKey, lags)
		}
		return emptyFetch(-1)(req)
	}
	f.net.Answer(fetchKey, lags)
	r.Seek(at, 0, 1)
	told := 0
	pollUntil(t, r, "the leader's word", func(b broker.Batch) bool {
		if len(b.Records) > 0 {
			t.Fatalf("records, after %d words of the leader", told)
		}
		if b.Nothing && b.LastStable <= b.Next {
			t.Fatalf("nothing is there by the word of a replica: %+v", b)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if b.Nothing && r.parts[at].leader == other {
			told++
		}
		return told == 3
	})
	caughtUp.Store(true)
	pollUntil(t, r, "records", func(b broker.Batch) bool { return len(b.Records) == 10 })
}

// TestOutOfRangeOnceMore: what a leader has said of a position is void when it has answered for it since.
func TestOutOfRangeOnceMore(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	fill(t, f.c, at, 1, 10)
	r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Millisecond})
	defer r.Close()
	for range 3 {
		f.net.Refuse(fetchKey, int16(sarama.ErrOffsetOutOfRange), 1)
		f.net.Answer(fetchKey, emptyFetch(-1))
	}
	r.Seek(at, 0, 1)
	pollUntil(t, r, "records", func(b broker.Batch) bool {
		if b.Err != nil {
			t.Fatal(b.Err)
		}
		return len(b.Records) == 10
	})
}

func TestManyPartitions(t *testing.T) {
	f := newFake(t, 3)
	const n = 300
	topic := makeTopic(t, f.c, n)
	p := newProducer(t, f.c, "x")
	for i := range n {
		addValues(p, tpOf(topic, i), fmt.Sprint(i))
	}
	mustCommit(t, p)
	r := f.c.NewReader(broker.ReaderConfig{MaxWait: 10 * time.Millisecond})
	defer r.Close()
	for i := range n {
		r.Seek(tpOf(topic, i), 0, 1)
	}
	seen := map[string]bool{}
	pollUntil(t, r, "all partitions", func(b broker.Batch) bool {
		for _, rec := range b.Records {
			if string(rec.Value) != fmt.Sprint(b.Partition) || seen[string(rec.Value)] {
				t.Fatalf("%s in partition %d", rec.Value, b.Partition)
			}
			seen[string(rec.Value)] = true
		}
		return len(seen) == n
	})
}

// TestReaderOfATopicMadeAnew: its position means other records in the new topic, however many there are.
func TestReaderOfATopicMadeAnew(t *testing.T) {
	for name, values := range map[string][]string{"longer": {"a", "b", "c", "d", "e"}, "empty": nil} {
		t.Run(name, func(t *testing.T) { readTopicMadeAnew(t, values) })
	}
}

func readTopicMadeAnew(t *testing.T, values []string) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 1)
	p := newProducer(t, f.c, "x")
	addValues(p, tpOf(in, 0), "1", "2")
	mustCommit(t, p)
	var conf broker.ReaderConfig
	if values == nil {
		conf.MaxWait = time.Millisecond
	}
	r := f.open(t).NewReader(conf)
	defer r.Close()
	r.Seek(tpOf(in, 0), 0, 1)
	ctx := testContext(t)
	for next := record.Offset(0); next < 3; {
		for _, b := range r.Poll(ctx, time.Second) {
			if next = b.Next; b.Err != nil {
				t.Fatal(b.Err)
			}
		}
		if ctx.Err() != nil {
			t.Fatal("nothing to read")
		}
	}
	if values == nil { // so that the reader sees nothing of what happens in between
		r.Pause(tpOf(in, 0), true)
		r.Poll(ctx, 20*time.Millisecond) // the answer of the last Fetch is in
	}
	deleteTopic(t, f.ListenAddrs(), in)
	other := f.open(t)
	if err := other.CreateTopic(ctx, broker.Topic{Name: in, Partitions: 1, Replicas: -1, Cleanup: broker.Delete, Retention: -1}); err != nil {
		t.Fatal(err)
	}
	if values != nil {
		q := newProducer(t, other, "y")
		addValues(q, tpOf(in, 0), values...)
		mustCommit(t, q)
	}
	r.Pause(tpOf(in, 0), false)
	for {
		for _, b := range r.Poll(ctx, time.Second) {
			if len(b.Records) > 0 {
				t.Fatalf("read %q of the new topic from a position of the old one", b.Records[0].Value)
			}
			if b.Err != nil {
				if !errors.Is(b.Err, broker.ErrUnknownTopic) || !strings.Contains(b.Err.Error(), "made again") {
					t.Fatal(b.Err)
				}
				return
			}
		}
		if ctx.Err() != nil {
			t.Fatal("the reader waits")
		}
	}
}

// TestATrickleIsFetchedInSips: a record at a time does not cost the broker a request at a time.
func TestATrickleIsFetchedInSips(t *testing.T) {
	const pace = 100 * time.Millisecond
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	r := f.c.NewReader(broker.ReaderConfig{MaxWait: time.Second, Buffer: 100, Pace: pace})
	defer r.Close()
	f.net.Seen()
	begin := time.Now()
	r.Seek(at, 0, 1)
	fill(t, f.c, at, 60, 1)
	got := 0
	pollUntil(t, r, "all records", func(b broker.Batch) bool { got += len(b.Records); return got == 60 })
	fetches, most := countKey(f.net.Seen(), fetchKey), int(time.Since(begin)/pace)+2
	if fetches > most {
		t.Errorf("%d fetches in %v, want at most %d", fetches, time.Since(begin), most)
	}
}
