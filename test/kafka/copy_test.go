//go:build kafka

package kafka

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka"
	"github.com/streamd/streamd/record"
)

// joined is a membership whose generation others can wait for.
type joined struct {
	mu   sync.Mutex
	meta broker.GroupMeta
	own  []record.TopicPartition
	gone int // calls of Lost
	got  chan struct{}
}

func (j *joined) current() broker.GroupMeta {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.meta
}

func (j *joined) lost() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.gone
}

func (j *joined) Assigned(meta broker.GroupMeta, owned []record.TopicPartition) {
	j.mu.Lock()
	j.meta, j.own = meta, owned
	j.mu.Unlock()
	select {
	case j.got <- struct{}{}:
	default:
	}
}
func (j *joined) Revoked(context.Context, []record.TopicPartition) {}
func (j *joined) Lost([]record.TopicPartition) {
	j.mu.Lock()
	j.gone++
	j.mu.Unlock()
}

// join joins a group and waits for the first assignment.
func join(t testing.TB, c *kafka.Cluster, group, instance, topic string) *joined {
	t.Helper()
	j := &joined{got: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- c.Join(ctx, broker.GroupConfig{Group: group, Instance: instance, CoPartitioned: [][]string{{topic}}}, j)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-j.got:
	case <-time.After(20 * time.Second):
		t.Fatal("no assignment")
	}
	return j
}

// load writes n records of 16 + 100 bytes with an ID header to the partitions in turn.
func load(t testing.TB, c *kafka.Cluster, topic string, partitions, n int) {
	t.Helper()
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: topic + "-load"})
	defer p.Close()
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 100)
	for i := range value {
		value[i] = byte(i)
	}
	for i := range n {
		key := fmt.Appendf(nil, "%016d", i)
		p.Add(broker.Output{
			TopicPartition: tpOf(topic, i%partitions), Timestamp: time.UnixMilli(1_700_000_000_000 + int64(i)), Key: key, Value: value,
			Headers: record.Headers{{Key: "id", Value: key}},
		})
		if (i+1)%50_000 == 0 || i == n-1 {
			if _, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil); out != broker.Committed {
				t.Fatalf("load: %v, %v", out, err)
			}
		}
	}
}

// copier copies a topic with producers used in turn.
type copier struct {
	c         *kafka.Cluster
	in, out   string
	meta      broker.GroupMeta
	producers []broker.Producer
	next      map[record.TopicPartition]record.Offset
	commits   int
}

func newCopier(t testing.TB, c *kafka.Cluster, in, out string, producers int, compression string) *copier {
	k := &copier{c: c, in: in, out: out, next: map[record.TopicPartition]record.Offset{}}
	for i := range producers {
		p := c.NewProducer(broker.ProducerConfig{TransactionalID: fmt.Sprintf("%s-%d", out, i), Compression: compression})
		t.Cleanup(p.Close)
		if err := p.Init(testContext(t)); err != nil {
			t.Fatal(err)
		}
		k.producers = append(k.producers, p)
	}
	k.meta = join(t, c, out+"-group", "one", in).meta
	return k
}

// run copies n records in transactions of size records.
func (k *copier) run(t testing.TB, partitions, n, size int) {
	r := k.c.NewReader(broker.ReaderConfig{})
	defer r.Close()
	for i := range partitions {
		r.Seek(tpOf(k.in, i), 0, 1)
	}
	p := k.producers[0]
	for copied := 0; copied < n; {
		for _, b := range r.Poll(context.Background(), time.Second) {
			if b.Err != nil {
				t.Fatal(b.Err)
			}
			for i := range b.Records {
				rec := &b.Records[i]
				p.Add(broker.Output{
					TopicPartition: record.TopicPartition{Topic: k.out, Partition: b.Partition}, Timestamp: rec.Timestamp,
					Key: rec.Key, Value: rec.Value, Headers: rec.Headers,
				})
				k.next[b.TopicPartition] = rec.Offset + 1
				copied++
				if records, _ := p.Buffered(); records >= size {
					p = k.commit(t, p)
				}
			}
			k.next[b.TopicPartition] = b.Next
		}
	}
	k.commit(t, p)
}

func (k *copier) commit(t testing.TB, p broker.Producer) broker.Producer {
	offsets := make([]broker.OffsetCommit, 0, len(k.next))
	for tp, n := range k.next {
		offsets = append(offsets, broker.OffsetCommit{TopicPartition: tp, Next: n})
	}
	clear(k.next)
	if _, out, err := p.Commit(context.Background(), k.meta, offsets); out != broker.Committed {
		t.Fatalf("commit: %v, %v", out, err)
	}
	k.commits++
	return k.producers[k.commits%len(k.producers)]
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCopy copies 500,000 records through Reader and Producer. Run it with -benchtime 1x.
func BenchmarkCopy(b *testing.B) {
	const partitions, n = 4, 500_000
	c, _ := open(b)
	name := prefix()
	in := makeTopic(b, c, name+"-in", partitions)
	load(b, c, in, partitions, n)
	for _, bench := range []struct {
		size, producers int
		codec           string
	}{{1000, 1, "none"}, {1000, 2, "none"}, {10_000, 1, "none"}, {10_000, 2, "none"}, {10_000, 2, "lz4"}, {10_000, 2, "zstd"}, {10_000, 2, "snappy"}} {
		b.Run(fmt.Sprintf("size=%d/producers=%d/%s", bench.size, bench.producers, bench.codec), func(b *testing.B) {
			for i := range b.N {
				b.StopTimer()
				out := makeTopic(b, c, fmt.Sprintf("%s-out-%d-%d-%s-%d", name, bench.size, bench.producers, bench.codec, i), partitions)
				k := newCopier(b, c, in, out, bench.producers, bench.codec)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				cpu, begin := cpuTime(), time.Now()
				b.StartTimer()
				k.run(b, partitions, n, bench.size)
				b.StopTimer()
				used, took := cpuTime()-cpu, time.Since(begin)
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(n)/took.Seconds(), "records/s")
				b.ReportMetric(float64(used.Microseconds())/n, "cpu-us/record")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/n, "allocs/record")
				b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/n, "B/record")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
	b.Run("read", func(b *testing.B) {
		for range b.N {
			r := c.NewReader(broker.ReaderConfig{})
			for i := range partitions {
				r.Seek(tpOf(in, i), 0, 1)
			}
			cpu, begin, got := cpuTime(), time.Now(), 0
			for got < n {
				for _, x := range r.Poll(context.Background(), time.Second) {
					got += len(x.Records)
				}
			}
			b.ReportMetric(float64(n)/time.Since(begin).Seconds(), "records/s")
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/n, "cpu-us/record")
			b.ReportMetric(0, "ns/op")
			r.Close()
		}
	})
}
