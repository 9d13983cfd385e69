package kafka

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/brokertest"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

func TestConformance(t *testing.T) {
	f := newFake(t, 3)
	brokertest.Run(t, "kfake", "s", &brokertest.Env{
		Cluster:     f.c,
		Refuse:      func(api string, code int16, times int) { f.net.Refuse(faultnet.KeyOf(api), code, times) },
		LoseRequest: func(api string) { f.net.LoseRequest(faultnet.KeyOf(api)) },
		LoseAnswer:  func(api string) { f.net.LoseAnswer(faultnet.KeyOf(api)) },
		Hold: func(api string) func() {
			h := f.net.Hold(faultnet.KeyOf(api))
			return func() {
				if err := h.Deliver(); err != nil {
					t.Errorf("deliver %s: %v", api, err)
				}
			}
		},
		DeleteTopic: func(name string) { deleteTopic(t, f.ListenAddrs(), name) },
		ElectLeader: func(tp record.TopicPartition) {
			now := f.LeaderFor(tp.Topic, int32(tp.Partition))
			if err := f.MoveTopicPartition(tp.Topic, int32(tp.Partition), (now+1)%3); err != nil {
				t.Error(err)
			}
		},
		TimesOut: true,
	})
}

func TestTransactionsAreRead(t *testing.T) {
	f := newFake(t, 3)
	topic := makeTopic(t, f.c, 4)
	p := newProducer(t, f.c, "x")
	want := make([][]string, 4)
	for i := range 1000 {
		v := fmt.Sprint(i)
		addValues(p, tpOf(topic, i%4), v)
		want[i%4] = append(want[i%4], v)
		if i%97 == 0 {
			mustCommit(t, p)
		}
	}
	mustCommit(t, p)
	for i := range 4 {
		if got := readValues(t, f.c, tpOf(topic, i)); !slices.Equal(got, want[i]) {
			t.Errorf("partition %d: %d values, want %d", i, len(got), len(want[i]))
		}
	}
}

func TestOrderOfRequests(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 2)
	p := newProducer(t, f.c, "x")
	addValues(p, tpOf(topic, 0), "a")
	mustCommit(t, p)
	f.net.Seen()
	addValues(p, tpOf(topic, 0), "b")
	addValues(p, tpOf(topic, 1), "c")
	mustCommit(t, p)
	want := []faultnet.Key{24, 0, 26}
	got := slices.DeleteFunc(f.net.Seen(), func(k faultnet.Key) bool { return !slices.Contains([]faultnet.Key{0, 24, 25, 26, 28, 22}, k) })
	if !slices.Equal(got, want) {
		t.Fatalf("requests %v, want %v", got, want)
	}
}

func TestLostProduceIsNotSentAgain(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	p := newProducer(t, f.c, "x")
	for _, lose := range []func(faultnet.Key){f.net.LoseRequest, f.net.LoseAnswer} {
		lose(0)
		addValues(p, at, "v")
		f.net.Seen()
		_, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil)
		if out != broker.NotCommitted || !errors.Is(err, broker.ErrUnreachable) || !isLost(err) {
			t.Fatalf("%v, %v", out, err)
		}
		n := 0
		for _, k := range f.net.Seen() {
			if k == 0 {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%d Produce requests, want 1", n)
		}
		epoch := p.epoch
		if err := p.Init(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if p.epoch <= epoch {
			t.Fatalf("epoch %d after %d", p.epoch, epoch)
		}
		mustCommit(t, p) // the buffer was kept
	}
	if got := readValues(t, f.c, at); !slices.Equal(got, []string{"v", "v"}) {
		t.Fatal(got)
	}
}

func TestProducerRefusesWhatCannotBe(t *testing.T) {
	f := newFake(t, 1)
	for _, cfg := range []broker.ProducerConfig{{}, {TransactionalID: "x", Compression: "zip"}} {
		p := f.c.NewProducer(cfg)
		if err := p.Init(testContext(t)); !errors.Is(err, broker.ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
		p.Close()
	}
	p := newProducer(t, f.c, "x")
	p.Add(broker.Output{TopicPartition: tpOf("t", -1), Value: []byte("v")})
	if _, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil); out != broker.NotCommitted || !errors.Is(err, broker.ErrUnknownTopic) {
		t.Errorf("a negative partition: %v, %v", out, err)
	}
}
