package demo

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/embedded"
)

func TestAmounts(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "10": 1000, "10.1": 1010, "10.10": 1010, "0.05": 5, "123456789.99": 12345678999} {
		if got, err := parseAmount(s); err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x", "1.234", "1.x"} {
		if got, err := parseAmount(s); err == nil {
			t.Errorf("%q: %d, want an error", s, got)
		}
	}
	for in, want := range map[string]string{"1": "1", "100": "100", "1000": "1 000", "1234567.89": "1 234 567.89"} {
		if got := group(in); got != want {
			t.Errorf("group(%q) = %q, want %q", in, got, want)
		}
	}
}

func broker(t *testing.T) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: inputTopic, Partitions: partitions}, {Name: outputTopic, Partitions: partitions}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// The generator's memory is what the check stands on: it must be what is in the topic.
func TestTheGeneratorRemembersWhatItSent(t *testing.T) {
	b := broker(t)
	g, err := newGenerator(b.Address(), 5000, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	for i := range 30 {
		if i == 15 {
			if n := g.replayOld(); n == 0 {
				t.Fatal("nothing to replay")
			}
		}
		if err := g.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	g.pause(true)
	if err := g.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	want, sent, copies := g.expected()
	if all := want.all(); sent != 3000 || copies == 0 || all.bills+copies != sent {
		t.Fatalf("%d sent, %d copies, %d different", sent, copies, all.bills)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics(inputTopic))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seen := map[string]int{}
	for n := uint64(0); n < sent; {
		f := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records arrive", n, sent)
		}
		f.EachRecord(func(r *kgo.Record) {
			n++
			seen[string(r.Key)]++
		})
	}
	if all := want.all(); uint64(len(seen)) != all.bills {
		t.Errorf("%d different bills in the topic, the generator remembers %d", len(seen), all.bills)
	}
	often := 0
	for _, n := range seen {
		if n > 1 {
			often++
		}
	}
	if often == 0 {
		t.Error("no bill came twice: the demo would show nothing")
	}
}

// A check that cannot fail shows nothing.
func TestTheCheckFindsWhatIsWrong(t *testing.T) {
	want := sums{"account-01": {300, 3}, "account-02": {50, 1}}
	type msg struct {
		account, total string
		bills          int
	}
	right := []msg{{"account-01", "1.00", 1}, {"account-02", "0.50", 1}, {"account-01", "2.00", 2}, {"account-01", "3.00", 3}}
	for name, c := range map[string]struct {
		msgs  []msg
		raw   string
		wrong string // part of the error; empty: none
	}{
		"right":         {msgs: right},
		"lost":          {msgs: right[:3], wrong: "1 of 25 accounts differ: account-01 has 2 bills"},
		"counted twice": {msgs: append(right[:4:4], msg{"account-01", "4.00", 4}), wrong: "has 4 bills worth 4.00, want 3"},
		"written twice": {msgs: append(right[:4:4], right[3]), wrong: "more than once"},
		"wrong sum":     {msgs: append(right[:3:3], msg{"account-01", "2.99", 3}), wrong: "worth 2.99, want 3 worth 3.00"},
		"stranger":      {msgs: append(right[:4:4], msg{"account-99", "1.00", 1}), wrong: "3 accounts"},
		"no total":      {msgs: right, raw: "{", wrong: "is no total"},
		"no amount":     {msgs: right, raw: `{"total":"1.234","bills":9}`, wrong: "two decimal places"},
	} {
		r := &reader{latest: sums{}}
		for _, m := range c.msgs {
			r.add(&kgo.Record{Key: []byte(m.account), Value: fmt.Appendf(nil, `{"total":%q,"bills":%d}`, m.total, m.bills)})
		}
		if c.raw != "" {
			r.add(&kgo.Record{Key: []byte("account-01"), Value: []byte(c.raw)})
		}
		err := r.waitFor(want, 0)
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
	}
}

// A total of an aborted transaction is none.
func TestTheReaderSeesCommittedTotalsOnly(t *testing.T) {
	b := broker(t)
	p, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.TransactionalID("t"), kgo.DefaultProduceTopic(outputTopic))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for bills, try := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := p.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := p.ProduceSync(t.Context(), &kgo.Record{Key: []byte("account-01"), Value: fmt.Appendf(nil, `{"total":"1.00","bills":%d}`, 2-bills)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := p.EndTransaction(t.Context(), try); err != nil {
			t.Fatal(err)
		}
	}
	r, err := newReader(b.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.run(ctx); close(done) }()
	if err := r.waitFor(sums{"account-01": {100, 1}}, 10*time.Second); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
}
