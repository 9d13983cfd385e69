//go:build kafka

package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/test/crash"
)

// TestTopicMadeAnew: a topic is deleted and made again, with more records than before, while the application runs and
// while it does not. It stops and says so, with the numbers; nothing of the new topic is taken for something of the old
// one.
func TestTopicMadeAnew(t *testing.T) {
	for _, c := range []struct {
		name, topic string
		running     bool
		bare        bool // the start finds an empty directory
		says        string
	}{
		{"input-live", "in", true, false, "made again"},
		{"input-down", "in", false, false, "made again"},
		{"input-bare", "in", false, true, "made again"},
		{"repartition-live", "totals-by-repartition", true, false, "made again"},
		{"idlog-live", "bills-ids-changelog", true, false, "made again"},
		{"store-live", "totals-changelog", true, false, "made again"},
		{"idlog-down", "bills-ids-changelog", false, false, "made anew"},
		{"store-down", "totals-changelog", false, false, "made anew"},
		{"idlog-bare", "bills-ids-changelog", false, true, "made anew"},
		{"store-bare", "totals-changelog", false, true, "made anew"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "anew-"+c.name, 4*time.Minute)
			topic := w.internal(c.topic)
			if c.topic == "in" {
				topic = w.topic("in")
			}
			d := w.daemon("a")
			w.start(d)
			w.running(90*time.Second, tasks, d)
			w.send(1, 2000)
			order, totals := crash.NewOrder(accounts), crash.NewTotals(accounts)
			unique, sums := w.follow(w.topic("unique"), order.Add), w.follow(w.topic("totals"), totals.Add)
			w.must(sums.AwaitCount(w.ctx, totals.Seen, w.want.Distinct))
			if !c.running {
				w.stopAll(d)
			}
			w.deleteTopic(topic)
			if c.running || c.topic == "in" { // an internal one is made by the next start
				w.must(retry(w.ctx, func() error { return crash.CreateTopics(w.ctx, brokers.Addresses(), partitions, topic) }))
			}
			if c.topic == "in" {
				w.send(2, 4000) // of the new topic: none of it may come out
			}
			if c.bare {
				d = w.daemon("a")
			}
			if !c.running {
				w.start(d)
			}
			select {
			case <-d.Done():
			case <-time.After(90 * time.Second):
				t.Fatal("streamd goes on")
			}
			if code, signal, _ := d.Ended(); code == 0 || signal != 0 {
				t.Errorf("exit code %d, signal %v", code, signal)
			}
			if out := d.Tail(); !strings.Contains(out, c.says) || !strings.Contains(out, topic) {
				t.Errorf("it does not say that %s was %s:\n%s", topic, c.says, out)
			}
			w.must(unique.AwaitEnd(w.ctx))
			w.must(sums.AwaitEnd(w.ctx))
			unique.Locked(func() { w.check(order.Verify(w.want)) })
			sums.Locked(func() { w.check(totals.Verify(w.want)) })
		})
	}
}
