//go:build kafka

package settle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
)

const (
	// patience is how long anything that must come may take.
	patience = 90 * time.Second
	// letters come before each kill: more than one transaction settles.
	letters = 230
	// moments is how many kills come at any moment, spread over the time that a run takes.
	moments = 6
)

// points are where a settlement is killed: before and after each of its requests that changes something.
func points() []string {
	return []string{"partitions.added", "produce", "flush.done", "endtxn.acked"}
}

// world is a broker and a program.
type world struct {
	*testing.T
	brokers  []string
	dir, bin string
	table    *fault.Table
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, dir: t.TempDir(), brokers: kafkaenv.Start(t).Addresses()}
	var err error
	if w.bin, w.table, err = crash.BuildWithPoints(t.Context(), "../../..", w.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.table.Close() })
	return w
}

// client makes a client that lives as long as the test.
func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(w.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(c.Close)
	return c
}

// topics makes topics of two partitions.
func (w *world) topics(names ...string) {
	w.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range names {
		x := kmsg.NewCreateTopicsRequestTopic()
		x.Topic, x.NumPartitions, x.ReplicationFactor = name, 2, 1
		req.Topics = append(req.Topics, x)
	}
	resp, err := req.RequestWith(w.Context(), w.client())
	if err != nil {
		w.Fatal(err)
	}
	for _, x := range resp.Topics {
		if err := kerr.ErrorForCode(x.ErrorCode); err != nil {
			w.Fatalf("make topic %s: %v", x.Topic, err)
		}
	}
}

// pipeline writes a file whose topics all begin with its name, and makes them.
func (w *world) pipeline(name string) string {
	w.Helper()
	w.topics(name+"-in", name+"-out", name+"-dead")
	return w.file(name, fmt.Sprintf(`  - {name: out, to: {topic: %[1]s-out}}
errors: {on_error: dead_letter, dead_letter_topic: %[1]s-dead}
`, name))
}

// file writes a file of a pipeline that reads JSON: its steps, and what follows them.
func (w *world) file(name, steps string) string {
	w.Helper()
	path := filepath.Join(w.dir, name+".yaml")
	text := fmt.Sprintf(`version: 1
name: %[1]s
kafka: {brokers: [%[2]q]}
sources:
  in: {topic: %[1]s-in, format: json}
steps:
%[3]s`, name, strings.Join(w.brokers, ","), steps)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}

// ending is how a command has ended.
type ending struct {
	killed bool
	code   int
	out    string
}

