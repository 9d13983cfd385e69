package operate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/topology"
)

const lettersFile = `
version: 1
name: p
kafka: {brokers: ["%s"]}
sources:
  in: {topic: in, format: json}
steps:
  - name: out
    to: {topic: out}
errors: {on_error: dead_letter, dead_letter_topic: dead}
`

// lettersCluster has n dead letters, of two partitions.
func lettersCluster(t *testing.T, n int) (*kfake.Cluster, *pipeline.Pipeline) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "in", "out", "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p, err := pipeline.Load(fmt.Appendf(nil, lettersFile, c.ListenAddrs()[0]), pipeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := reader(t, c, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range n {
		r := &kgo.Record{Topic: "dead", Partition: int32(i % 2), Key: []byte("k"), Value: []byte(strconv.Itoa(i)), Timestamp: time.UnixMilli(int64(1e12) + int64(i)), Headers: []kgo.RecordHeader{
			{Key: "mine", Value: []byte("x")},
			{Key: "__streams.errors.message", Value: []byte("why")},
			{Key: "__streams.errors.topic", Value: []byte("in")},
			{Key: "__streams.errors.partition", Value: []byte(strconv.Itoa(i % 2))},
			{Key: "__streams.errors.offset", Value: []byte(strconv.Itoa(100 + i))},
			{Key: "__streamd.errors.step", Value: []byte("in")},
			{Key: "__streamd.errors.attempt", Value: []byte("3")},
		}}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return c, p
}

func reader(t *testing.T, c *kfake.Cluster, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.FetchIsolationLevel(kgo.ReadCommitted())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// retry runs retry for all letters.
func retry(ctx context.Context, p *pipeline.Pipeline) (*Settlement, error) {
	d, err := OpenLetters(p)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Execute(ctx, Retried, Filter{}, time.Now)
}

// sentAgain reads the input: how often each value stands there, and the last record of each.
func sentAgain(t *testing.T, p *pipeline.Pipeline) (map[string]int, map[string]Content) {
	t.Helper()
	d, err := OpenLetters(p)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.Topic = "in" // a topic of letters is a topic
	list, err := d.List(t.Context(), Filter{}, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	counts, last := map[string]int{}, map[string]Content{}
	for _, l := range list.Letters {
		c, err := d.Show(t.Context(), l.at)
		if err != nil {
			t.Fatal(err)
		}
		counts[string(c.Value)]++
		last[string(c.Value)] = *c
	}
	return counts, last
}

// TestRetryDiesAtEveryRequest: at each request of a retry its process dies, before the broker handles the request or after it
// did. Another run completes it, and each record is there once.
func TestRetryDiesAtEveryRequest(t *testing.T) {
	const letters = 5
	for _, handled := range []bool{false, true} {
		for at := int64(1); ; at++ {
			finished := false
			t.Run(fmt.Sprintf("handled=%v/%d", handled, at), func(t *testing.T) {
				c, p := lettersCluster(t, letters)
				ctx, die := context.WithCancel(t.Context())
				defer die()
				var seen atomic.Int64
				c.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
					c.KeepControl()
					if ctx.Err() != nil || seen.Add(1) < at {
						return nil, nil, false
					}
					die()
					// Not handled: the connection is cut.
					return nil, errors.New("died"), !handled
				})
				_, err := retry(ctx, p)
				finished = err == nil && ctx.Err() == nil
				die()
				s, err := retry(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				if s.Letters+s.Done != letters {
					t.Errorf("the second run did %d, and found %d done: want %d in all", s.Letters, s.Done, letters)
				}
				counts, _ := sentAgain(t, p)
				for i := range letters {
					if n := counts[strconv.Itoa(i)]; n != 1 {
						t.Errorf("record %d is there %d times", i, n)
					}
				}
			})
			if t.Failed() {
				return
			}
			if finished {
				t.Logf("handled=%v: %d requests", handled, at-1)
				break
			}
		}
	}
}

// TestRetriedRecord: what comes back is what came, marked, with the ID of its first place.
func TestRetriedRecord(t *testing.T) {
	_, p := lettersCluster(t, 1)
	if _, err := retry(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	_, last := sentAgain(t, p)
	got := last["0"]
	headers := map[string]string{}
	for _, h := range got.Headers {
		headers[h.Key] = string(h.Value)
	}
	if string(got.Key) != "k" || !got.Time.Equal(time.UnixMilli(1e12)) || headers["mine"] != "x" || got.at.Partition != 0 {
		t.Errorf("not as it came: %+v", got)
	}
	if want := map[string]string{retryHeader: "dead/0@0", "__streamd.errors.attempt": "3"}; fmt.Sprint(got.Errors) != fmt.Sprint(want) {
		t.Errorf("marks %v, want %v", got.Errors, want)
	}
	if id := headers[topology.DefaultIDHeader]; id == "" || id[len(id)-3:] != "100" {
		t.Errorf("ID %q is not that of in/0@100", id)
	}
}

// TestRetryRefuses: what cannot go back stays where it is, and is named.
func TestRetryRefuses(t *testing.T) {
	for _, c := range []struct{ name, topic, partition, why string }{
		{"another topic", "elsewhere", "0", `topic "elsewhere" is no input of pipeline "p"`},
		{"no such partition", "in", "9", "in/9 does not exist (any more)"},
		{"a window's result", "", "", "it is the result of a window or a timer, or of another program: there is no record to send again"},
		{"negative", "in", "-1", "it is the result of a window or a timer, or of another program: there is no record to send again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster, p := lettersCluster(t, 0)
			client := reader(t, cluster, kgo.RecordPartitioner(kgo.ManualPartitioner()))
			err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Value: []byte("v"), Headers: []kgo.RecordHeader{
				{Key: "__streams.errors.topic", Value: []byte(c.topic)}, {Key: "__streams.errors.partition", Value: []byte(c.partition)}, {Key: "__streams.errors.offset", Value: []byte("1")},
			}}).FirstErr()
			if err != nil {
				t.Fatal(err)
			}
			s, err := retry(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if s.Letters != 0 || len(s.Refused) != 1 || s.Refused[0].Why != c.why || !errors.Is(s.Err(), ErrNotAll) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestRetryWaitsForNotes: a note behind an open transaction of another producer is not passed over.
func TestRetryWaitsForNotes(t *testing.T) {
	c, p := lettersCluster(t, 1)
	other := reader(t, c, kgo.TransactionalID("other"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := other.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := retry(ctx, p)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond): // longer only makes the test stricter
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if err := other.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	if s, err := retry(t.Context(), p); err != nil || s.Letters != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
}
