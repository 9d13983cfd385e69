package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

// txnRequests are the requests of a transaction, by Kafka's names.
var txnRequests = map[string]request{
	"InitProducerId": reqInit, "AddPartitionsToTxn": reqAddPartitions, "AddOffsetsToTxn": reqAddOffsets, "Produce": reqProduce,
	"TxnOffsetCommit": reqTxnOffsetCommit, "EndTxn": reqEndTxn,
}

// TestEveryCodeOfEveryRequest has each request of a transaction answered with each code once, and
// holds the outcome against the table. Whatever happens, in the end each record is there once.
func TestEveryCodeOfEveryRequest(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 1)
	j := joinGroup(t, f.c, "every-code", "one", in)
	meta := j.wait(t, 1)
	for name, req := range txnRequests {
		t.Run(name, func(t *testing.T) {
			at := tpOf(makeTopic(t, f.c, 1), 0)
			var want []string
			for _, code := range sortedCodes() {
				p := newProducer(t, f.c, fmt.Sprintf("every-%s-%d", name, code))
				v := []string{fmt.Sprintf("%d-a", code), fmt.Sprintf("%d-b", code)}
				everyCode(t, f, p, req, name, code, at, tpOf(in, 0), meta, v)
				want = append(want, v...)
				p.Close()
			}
			if got := readValues(t, f.c, at); !slices.Equal(got, want) {
				t.Fatalf("read %q\nwant %q", got, want)
			}
		})
	}
}

func sortedCodes() []sarama.KError {
	var out []sarama.KError
	for code := range everywhere {
		// A faked "duplicate" would hide that the batch is not in the log.
		if code != sarama.ErrNoError && code != sarama.ErrDuplicateSequenceNumber {
			out = append(out, code)
		}
	}
	slices.Sort(out)
	return out
}

func everyCode(t *testing.T, f *fake, p *producer, req request, name string, code sarama.KError, at, in record.TopicPartition, meta broker.GroupMeta, v []string) {
	t.Helper()
	kind, react := classify(req, code)
	f.net.Refuse(faultnet.KeyOf(name), int16(code), 1)
	defer f.net.Clear()
	if req == reqInit {
		err := p.Init(testContext(t))
		if wantErr := react == suspect || react == stop || react == regroup || react == halve; (err != nil) != wantErr || err != nil && !errors.Is(err, kind) {
			t.Fatalf("code %d: Init: %v, want %v (%v)", code, err, kind, react)
		}
		if err != nil {
			if err := p.Init(testContext(t)); err != nil {
				t.Fatalf("code %d: second Init: %v", code, err)
			}
		}
	}
	addValues(p, at, v...)
	offsets := []broker.OffsetCommit{{TopicPartition: in, Next: 1}}
	_, out, err := p.Commit(testContext(t), meta, offsets)
	if req == reqInit {
		react = done
	}
	switch react {
	case done, again, elsewhere, markers:
		if out != broker.Committed {
			t.Fatalf("code %d (%v): %v, %v", code, react, out, err)
		}
		return
	case halve:
		if req == reqProduce {
			if out != broker.Committed {
				t.Fatalf("code %d (%v): %v, %v", code, react, out, err)
			}
			return
		}
	}
	wantOut := broker.NotCommitted
	if req == reqEndTxn {
		wantOut = broker.Unknown
	}
	if react == suspect {
		kind = broker.ErrAbortable
	}
	var be *broker.Error
	if out != wantOut || !errors.Is(err, kind) || !errors.As(err, &be) || be.Code != int16(code) {
		t.Fatalf("code %d (%v): %v, %v; want %v and %v", code, react, out, err, wantOut, kind)
	}
	if _, again, _ := p.Commit(testContext(t), meta, offsets); again != broker.NotCommitted {
		t.Fatalf("code %d: a Commit without Init: %v", code, again)
	}
	if err := p.Init(testContext(t)); err != nil {
		t.Fatalf("code %d: Init: %v", code, err)
	}
	if records, _ := p.Buffered(); records != len(v) {
		t.Fatalf("code %d: %d records are left", code, records)
	}
	if _, out, err := p.Commit(testContext(t), meta, offsets); out != broker.Committed {
		t.Fatalf("code %d: second time: %v, %v", code, out, err)
	}
}