// run runs a command, and kills it after a time unless that is 0.
func (w *world) run(kill time.Duration, args ...string) ending {
	w.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.bin, args...)
	cmd.Env = append(os.Environ(), fault.Variable+"="+filepath.Join(w.dir, "table"))
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	if kill > 0 {
		late := time.AfterFunc(kill, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		w.Fatalf("%v does not end\n%s", args, out.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatalf("%v: %v", args, err)
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ending{status.Signaled() && status.Signal() == syscall.SIGKILL, cmd.ProcessState.ExitCode(), out.String()}
}

// settled runs a command that must succeed, and returns how long it took.
func (w *world) settled(args ...string) time.Duration {
	w.Helper()
	begun := time.Now()
	if e := w.run(0, args...); e.killed || e.code != 0 {
		w.Fatalf("%v ended with %d\n%s", args, e.code, e.out)
	}
	return time.Since(begun)
}

// committed reads what stands in a topic for readers of committed records.
func (w *world) committed(topic string) (all []*kgo.Record) {
	w.Helper()
	const end = "the end"
	c := w.client(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	for p := range int32(2) {
		if err := c.ProduceSync(w.Context(), &kgo.Record{Topic: topic, Partition: p, Key: []byte(end)}).FirstErr(); err != nil {
			w.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	for ends := 0; ends < 2; {
		if ctx.Err() != nil {
			w.Fatalf("%s cannot be read to its end: a transaction is open", topic)
		}
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if string(r.Key) == end {
				ends++
				return
			}
			all = append(all, r)
		})
	}
	return all
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// bury writes dead letters whose values go on from n.
func (w *world) bury(c *kgo.Client, name string, n int) {
	w.Helper()
	var all []*kgo.Record
	for i := n; i < n+letters; i++ {
		all = append(all, &kgo.Record{
			Topic: name + "-dead", Partition: int32(i % 2), Key: []byte("k"), Value: []byte(strconv.Itoa(i)), Headers: []kgo.RecordHeader{
				{Key: "__streams.errors.message", Value: []byte("why")},
				{Key: "__streams.errors.topic", Value: []byte(name + "-in")},
				{Key: "__streams.errors.partition", Value: []byte(strconv.Itoa(i % 2))},
				{Key: "__streams.errors.offset", Value: []byte(strconv.Itoa(i / 2))},
				{Key: "__streamd.errors.step", Value: []byte("out")},
			},
		})
	}
	if err := c.ProduceSync(w.Context(), all...).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

// TestSettleKilled: dlq retry, dlq drop and inspect transactions --abort die by kill -9. The next run goes on; in the end each letter was settled once,
// and nothing is open.
func TestSettleKilled(t *testing.T) {
	w := newWorld(t)
	for name, run := range map[string]func(*world){
		"retry": func(w *world) { w.settleKilled("retry") },
		"drop":  func(w *world) { w.settleKilled("drop") },
		"abort": (*world).abortKilled,
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.T = t
			run(&w)
		})
	}
}

// settleKilled kills a settlement at each of its steps, in the first transaction and in the second one, and at any moment.
func (w *world) settleKilled(verb string) {
	args := []string{"dlq", verb, w.pipeline(verb), "--all", "--execute"}
	c := w.client()
	n := 0
	more := func() {
		w.bury(c, verb, n)
		n += letters
	}
	more()
	w.settled(args...) // the first one takes longer: its coordinator begins
	more()
	took := w.settled(args...)
	for _, point := range points() {
		for nth := range uint64(2) { // there are two transactions, each with one hit or more
			more()
			before := w.table.Fired(point)
			w.table.Arm(point, nth+1, fault.Kill)
			if e := w.run(0, args...); !e.killed || w.table.Fired(point) != before+1 {
				w.Fatalf("%s, hit %d: it was not killed, but ended with %d\n%s", point, nth+1, e.code, e.out)
			}
			w.table.Disarm(point)
		}
	}
	killed := 0
	for i := range moments {
		more()
		if e := w.run(took*time.Duration(2*i+1)/(2*moments), args...); e.killed {
			killed++
		} else if e.code != 0 {
			w.Fatalf("it ended with %d\n%s", e.code, e.out)
		}
	}
	w.settled(args...)
	w.Logf("%d letters, %d kills at points, %d at any moment; a run takes %v", n, 2*len(points()), killed, took)

	state := map[string]string{"retry": "retried", "drop": "dropped"}[verb]
	places, notes := map[string]bool{}, map[string]int{}
	for _, r := range w.committed(verb + "-dead") {
		if s := header(r, "__streamd.dlq.note"); s != "" {
			notes[fmt.Sprintf("%d@%s %s", r.Partition, header(r, "__streamd.dlq.of"), s)]++
			continue
		}
		places[fmt.Sprintf("%d@%d %s", r.Partition, r.Offset, state)] = true
	}
	w.each("note of the letter", places, notes, n)
	values, again := map[string]bool{}, map[string]int{}
	for i := range n {
		values[strconv.Itoa(i)] = true
	}
	for _, r := range w.committed(verb + "-in") {
		again[string(r.Value)]++
	}
	if verb == "drop" {
		values, n = map[string]bool{}, 0
	}
	w.each("record", values, again, n)
}

// each says what is not there exactly once.
func (w *world) each(what string, want map[string]bool, got map[string]int, n int) {
	w.Helper()
	wrong := 0
	for v := range want {
		if got[v] != 1 {
			if wrong++; wrong < 10 {
				w.Errorf("%s %s stands there %d times", what, v, got[v])
			}
		}
	}
	if len(want) != n || len(got) != n {
		w.Errorf("%ss: %d, of %d wanted; %d were sent", what, len(got), len(want), n)
	}
}

// abortKilled: inspect transactions --abort dies at any moment. Run again until nothing is open, it has aborted the transaction, and never
// one that its owner had committed.
func (w *world) abortKilled() {
	const name, id = "abort", "abort-stray-0"
	const measured = 2 // runs that are not killed; the first one takes longer
	file := w.pipeline(name)
	args := []string{"inspect", "transactions", file, "--abort", id, "--execute"}
	took, killed := time.Duration(0), 0
	for i := range measured + moments {
		owner := w.client(kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute))
		w.write(owner, "seen")
		if err := owner.EndTransaction(w.Context(), kgo.TryCommit); err != nil {
			w.Fatal(err)
		}
		w.write(owner, "unseen")
		if i < measured {
			took = w.settled(args...)
		} else if e := w.run(took*time.Duration(2*(i-measured)+1)/(2*moments), args...); e.killed {
			killed++
		}
		// 78: nothing of that name is open, since the killed one had done it.
		if e := w.run(0, args...); e.killed || e.code != 0 && e.code != 78 {
			w.Fatalf("it ended with %d\n%s", e.code, e.out)
		}
		if open := w.open(file); len(open) != 0 {
			w.Fatalf("%v are open", open)
		}
		if err := owner.EndTransaction(w.Context(), kgo.TryCommit); err == nil {
			w.Fatal("the owner has committed a transaction that was aborted")
		}
		owner.Close()
	}
	w.Logf("%d kills; a run takes %v", killed, took)
	counts := map[string]int{}
	for _, r := range w.committed(name + "-in") {
		counts[string(r.Value)]++
	}
	if counts["seen"] != measured+moments || counts["unseen"] != 0 {
		w.Errorf("committed are %v, want seen %d times", counts, measured+moments)
	}
}

// write puts a record into an open transaction.
func (w *world) write(owner *kgo.Client, value string) {
	w.Helper()
	if err := owner.BeginTransaction(); err != nil {
		w.Fatal(err)
	}
	if err := owner.ProduceSync(w.Context(), &kgo.Record{Topic: "abort-in", Value: []byte(value)}).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

// open lists the open transactions of a pipeline.
func (w *world) open(file string) (ids []string) {
	w.Helper()
	out, err := exec.CommandContext(w.Context(), w.bin, "inspect", "transactions", file, "--json").Output()
	if err != nil {
		w.Fatal(err)
	}
	var list struct {
		Open []struct {
			ID string `json:"transactional_id"`
		} `json:"open"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
	for _, t := range list.Open {
		ids = append(ids, t.ID)
	}
	return ids
}
