package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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
	t.Run("elsewhere", func(t *testing.T) { totalsAreExact(t, false) })
}

// instanceIn waits for the group's first member and returns its instance ID.
func instanceIn(ctx context.Context, t *testing.T, address string) string {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for ctx.Err() == nil {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{"billing"}
		if resp, err := req.RequestWith(ctx, c); err == nil && len(resp.Groups) == 1 {
			for _, m := range resp.Groups[0].Members {
				if m.InstanceID != nil {
					return *m.InstanceID
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("nobody joins the group")
	return ""
}

// leave takes an instance that is dead out of the group, as an operator does who does not want to wait for
// its session timeout (45 s).
func leave(ctx context.Context, t *testing.T, address, instance string) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = "billing"
	m := kmsg.NewLeaveGroupRequestMember()
	m.InstanceID = &instance
	req.Members = append(req.Members, m)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		t.Fatal(err)
	}
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
	instance := instanceIn(ctx, t, b.Address())
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
		leave(ctx, t, b.Address(), instance)
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
