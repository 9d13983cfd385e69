package rawlog

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestAbortedBeyondOneFetch: what was aborted is not read, also if it is more than one answer holds. kfake, which is the broker of dev and
// demo, leaves the list of aborted transactions out of an answer that it cuts short by the limit for all partitions.
func TestAbortedBeyondOneFetch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.TransactionalID("x"), kgo.DefaultProduceTopic("t"),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	transaction := func(value string, records, bytes int, commit kgo.TransactionEndTry) {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for range records {
			if err := client.ProduceSync(ctx, &kgo.Record{Key: []byte(value), Value: make([]byte, bytes)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.EndTransaction(ctx, commit); err != nil {
			t.Fatal(err)
		}
	}
	transaction("kept", 1, 10, kgo.TryCommit)
	transaction("aborted", 2*fetchBytes/900_000, 900_000, kgo.TryAbort)
	transaction("kept", 1, 10, kgo.TryCommit)
	c, err := Open(Config{Brokers: fake.ListenAddrs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	bounds, err := c.Bounds(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := c.Read(ctx, Spans(bounds), func(r Record) error { got = append(got, string(r.Key)); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"kept", "kept"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}
