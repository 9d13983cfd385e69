//go:build kafka

package kafkaenv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(opts, kgo.RecordDeliveryTimeout(40*time.Second))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func createTopic(ctx context.Context, c *kgo.Client, name string) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, -1
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

func send(ctx context.Context, t *testing.T, c *kgo.Client, topic, value string) {
	t.Helper()
	if err := c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
		t.Fatalf("sending %q: %v", value, err)
	}
}

// read returns the first n values of the topic.
func read(ctx context.Context, t *testing.T, c *kgo.Client, topic string, n int) []string {
	t.Helper()
	c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})
	defer c.RemoveConsumePartitions(map[string][]int32{topic: {0}})
	var got []string
	for len(got) < n {
		f := c.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("read %q of %d: %v", got, n, err)
		}
		f.EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	return got
}

func bounded(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestKillAndRestart: what was acknowledged is there after a kill -9, on the same port.
func TestKillAndRestart(t *testing.T) {
	ctx := bounded(t, 3*time.Minute)
	k := Start(t)
	c := client(t, kgo.SeedBrokers(k.Addresses()...))
	if err := createTopic(ctx, c, "a"); err != nil {
		t.Fatal(err)
	}
	send(ctx, t, c, "a", "1")
	before := k.PID(0)
	k.Kill(0)
	if k.PID(0) != 0 {
		t.Fatal("still there after the kill")
	}
	if err := k.Restart(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if k.PID(0) == before {
		t.Fatal("the same process")
	}
	send(ctx, t, c, "a", "2")
	if got := read(ctx, t, c, "a", 2); got[0] != "1" || got[1] != "2" {
		t.Errorf("read %q", got)
	}
	if err := k.Pause(0); err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ { // the signal takes a moment to reach all threads
		short, cancel := context.WithTimeout(ctx, time.Second)
		err := c.Ping(short)
		cancel()
		if err != nil {
			break
		}
		if n == 10 {
			t.Fatal("a paused broker answers")
		}
	}
	if err := k.Resume(0); err != nil {
		t.Fatal(err)
	}
	send(ctx, t, c, "a", "3")
}

// TestThreeBrokers: the cluster goes on without one of its brokers.
func TestThreeBrokers(t *testing.T) {
	ctx := bounded(t, 4*time.Minute)
	k := Start(t, Brokers(3))
	c := client(t, kgo.SeedBrokers(k.Addresses()...))
	if err := createTopic(ctx, c, "a"); err != nil {
		t.Fatal(err)
	}
	send(ctx, t, c, "a", "0")
	k.Kill(0)
	send(ctx, t, c, "a", "1")
	if err := k.Restart(ctx, 0); err != nil {
		t.Fatal(err)
	}
	k.Kill(1)
	if got := read(ctx, t, c, "a", 2); got[0] != "0" || got[1] != "1" {
		t.Errorf("read %q", got)
	}
}

// TestSecure: every mechanism lets the user in, a wrong password does not, a stranger may do nothing.
func TestSecure(t *testing.T) {
	ctx := bounded(t, 3*time.Minute)
	k := Start(t, Secure())
	connect := func(m sasl.Mechanism) *kgo.Client {
		return client(t, kgo.SeedBrokers(k.SecureAddresses()...), kgo.DialTLSConfig(k.TLS()), kgo.SASL(m), kgo.RetryTimeout(time.Second))
	}
	for name, m := range map[string]sasl.Mechanism{
		"plain":  plain.Auth{User: User, Pass: Password}.AsMechanism(),
		"256":    scram.Auth{User: User, Pass: Password}.AsSha256Mechanism(),
		"512":    scram.Auth{User: User, Pass: Password}.AsSha512Mechanism(),
		"tokens": oauth.Auth{Token: Token(User, time.Now().Add(time.Hour))}.AsMechanism(),
	} {
		c := connect(m)
		if err := createTopic(ctx, c, "topic-"+name); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		send(ctx, t, c, "topic-"+name, name)
	}
	wrong := connect(scram.Auth{User: User, Pass: "no"}.AsSha256Mechanism())
	if err := wrong.Ping(ctx); err == nil {
		t.Error("let in with a wrong password")
	}
	stranger := connect(plain.Auth{User: Stranger, Pass: StrangerPassword}.AsMechanism())
	if err := createTopic(ctx, stranger, "strange"); !errors.Is(err, kerr.TopicAuthorizationFailed) && !errors.Is(err, kerr.ClusterAuthorizationFailed) {
		t.Errorf("a stranger makes a topic: %v", err)
	}
}