// TestTopicWithoutPartitions: a broker that has not heard of a topic's partitions yet knows the topic, but
// none of them. That is no number of partitions to plan with.
func TestTopicWithoutPartitions(t *testing.T) {
	f := newFake(t, 1)
	name := makeTopic(t, f.c, 3)
	f.net.Refuse(faultnet.KeyOf("Metadata"), int16(sarama.ErrLeaderNotAvailable), 2)
	got, err := f.c.Topics(testContext(t), name)
	if err != nil || got[name].Partitions != 3 || f.net.Pending(faultnet.KeyOf("Metadata")) > 0 {
		t.Fatalf("%+v, %v", got[name], err)
	}
}

// TestHazardWithoutANewEpoch shows what Init after a doubt is for: without it a late EndTxn(commit) of
// one transaction commits the next one. The test would fail if Commit itself bumped epochs.
func TestHazardWithoutANewEpoch(t *testing.T) {
	for _, reinit := range []bool{false, true} {
		f := newFake(t, 1)
		at := tpOf(makeTopic(t, f.c, 1), 0)
		p := newProducer(t, f.c, "x")
		held := f.net.Hold(faultnet.KeyOf("EndTxn"))
		addValues(p, at, "first")
		if _, out, _ := p.Commit(testContext(t), broker.GroupMeta{}, nil); out != broker.Unknown {
			t.Fatal(out)
		}
		p.Reset()
		if reinit {
			if err := p.Init(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		p.ready = true // the bug, unless reinit
		addValues(p, at, "second")
		if err := p.flush(testContext(t), broker.GroupMeta{}, false); err != nil {
			t.Fatal(err)
		}
		if err := held.Deliver(); err != nil {
			t.Fatal(err)
		}
		got := readValues(t, f.open(t), at)
		if committed := len(got) > 0; committed == reinit {
			t.Errorf("re-init %v: a late EndTxn made %q readable", reinit, got)
		}
	}
}

// TestCopyUnderFaults copies a topic while requests and answers are lost, held back for a few
// transactions and refused, leaders move and brokers go away. Output must be the input, once, in order.
func TestCopyUnderFaults(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { copyUnderFaults(t, rand.New(rand.NewPCG(seed, 77))) })
	}
}

