package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fill sends records of 64 KiB until one is refused, or so many were taken.
func fill(t *testing.T, b *Broker, most int, opts ...kgo.Opt) (taken int, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	opts = append(opts, kgo.SeedBrokers(b.Address()), kgo.DefaultProduceTopic("bills"), kgo.ProducerBatchCompression(kgo.NoCompression()))
	p, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for taken < most {
		value := make([]byte, 64<<10)
		rand.Read(value)
		if err := p.ProduceSync(ctx, &kgo.Record{Value: value}).FirstErr(); err != nil {
			return taken, err
		}
		taken++
	}
	return taken, nil
}

// A producer that never ends must not take all of the memory of a machine.
func TestMemoryIsBounded(t *testing.T) {
	const limit = 64 << 20
	runtime.GC() // what other tests left behind
	var full atomic.Int32
	b, err := Start(Config{Topics: []Topic{{"bills", 1}}, MaxMemory: limit, Full: func() { full.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	taken, err := fill(t, b, 4*limit/(64<<10))
	if !errors.Is(err, kerr.PolicyViolation) {
		t.Fatalf("%d records taken, then %v, want POLICY_VIOLATION", taken, err)
	}
	if taken < limit/(64<<10)/8 {
		t.Errorf("refused after %d records", taken)
	}
	if _, err := fill(t, b, 1); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("another client: %v", err)
	}
	if n := full.Load(); n != 1 {
		t.Errorf("said %d times", n)
	}
	// Without acknowledgements nothing can be said but by the end of the connection: nothing may be kept either.
	before := end(t, b)
	_, _ = fill(t, b, 256, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	if after := end(t, b); after != before || before != int64(taken) {
		t.Errorf("%d records are there, %d after some without acknowledgement; %d were taken", before, after, taken)
	}
}

// end is how many records the topic has.
func end(t *testing.T, b *Broker) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req := kmsg.NewPtrListOffsetsRequest()
	topic, part := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	part.Timestamp = -1
	topic.Topic, topic.Partitions = "bills", append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Topics[0].Partitions[0].Offset
}

// In a directory the records cost no memory, and nothing is left of them.
func TestScratch(t *testing.T) {
	runtime.GC() // what other tests left behind
	dir := t.TempDir()
	b, err := Start(Config{Topics: []Topic{{"bills", 1}}, MaxMemory: 64 << 20, Scratch: dir})
	if err != nil {
		t.Fatal(err)
	}
	if taken, err := fill(t, b, 2048); err != nil {
		t.Errorf("%d records, 64 KiB each, then: %v", taken, err)
	}
	if made, _ := filepath.Glob(filepath.Join(dir, "streamd-broker-*")); len(made) != 1 {
		t.Errorf("directories: %v", made)
	}
	b.Close()
	b.Close()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
