package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

// fake is a cluster in memory, with a dialer that loses and delays.
type fake struct {
	*kfake.Cluster
	net *faultnet.Net
	c   *Cluster
}

func newFake(t testing.TB, brokers int, opts ...kfake.Opt) *fake {
	t.Helper()
	k, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(brokers)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	f := &fake{Cluster: k, net: faultnet.New(nil)}
	f.c = f.open(t)
	return f
}

// open opens one more client of the cluster.
func (f *fake) open(t testing.TB, more ...func(*Config)) *Cluster {
	t.Helper()
	conf := Config{Brokers: f.ListenAddrs(), Dial: f.net.Dial, Logger: testLogger(t)}
	for _, m := range more {
		m(&conf)
	}
	c, err := Open(testContext(t), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// testLogger logs to the test while it runs.
func testLogger(t testing.TB) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(func() { w.over.Store(true) })
	return slog.New(slog.NewTextHandler(w, nil))
}

type logWriter struct {
	t    testing.TB
	over atomic.Bool
}

// Write implements io.Writer.
func (w *logWriter) Write(b []byte) (int, error) {
	if !w.over.Load() {
		w.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var topicCount atomic.Int32

func makeTopic(t testing.TB, c *Cluster, partitions int32, more ...func(*broker.Topic)) string {
	t.Helper()
	top := broker.Topic{Name: fmt.Sprintf("t%d", topicCount.Add(1)), Partitions: partitions, Replicas: -1, Cleanup: broker.Delete, Retention: -1}
	for _, m := range more {
		m(&top)
	}
	if err := c.CreateTopic(testContext(t), top); err != nil {
		t.Fatal(err)
	}
	return top.Name
}

func tpOf(topic string, p int) record.TopicPartition {
	return record.TopicPartition{Topic: topic, Partition: record.Partition(p)}
}

func newProducer(t testing.TB, c *Cluster, id string, more ...func(*broker.ProducerConfig)) *producer {
	t.Helper()
	cfg := broker.ProducerConfig{TransactionalID: id}
	for _, m := range more {
		m(&cfg)
	}
	p := c.NewProducer(cfg).(*producer)
	t.Cleanup(p.Close)
	if err := p.Init(testContext(t)); err != nil {
		t.Fatalf("init: %v", err)
	}
	return p
}

func addValues(p broker.Producer, at record.TopicPartition, values ...string) {
	for _, v := range values {
		p.Add(broker.Output{TopicPartition: at, Timestamp: time.UnixMilli(1_700_000_000_123), Key: []byte("k" + v), Value: []byte(v)})
	}
}

// mustCommit commits records only.
func mustCommit(t testing.TB, p broker.Producer) broker.Receipt {
	t.Helper()
	r, out, err := p.Commit(testContext(t), broker.GroupMeta{Generation: -1}, nil)
	if err != nil || out != broker.Committed {
		t.Fatalf("commit: %v, %v", out, err)
	}
	return r
}

// readValues reads a partition from the start until the position reaches its high watermark.
func readValues(t testing.TB, c *Cluster, at record.TopicPartition) []string {
	t.Helper()
	var out []string
	for _, r := range readRecords(t, c, at) {
		out = append(out, string(r.Value))
	}
	return out
}

func readRecords(t testing.TB, c *Cluster, at record.TopicPartition, more ...func(*broker.ReaderConfig)) []broker.Record {
	t.Helper()
	ctx := testContext(t)
	high, err := c.HighWatermarks(ctx, []record.TopicPartition{at})
	if err != nil {
		t.Fatal(err)
	}
	cfg := broker.ReaderConfig{MaxWait: 20 * time.Millisecond}
	for _, m := range more {
		m(&cfg)
	}
	r := c.NewReader(cfg)
	defer r.Close()
	r.Seek(at, 0, 1)
	var out []broker.Record
	for next := record.Offset(0); next < high[at]; {
		if ctx.Err() != nil {
			t.Fatalf("read %s: at %d of %d", at, next, high[at])
		}
		for _, b := range r.Poll(ctx, 100*time.Millisecond) {
			if b.Err != nil {
				t.Fatalf("read %s: %v", at, b.Err)
			}
			out, next = append(out, b.Records...), b.Next
		}
	}
	return out
}

// deleteTopic deletes a topic.
func deleteTopic(t testing.TB, addrs []string, name string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{name}
	top := kmsg.NewDeleteTopicsRequestTopic()
	top.Topic = &name
	req.Topics = append(req.Topics, top)
	req.TimeoutMillis = 5000
	if _, err := req.RequestWith(testContext(t), cl); err != nil {
		t.Fatal(err)
	}
}
