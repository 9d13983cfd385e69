package processor_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestQueryOfAnApp: the state of a running App, on a Kafka in memory, with the real local store. Each question asks Kafka.
func TestQueryOfAnApp(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "words", Partitions: 2}, {Name: "counts", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tb := topology.New("querying")
	words := topology.From(tb, "words", serde.String(), serde.String())
	by := topology.KeyBy(words, "by-word", serde.String(), func(r record.Record[string, string]) (string, error) { return r.Value, nil })
	topology.To(topology.Count(by, "count"), "counts", serde.String(), serde.Int64())
	topo, err := tb.Build()
	if err != nil {
		t.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	counts := processor.Query(app, "count", serde.String(), serde.Int64(), processor.MaxStaleness(0))
	if _, err := counts.Get(t.Context(), "kafka"); !errors.Is(err, processor.ErrNotReady) {
		t.Errorf("before it runs: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	var ended error
	var run sync.WaitGroup
	run.Go(func() { ended = app.Run(running) })
	defer run.Wait()
	defer stop()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const n = 20
	var last uint64
	for i := range int64(n) {
		if err := c.ProduceSync(ctx, &kgo.Record{Topic: "words", Key: []byte("k"), Value: []byte("kafka")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for {
			a, err := counts.Get(ctx, "kafka")
			if ctx.Err() != nil {
				t.Fatalf("after %d words: %+v, %v", i+1, a, err)
			}
			if err == nil && a.Value > i+1 || a.Sequence < last && err == nil {
				t.Fatalf("after %d words: %+v, before it commit %d", i+1, a, last)
			}
			if err == nil && a.Value == i+1 {
				last = a.Sequence
				break
			}
		}
	}
	stop()
	run.Wait()
	if ended != nil {
		t.Errorf("the application ended with: %v", ended)
	}
	if _, err := counts.Get(ctx, "kafka"); !errors.Is(err, processor.ErrNotHere) {
		t.Errorf("after it has stopped: %v", err)
	}
}

// leave takes a static member out of a group, as streamd leave does.
func leave(ctx context.Context, t *testing.T, c *kgo.Client, group, instance string) {
	t.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	member := kmsg.NewLeaveGroupRequestMember()
	member.InstanceID = &instance
	req.Members = append(req.Members, member)
	if resp, err := req.RequestWith(ctx, c); err != nil || len(resp.Members) != 1 || resp.Members[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
}

// TestAnyInstanceAnswers: three instances, of which one has no task. A question that is put to any of them is answered,
// by the instance that it names, also after an owner has left.
func TestAnyInstanceAnswers(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "words", Partitions: 2}, {Name: "counts", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	type instance struct {
		counts *processor.StoreQuery[string, int64]
		stop   func()
	}
	instances := map[string]instance{} // by address: what stands for a server of each
	for _, name := range []string{"a", "b", "c"} {
		tb := topology.New("asking")
		words := topology.From(tb, "words", serde.String(), serde.String())
		topology.To(topology.Count(words, "count"), "counts", serde.String(), serde.Int64())
		topo, err := tb.Build()
		if err != nil {
			t.Fatal(err)
		}
		app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(t.TempDir()), processor.WithInstanceID(name), processor.WithAddress(name+":80"))
		if err != nil {
			t.Fatal(err)
		}
		counts := processor.Query(app, "count", serde.String(), serde.Int64(), processor.MaxStaleness(0))
		if _, err := counts.Owner(ctx, "x"); !errors.Is(err, processor.ErrNotReady) {
			t.Errorf("before it runs: %v", err)
		}
		running, stop := context.WithCancel(ctx)
		var run sync.WaitGroup
		run.Go(func() {
			if err := app.Run(running); err != nil {
				t.Errorf("instance %s: %v", name, err)
			}
		})
		ended := func() { stop(); run.Wait() }
		defer ended()
		instances[name+":80"] = instance{counts, ended}
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	words := []string{"ann", "bob", "cid", "dan", "eve", "fay"}
	for i, w := range words {
		for range i + 1 {
			if err := c.ProduceSync(ctx, &kgo.Record{Topic: "words", Key: []byte(w), Value: []byte("x")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// answered asks as a server does that passes questions on: first the instance itself, then the one that it names.
	answered := func(at string, word string, want int64) (by string) {
		for {
			here := instances[at].counts
			o, err := here.Owner(ctx, word)
			if err == nil && o.Here != (o.Address == at) {
				t.Fatalf("%s says of itself: %+v", at, o)
			}
			if err == nil {
				a, err := instances[o.Address].counts.Get(ctx, word)
				if err == nil && a.Value == want {
					return o.Instance
				}
				if err == nil && a.Value > want {
					t.Fatalf("%s: %d, want %d", word, a.Value, want)
				}
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s of %s: %+v, %v", word, at, o, err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	owners := map[string]bool{}
	for at := range instances {
		for i, w := range words {
			owners[answered(at, w, int64(i+1))] = true
		}
	}
	for gone := range owners { // one of those that had something leaves
		instances[gone+":80"].stop()
		delete(instances, gone+":80")
		leave(ctx, t, c, "asking", gone)
		for at := range instances {
			for i, w := range words {
				if by := answered(at, w, int64(i+1)); by == gone {
					t.Errorf("%s is answered by %s, which has left", w, by)
				}
			}
		}
		break
	}
}
