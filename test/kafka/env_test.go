//go:build kafka

package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/test/kafkaenv"
)

// addrs are the addresses of the cluster under test; set once, by TestMain.
var addrs []string

// TestMain starts a broker unless the environment names one.
func TestMain(m *testing.M) {
	if s := os.Getenv("STREAMD_TEST_BROKERS"); s != "" {
		addrs = strings.Split(s, ",")
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "streamd-kafka-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c, err := kafkaenv.New(ctx, dir)
	cancel()
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		addrs = c.Addresses()
		code = m.Run()
		c.Close()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// prefix makes names unique on a cluster that is used more than once.
func prefix() string { return fmt.Sprintf("kt-%d", time.Now().UnixNano()) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open opens the cluster through a dialer of faults.
func open(t testing.TB) (*kafka.Cluster, *faultnet.Net) {
	t.Helper()
	n := faultnet.New(nil)
	c, err := kafka.Open(testContext(t), kafka.Config{Brokers: addrs, Dial: n.Dial, Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, n
}

// logger shows what heals by itself when the test is verbose.
func logger(testing.TB) *slog.Logger {
	if !testing.Verbose() {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func makeTopic(t testing.TB, c *kafka.Cluster, name string, partitions int32) string {
	t.Helper()
	top := broker.Topic{Name: name, Partitions: partitions, Replicas: -1, Cleanup: broker.Delete, Retention: -1}
	if err := c.CreateTopic(testContext(t), top); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteTopic(t, name) })
	return name
}

func deleteTopic(t testing.TB, name string) {
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := req.RequestWith(ctx, cl); err != nil {
		t.Error(err)
	}
}

func tpOf(topic string, p int) record.TopicPartition {
	return record.TopicPartition{Topic: topic, Partition: record.Partition(p)}
}
