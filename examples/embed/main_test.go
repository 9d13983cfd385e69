package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/embedded"
)

// TestMain lets the test binary be the example itself, so that a test can kill it.
func TestMain(m *testing.M) {
	if address := os.Getenv("EMBED_BROKER"); address != "" {
		os.Args = []string{os.Args[0], address}
		main()
		return
	}
	os.Exit(m.Run())
}

// start runs the example in a directory of its own, where its state is.
func start(t *testing.T, address, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "EMBED_BROKER="+address), os.Stderr
	if !testing.Verbose() {
		cmd.Stderr = nil
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// Two of them share the work. One is killed with kill -9 and starts again, where it was or elsewhere with
// an empty directory. Every bill was sent twice; each counts once.
func TestTotalsAreExactThoughOneIsKilled(t *testing.T) {
	t.Run("same directory", func(t *testing.T) { totalsAreExact(t, true) })
	t.Run("elsewhere", func(t *testing.T) {
		if testing.Short() {
			t.Skip("the group waits 45 s for the instance that does not come back")
		}
		totalsAreExact(t, false)
	})
}

func totalsAreExact(t *testing.T, same bool) {
	const bills, accounts, cents = 4000, 7, 3
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "bills", Partitions: 4}, {Name: "bill-totals", Partitions: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Second)
	defer cancel()
	dir := t.TempDir()
	first := start(t, b.Address(), dir)
	start(t, b.Address(), t.TempDir())

	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics("bill-totals"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send := func(from, to int) {
		for i := from; i < to; i++ {
			value, err := json.Marshal(bill{ID: fmt.Sprint("b", i), Account: fmt.Sprint("a", i%accounts), Cents: cents})
			if err != nil {
				t.Fatal(err)
			}
			r := func() *kgo.Record { return &kgo.Record{Topic: "bills", Key: fmt.Append(nil, i), Value: value} }
			if err := c.ProduceSync(ctx, r(), r()).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := map[string]total{}
	read := func(until int64) {
		for sum := int64(0); sum < until; {
			f := c.PollFetches(ctx)
			if ctx.Err() != nil {
				t.Fatalf("only %d of %d bills are counted: %v", sum, until, last)
			}
			f.EachRecord(func(r *kgo.Record) {
				var v total
				if err := json.Unmarshal(r.Value, &v); err != nil {
					t.Fatal(err)
				}
				if before := last[string(r.Key)]; v.Bills != before.Bills+1 {
					t.Errorf("%s: after %v comes %v", r.Key, before, v)
				}
				last[string(r.Key)] = v
			})
			sum = 0
			for _, v := range last {
				sum += v.Bills
			}
		}
	}
	send(0, bills/4)
	read(bills / 4)
	send(bills/4, bills/2)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if !same {
		dir = t.TempDir()
	}
	start(t, b.Address(), dir)
	send(bills/2, bills)
	read(bills)
	for account, v := range last {
		if v.Cents != v.Bills*cents {
			t.Errorf("%s: %v", account, v)
		}
	}
}
