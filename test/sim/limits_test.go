package sim

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// more runs the world on after it has come to rest: with some more input, and no faults.
func (w *world) more(bills int) {
	w.load.left, w.load.next = bills, w.now()
	w.quiet, w.calm, w.steps = false, time.Time{}, 0
	for _, o := range w.owners {
		o.restart = w.now()
	}
	w.run()
}

// What breaks a promise that streamd rests on is either healed without a loss, or stops the task with
// the reason: it is never passed over. The rows are those of the crash table.
func TestBrokenLimits(t *testing.T) {
	bills := record.TopicPartition{Topic: billsTopic}
	ids := record.TopicPartition{Topic: app + "-bills-ids-changelog"}
	accounts := record.TopicPartition{Topic: app + "-accounts-changelog"}
	// boundary is the offset behind the n-th last but one transaction.
	boundary := func(w *world, tp record.TopicPartition, n int) record.Offset {
		var markers []record.Offset
		for _, e := range w.b.Log(tp) {
			if e.Control {
				markers = append(markers, e.Offset+1)
			}
		}
		return markers[len(markers)-1-n]
	}
	recreate := func(w *world, name string) {
		w.b.DeleteTopic(name)
		err := w.b.Client("admin").CreateTopic(context.Background(), broker.Topic{Name: name, Partitions: int32(w.partitions), Retention: -1})
		if err != nil {
			w.fail("%v", err)
		}
	}
	end := func(w *world, tp record.TopicPartition) record.Offset {
		_, _, end := w.b.Offsets(tp)
		return end
	}
	for _, c := range []struct {
		name string
		harm func(w *world)
		stop string // part of the error with which the process ends; empty: healed
	}{
		{name: "nothing", harm: func(*world) {}},
		{"CRASH 25 the group's offsets of the bills expired", func(w *world) {
			notes := record.TopicPartition{Topic: notesTopic}
			at := w.b.Position(group, notes)
			w.b.Group(group).ExpireOffsets()
			// A task without state has nothing else to go by: its offsets are kept.
			w.b.Group(group).SetOffsets(broker.OffsetCommit{TopicPartition: notes, Next: at.Next, Metadata: at.Metadata})
		}, ""},
		{"CRASH 47 the group's offset was set back by a tool", func(w *world) {
			w.b.Group(group).SetOffsets(broker.OffsetCommit{TopicPartition: bills, Next: 0})
		}, ""},
		{"CRASH 47 the group's offset was set forward by a tool", func(w *world) {
			w.load.send(sent{bill: bill{id: "extra", account: "acc-0", region: "r0", cents: 5, at: w.now()}})
			w.b.Group(group).SetOffsets(broker.OffsetCommit{TopicPartition: bills, Next: end(w, bills)})
		}, ""},
		{"CRASH 7 a late request moved the offset back", func(w *world) {
			at := w.b.Position(group, bills)
			w.b.Group(group).SetOffsets(broker.OffsetCommit{TopicPartition: bills, Next: at.Next - 5, Metadata: at.Metadata})
		}, ""},
		{"CRASH 48 the input's retention overtook the group", func(w *world) {
			for i := range 10 {
				w.load.b.Append(bills, broker.Record{Timestamp: w.now(), Key: []byte("k"), Value: []byte("x|r0|1"), Headers: record.Headers{{Key: idHeader, Value: []byte{byte(i)}}}})
			}
			w.b.MoveStart(bills, end(w, bills)-3)
		}, "begins at"},
		{"CRASH 31 the ID log lost whole transactions", func(w *world) { w.b.Truncate(ids, boundary(w, ids, 2)) }, "committed data was lost"},
		{"CRASH 29 the ID log lost a marker: a hanging transaction", func(w *world) {
			w.b.Truncate(ids, end(w, ids)-1)
			w.owners[0].disk.wipe() // so that the log is read: it waits, and never skips
		}, "C9: not caught up"},
		{"CRASH 33 the ID log was emptied", func(w *world) {
			w.b.MoveStart(ids, end(w, ids))
			w.owners[0].disk.wipe()
		}, "committed data was lost"},
		{"CRASH 31 the state's changelog lost whole transactions", func(w *world) { w.b.Truncate(accounts, boundary(w, accounts, 2)) }, "committed data was lost"},
		{"CRASH 31 the state's changelog lost whole transactions, and the disk is gone", func(w *world) {
			w.b.Truncate(accounts, boundary(w, accounts, 2))
			w.owners[0].disk.wipe()
		}, "committed data was lost"},
		{"CRASH 32 the state's changelog was made anew", func(w *world) { w.b.DeleteTopic(accounts.Topic) }, "committed data was lost"},
		{"CRASH 32 the ID log was made anew", func(w *world) { w.b.DeleteTopic(ids.Topic) }, "committed data was lost"},
		{"CRASH 32 the input was made anew", func(w *world) { recreate(w, billsTopic) }, "bills"},
		{"CRASH 45 the input got more partitions", func(w *world) { w.b.AddPartitions(billsTopic, 5) }, "partitions"},
		{"CRASH 13 the local store is gone", func(w *world) { w.owners[0].disk.wipe() }, ""},
		{"CRASH 37 the disk is full while the task is restored", func(w *world) {
			w.owners[0].disk.wipe()
			w.owners[0].disk.full, w.conf.MaxFetch = 3, 200
		}, ""},
		{"CRASH 34 the local store is from an older snapshot", func(w *world) { w.owners[0].disk.rollback(5) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(Config{Seed: 7, Partitions: 1, Owners: 1, Bills: 60})
			defer w.close()
			w.run()
			if len(w.errors) > 0 {
				t.Fatalf("before: %v", w.errors)
			}
			w.owners[0].kill()
			w.owners[0].disk.full = 0
			c.harm(w)
			w.more(20)
			all := strings.Join(w.errors, "\n")
			switch {
			case c.stop == "" && all != "":
				t.Fatalf("not healed:\n%s", all)
			case c.stop != "" && !strings.Contains(all, c.stop):
				t.Fatalf("want it to stop with %q, got:\n%s", c.stop, all)
			}
			t.Log(all)
		})
	}
}