func copyUnderFaults(t *testing.T, r *rand.Rand) {
	const partitions, n = 3, 3000
	f := newFake(t, 3)
	in, out := makeTopic(t, f.c, partitions), makeTopic(t, f.c, partitions)
	loader := newProducer(t, f.c, "load")
	for i := range n {
		addValues(loader, tpOf(in, i%partitions), fmt.Sprint(i))
		if i%100 == 99 {
			mustCommit(t, loader)
			if i%500 == 99 { // an aborted one in between
				addValues(loader, tpOf(in, i%partitions), "aborted")
				f.net.LoseRequest(faultnet.KeyOf("EndTxn"))
				_, _, _ = loader.Commit(testContext(t), broker.GroupMeta{}, nil)
				loader.Reset()
				if err := loader.Init(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	k := &faultyCopier{t: t, f: f, r: r, in: in, out: out, j: joinGroup(t, f.c, "copy", "one", in)}
	k.j.wait(t, partitions)
	for i := range 2 {
		k.producers = append(k.producers, newProducer(t, f.c, fmt.Sprintf("copy-%d", i), func(c *broker.ProducerConfig) { c.TransactionTimeout = 5 * time.Second }))
	}
	k.run(partitions)
	f.net.Clear()
	for i := range partitions {
		var want []string
		for v := i; v < n; v += partitions {
			want = append(want, fmt.Sprint(v))
		}
		if got := readValues(t, f.open(t), tpOf(out, i)); !slices.Equal(got, want) {
			t.Errorf("partition %d: %d records, want %d", i, len(got), len(want))
		}
	}
	t.Logf("%d commits, %d failed, %d unknown, %d late requests delivered", k.commits, k.failed, k.unknown, k.late)
	if k.failed == 0 || k.unknown == 0 || k.late == 0 {
		t.Error("the faults did not show")
	}
}

type faultyCopier struct {
	t         *testing.T
	f         *fake
	r         *rand.Rand
	in, out   string
	j         *testMember
	producers []*producer
	held      []*faultnet.Held

	commits, failed, unknown, late int
}

func (k *faultyCopier) run(partitions int) {
	ctx := testContext(k.t)
	tps := make([]record.TopicPartition, partitions)
	for i := range tps {
		tps[i] = tpOf(k.in, i)
	}
	reader := k.f.c.NewReader(broker.ReaderConfig{MaxWait: 20 * time.Millisecond, MaxBytes: 1 << 10})
	defer reader.Close()
	tag := uint64(0)
	var next map[record.TopicPartition]record.Offset
	restart := func() {
		tag++
		next = map[record.TopicPartition]record.Offset{}
		committed := k.committed(ctx, tps)
		for _, tp := range tps {
			next[tp] = max(committed[tp].Next, 0)
			reader.Seek(tp, next[tp], tag)
		}
	}
	restart()
	high, err := k.f.c.HighWatermarks(ctx, tps)
	if err != nil {
		k.t.Fatal(err)
	}
	for {
		for _, b := range reader.Poll(ctx, 50*time.Millisecond) {
			if b.Err != nil {
				k.t.Fatal(b.Err)
			}
			if b.Tag != tag {
				continue
			}
			p := k.producers[k.commits%2]
			for _, rec := range b.Records {
				addValues(p, record.TopicPartition{Topic: k.out, Partition: b.Partition}, string(rec.Value))
			}
			next[b.TopicPartition] = b.Next
			if !k.commit(ctx, p, next) {
				restart()
			}
		}
		done := true
		for _, tp := range tps {
			done = done && next[tp] >= high[tp]
		}
		if done {
			return
		}
	}
}

func (k *faultyCopier) committed(ctx context.Context, tps []record.TopicPartition) map[record.TopicPartition]broker.CommittedOffset {
	for {
		got, err := k.f.c.CommittedOffsets(ctx, "copy", tps)
		if err == nil {
			return got
		}
		if ctx.Err() != nil {
			k.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// commit commits what the producer holds. False: dropped, read again from what is committed.
func (k *faultyCopier) commit(ctx context.Context, p *producer, next map[record.TopicPartition]record.Offset) bool {
	k.inject()
	var offsets []broker.OffsetCommit
	for tp, n := range next {
		offsets = append(offsets, broker.OffsetCommit{TopicPartition: tp, Next: n})
	}
	for {
		k.commits++
		_, out, err := p.Commit(ctx, k.j.current(), offsets)
		if out == broker.Committed {
			return true
		}
		k.failed++
		if out == broker.Unknown {
			k.unknown++
			p.Reset()
		}
		if ierr := p.Init(ctx); ierr != nil {
			k.t.Fatalf("init after %v: %v", err, ierr)
		}
		if out == broker.Unknown {
			return false
		}
		if k.r.IntN(2) == 0 { // either run it again from memory, or drop it
			p.Reset()
			return false
		}
	}
}

// inject arms some faults for the commit to come, and delivers what earlier ones held back.
func (k *faultyCopier) inject() {
	names := []string{"Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "InitProducerId", "Fetch", "OffsetFetch", "FindCoordinator"}
	if k.r.IntN(2) == 0 {
		key := faultnet.KeyOf(names[k.r.IntN(len(names))])
		switch k.r.IntN(4) {
		case 0:
			k.f.net.LoseRequest(key)
		case 1:
			k.f.net.LoseAnswer(key)
		case 2:
			if key != faultnet.KeyOf("Fetch") {
				k.held = append(k.held, k.f.net.Hold(key))
			}
		case 3:
			if k.r.IntN(2) == 0 {
				k.f.ShufflePartitionLeaders()
			} else {
				k.f.RehashCoordinators()
			}
		}
	}
	k.held = slices.DeleteFunc(k.held, func(h *faultnet.Held) bool {
		select {
		case <-h.Caught():
		default:
			return false
		}
		if k.r.IntN(3) > 0 {
			return false
		}
		if h.Deliver() == nil {
			k.late++
		}
		return true
	})
}
