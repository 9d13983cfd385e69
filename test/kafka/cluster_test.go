//go:build kafka

package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/test/kafkaenv"
)

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func TestTransactionTimeoutNamesBothNumbers(t *testing.T) {
	c, _ := open(t)
	err := c.NewProducer(broker.ProducerConfig{TransactionalID: prefix(), TransactionTimeout: 30 * time.Minute}).Init(testContext(t))
	if !errors.Is(err, broker.ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{"30m0s", "transaction.max.timeout.ms", "900000"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// TestStaticMemberResumes: a member that comes back with the same instance and transactional ID has
// its partitions and a new committed transaction at once, whatever the session timeout.
func TestStaticMemberResumes(t *testing.T) {
	name := prefix()
	c, _ := open(t)
	topic := makeTopic(t, c, name, 4)
	var times []time.Duration
	for i := range 6 {
		begin := time.Now()
		cl, err := kafka.Open(testContext(t), kafka.Config{Brokers: addrs})
		if err != nil {
			t.Fatal(err)
		}
		initDone := make(chan error, 1)
		p := cl.NewProducer(broker.ProducerConfig{TransactionalID: name})
		go func() { initDone <- p.Init(context.Background()) }()
		ctx, cancel := context.WithCancel(context.Background())
		j := &joined{got: make(chan struct{}, 1)}
		joinDone := make(chan error, 1)
		go func() {
			joinDone <- cl.Join(ctx, broker.GroupConfig{Group: name, Instance: "one", CoPartitioned: [][]string{{topic}}}, j)
		}()
		<-j.got
		if err := <-initDone; err != nil {
			t.Fatal(err)
		}
		p.Add(broker.Output{TopicPartition: tpOf(topic, 0), Value: []byte("v")})
		if _, out, err := p.Commit(testContext(t), j.meta, []broker.OffsetCommit{{TopicPartition: tpOf(topic, 1), Next: record.Offset(i)}}); out != broker.Committed {
			t.Fatal(out, err)
		}
		times = append(times, time.Since(begin))
		// As a kill does: nobody leaves, a transaction stays open.
		p.Add(broker.Output{TopicPartition: tpOf(topic, 0), Value: []byte("open")})
		cancel()
		if err := <-joinDone; err != nil {
			t.Fatal(err)
		}
		p.Close()
		_ = cl.Close()
	}
	t.Logf("from start to the first committed transaction: %v", times)
	for _, d := range times[1:] {
		if d > 2*time.Second { // 0.04 to 0.1 s on an idle machine; a rebalance would take the session timeout
			t.Errorf("a restart took %v", d)
		}
	}
}

// TestBrokerDies: with three brokers the group's coordinator is killed, then the transactions', while records
// are copied by one group of transactions. Nothing is lost, nothing doubled, and the member keeps its
// partitions and its generation: the group lives on at another broker. A producer that sleeps through all of it
// with a transaction open goes on.
func TestBrokerDies(t *testing.T) {
	env := kafkaenv.Start(t, kafkaenv.Brokers(3), kafkaenv.Property("transaction.abort.timed.out.transaction.cleanup.interval.ms", "500"))
	n := faultnet.New(nil)
	c, err := kafka.Open(testContext(t), kafka.Config{Brokers: env.Addresses(), Dial: n.Dial, Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	topic := "dies"
	if err := c.CreateTopic(testContext(t), broker.Topic{Name: topic, Partitions: 3, Replicas: 3, MinInSync: 2, Cleanup: broker.Delete, Retention: -1}); err != nil {
		t.Fatal(err)
	}
	j := join(t, c, "dies", "one", topic)
	first := j.current()
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: "dies"})
	defer p.Close()
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	d := &dying{t: t, c: c, p: p, j: j, topic: topic, group: "dies"}
	sleeper := fallAsleep(t, c, n, j.current(), topic)
	d.run(60)
	for _, kind := range []kafkaenv.Kind{kafkaenv.Group, kafkaenv.Transaction} {
		victim, err := env.Coordinator(testContext(t), kind, "dies")
		if err != nil {
			t.Fatal(err)
		}
		env.Kill(victim)
		d.run(60)
		if err := env.Restart(testContext(t), victim); err != nil {
			t.Fatal(err)
		}
		d.run(20)
	}
	// Its transaction has timed out long ago, and the coordinator that knew so is dead.
	if err := sleeper.Init(testContext(t)); err != nil {
		t.Errorf("a producer that has slept: %v", err)
	}
	d.check()
	if n := j.lost(); n > 0 || j.current() != first {
		t.Errorf("the membership was lost %d times; it was %+v and is %+v", n, first, j.current())
	}
	t.Logf("%d transactions, %d failed, %d unknown, longest %v", d.n, d.failed, d.unknown, d.longest)
}

// fallAsleep leaves a transaction open. Its ID belongs to the same partition of __transaction_state as "dies", so that
// one broker coordinates both.
func fallAsleep(t *testing.T, c *kafka.Cluster, n *faultnet.Net, meta broker.GroupMeta, topic string) broker.Producer {
	t.Helper()
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: "rests", TransactionTimeout: 3 * time.Second})
	t.Cleanup(p.Close)
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	n.LoseRequest(faultnet.KeyOf("EndTxn"))
	if _, out, err := p.Commit(testContext(t), meta, []broker.OffsetCommit{{TopicPartition: tpOf(topic, 1), Next: 1}}); out != broker.Unknown {
		t.Fatal(out, err)
	}
	return p
}

// dying writes numbered records, one to each partition in each transaction, together with an offset that
// tells whether a transaction was committed.
type dying struct {
	t     *testing.T
	c     *kafka.Cluster
	p     broker.Producer
	j     *joined
	topic string
	group string

	n, failed, unknown int
	longest            time.Duration
}

func (d *dying) run(transactions int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for range transactions {
		begin := time.Now()
		for !d.once(ctx) {
			if ctx.Err() != nil {
				d.t.Fatal("no progress")
			}
		}
		d.n++
		d.longest = max(d.longest, time.Since(begin))
	}
}

func (d *dying) once(ctx context.Context) bool {
	d.p.Reset()
	for i := range 3 {
		d.p.Add(broker.Output{TopicPartition: tpOf(d.topic, i), Value: []byte(strconv.Itoa(d.n))})
	}
	_, out, err := d.p.Commit(ctx, d.j.current(), []broker.OffsetCommit{{TopicPartition: tpOf(d.topic, 0), Next: record.Offset(d.n + 1)}})
	if out == broker.Committed {
		return true
	}
	d.failed++
	if ierr := d.p.Init(ctx); ierr != nil {
		d.t.Fatalf("init after %v: %v", err, ierr)
	}
	if out == broker.NotCommitted {
		return false
	}
	d.unknown++
	for {
		got, err := d.c.CommittedOffsets(ctx, d.group, []record.TopicPartition{tpOf(d.topic, 0)})
		if err == nil {
			return got[tpOf(d.topic, 0)].Next == record.Offset(d.n+1)
		}
		if ctx.Err() != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *dying) check() {
	ctx := testContext(d.t)
	r := d.c.NewReader(broker.ReaderConfig{})
	defer r.Close()
	var tps []record.TopicPartition
	for i := range 3 {
		tps = append(tps, tpOf(d.topic, i))
		r.Seek(tps[i], 0, 1)
	}
	high, err := d.c.HighWatermarks(ctx, tps)
	if err != nil {
		d.t.Fatal(err)
	}
	next := make([]int, 3)
	for open := 3; open > 0; {
		for _, b := range r.Poll(ctx, time.Second) {
			if b.Err != nil {
				d.t.Fatal(b.Err)
			}
			for _, rec := range b.Records {
				if string(rec.Value) != strconv.Itoa(next[b.Partition]) {
					d.t.Fatalf("%s@%d: %s, want %d", b.TopicPartition, rec.Offset, rec.Value, next[b.Partition])
				}
				next[b.Partition]++
			}
			if b.Next >= high[b.TopicPartition] {
				open--
				r.Remove(b.TopicPartition)
			}
		}
		if ctx.Err() != nil {
			d.t.Fatalf("read %v of %d", next, d.n)
		}
	}
	for i, n := range next {
		if n != d.n {
			d.t.Errorf("partition %d has %d records, want %d", i, n, d.n)
		}
	}
}
