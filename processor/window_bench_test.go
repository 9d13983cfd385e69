//go:build unix

package processor

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
	"github.com/streamd/streamd/window"
)

// cpuTime is what the process has used, on whatever the machine does besides.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTask compares the plain count with the tumbling one, the local log on disk, the changelog and the
// closing of windows included: 1,000 keys, a record each 5 ms, windows of a minute (12 records of each key), 2,000 records a transaction.
func BenchmarkTask(b *testing.B) {
	minute := window.Tumbling(time.Minute).Grace(time.Second)
	for _, c := range []struct {
		name  string
		count func(in *topology.Stream[string, int64])
	}{
		{"count", func(in *topology.Stream[string, int64]) {
			topology.To(topology.Count(in, "counts"), "out", serde.String(), serde.Int64())
		}},
		{"tumbling count", func(in *topology.Stream[string, int64]) {
			n := topology.Count(topology.WindowedBy(in, minute), "counts")
			topology.To(n, "out", window.KeySerde(serde.String()), serde.Int64())
		}},
		{"tumbling count on close", func(in *topology.Stream[string, int64]) {
			n := topology.Count(topology.WindowedBy(in, minute), "counts", topology.EmitOnClose())
			topology.To(n, "out", window.KeySerde(serde.String()), serde.Int64())
		}},
		{"table and join", func(in *topology.Stream[string, int64]) {
			rows := topology.ToTable(in, "rows", serde.Int64())
			joined := topology.JoinTable(in, rows, "joined", func(_ string, v, row int64) (int64, error) { return v + row, nil })
			topology.To(joined, "out", serde.String(), serde.Int64())
		}},
		{"join of streams", func(in *topology.Stream[string, int64]) { // each record with itself: one pair a record
			joined := topology.Join(in, in, "joined", topology.JoinWithin(0), func(_ string, l, r int64) (int64, error) { return l + r, nil })
			topology.To(joined, "out", serde.String(), serde.Int64())
		}},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkTask(b, c.count) })
	}
}

func benchmarkTask(b *testing.B, build func(in *topology.Stream[string, int64])) {
	bld := topology.New("app")
	build(topology.From(bld, "in", serde.String(), serde.Int64()))
	topo, err := bld.Build()
	if err != nil {
		b.Fatal(err)
	}
	log, err := txlog.Open(txlog.Options{Dir: b.TempDir(), App: "app"})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	local, err := logAdapter{log}.Task("in/0")
	if err != nil {
		b.Fatal(err)
	}
	in := record.TopicPartition{Topic: "in"}
	sub := topo.Subtopologies()[0]
	stores := map[string]storeTarget{}
	changelogs := []record.ChangelogPosition{{TopicPartition: record.TopicPartition{Topic: "ids"}}}
	for _, s := range sub.Stores {
		stores[s.Name] = storeTarget{topic: s.Name, maxBytes: 1 << 20}
		changelogs = append(changelogs, record.ChangelogPosition{TopicPartition: record.TopicPartition{Topic: s.Name}})
	}
	task, err := newTask(taskConfig{
		sub: sub, inputs: []record.TopicPartition{in}, inputIDs: []string{"uuid"}, clusterID: "cluster",
		sinks: []sinkTarget{{operator: "to-out", topic: "out", partitions: 1, maxBytes: 1 << 20}}, idLog: "ids", idLogBytes: 1 << 20,
		stores: stores,
	}, "in/0", local, record.CommitPoint{Incarnation: 1})
	if err != nil {
		b.Fatal(err)
	}
	task.changelogs = changelogs
	const batch, keys = 2000, 1000
	next := record.Offset(0)
	b.ResetTimer()
	before := cpuTime()
	for left := b.N; left > 0; left -= batch {
		x := broker.Batch{TopicPartition: in}
		for range min(batch, left) {
			x.Records = append(x.Records, broker.Record{
				Offset: next, Timestamp: epoch.Add(time.Duration(next) * 5 * time.Millisecond),
				Key: fmt.Appendf(nil, "account-%d", next*7919%keys), Value: binary.BigEndian.AppendUint64(nil, 1),
			})
			next++
		}
		x.Next = next
		task.AddRecords(x)
		for n := 1; n > 0; {
			if n, err = task.Process(start.Add(24*time.Hour), quantum); err != nil {
				b.Fatal(err)
			}
		}
		txn := task.PrepareCommit(start)
		txn.Batch.Position.Changelogs = task.changelogs
		if err := local.Apply(txn.Batch); err != nil {
			b.Fatal(err)
		}
		if err := task.PostCommit(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
}
