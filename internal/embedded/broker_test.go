package embedded

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestTransactionsAndReadCommitted(t *testing.T) {
	b, err := Start(Config{Topics: []Topic{{"bills", 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if host, _, _ := net.SplitHostPort(b.Address()); host != "127.0.0.1" {
		t.Fatalf("listens on %s", b.Address())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.TransactionalID("t"), kgo.DefaultProduceTopic("bills"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, c := range []struct {
		value  string
		commit kgo.TransactionEndTry
	}{{"aborted", kgo.TryAbort}, {"committed", kgo.TryCommit}} {
		if err := p.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := p.ProduceSync(ctx, kgo.StringRecord(c.value)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := p.EndTransaction(ctx, c.commit); err != nil {
			t.Fatal(err)
		}
	}
	r, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics("bills"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		f := r.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
		if rs := f.Records(); len(rs) > 0 {
			if v := string(rs[0].Value); v != "committed" {
				t.Errorf("read %q first", v)
			}
			return
		}
	}
}

// Kafka's own tools describe topics before they describe groups: what the broker cannot answer as Kafka does it must not offer.
func TestTopicsCanBeDescribed(t *testing.T) {
	b, err := Start(Config{Topics: []Topic{{"bills", 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	has := map[int16]bool{}
	offered, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range offered.ApiKeys {
		has[k.ApiKey] = true
	}
	if !has[int16(kmsg.Metadata)] || !has[int16(kmsg.TxnOffsetCommit)] {
		t.Fatalf("it has %v", has)
	}
	if !has[int16(kmsg.DescribeTopicPartitions)] {
		return
	}
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	topic := kmsg.NewDescribeTopicPartitionsRequestTopic()
	topic.Topic = "bills"
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range resp.Topics[0].Partitions {
		if p.EligibleLeaderReplicas == nil || p.LastKnownELR == nil {
			t.Errorf("partition %d: null where Kafka has a list", p.Partition)
		}
	}
}

func TestAPortThatIsTaken(t *testing.T) {
	b, err := Start(Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(b.Address())
	n, _ := net.LookupPort("tcp", port)
	if _, err := Start(Config{Port: n}); err == nil || !strings.Contains(err.Error(), port) {
		t.Errorf("second broker on the port: %v", err)
	}
	b.Close()
	b.Close()
}

func TestParseTopic(t *testing.T) {
	for in, want := range map[string]Topic{"bills": {"bills", 3}, "bills.raw:12": {"bills.raw", 12}} {
		if got, err := ParseTopic(in, 3); err != nil || got != want {
			t.Errorf("%q: %v %v", in, got, err)
		}
	}
	for _, in := range []string{"", "a b", "..", "a:", "a:x", "a:0", "a:1001", "a:99999999999", "a/b:1", strings.Repeat("a", 250)} {
		if got, err := ParseTopic(in, 3); err == nil {
			t.Errorf("%q: %v, want an error", in, got)
		}
	}
	if _, err := Start(Config{Partitions: -1, Topics: []Topic{{"", 1}}}); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("want both mistakes, got %v", err)
	}
}
