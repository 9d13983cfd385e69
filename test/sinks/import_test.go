//go:build sinks

package sinks

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
)

// importFile is a pipeline that takes over what an older system has seen.
const importFile = `version: 1
name: NAME
kafka:
  brokers: ["BROKERS"]
types:
  Bill: {bill_id: string}
sources:
  raw: {topic: bills.raw, format: json, type: Bill}
steps:
  - name: unique
    dedup: {id: value.bill_id, scope: partition, retention: 1d, expected_ids: 4M}
  - name: publish
    to: {topic: unique.NAME}
`

// importMemory is how much an import may take.
const importMemory = 300 << 20

// TestImport takes IDs over from Redis and from a file, is killed (kill -9) meanwhile, and drops every one of them afterwards.
func TestImport(t *testing.T) {
	n, fresh, limit := 400_000, 1000, 5*time.Minute
	if os.Getenv("STREAMD_SOAK") != "" {
		n, limit = 10_000_000, 40*time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	k := kafkaenv.Start(t)
	if err := crash.CreateTopics(ctx, k.Addresses(), billPartitions, "bills.raw", "unique.redis", "unique.csv"); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addresses()...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.MaxBufferedRecords(100_000),
		kgo.MetadataMinAge(20*time.Millisecond), // the log of IDs is seen as soon as it is made
		kgo.ConsumeTopics("unique.redis", "unique.csv"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	dir, program := t.TempDir(), build(t)
	var files []string
	for _, s := range []struct {
		name string
		args []string
	}{
		{"redis", []string{"--from", fillRedis(ctx, t, n), "--redis-key", "seen"}},
		{"csv", []string{"--from", "csv:" + fillFile(t, filepath.Join(dir, "seen.csv"), n)}},
	} {
		file := filepath.Join(dir, s.name+".yaml")
		text := strings.NewReplacer("NAME", s.name, "BROKERS", strings.Join(k.Addresses(), `", "`)).Replace(importFile)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		runImport(ctx, t, client, program, s.name+"-raw-ids-changelog", append([]string{"ids", "import", file, "--partition-by", "id"}, s.args...))
	}
	// What is new comes last in each partition: when it is through, so is what was before it.
	for i := range n + fresh {
		client.Produce(ctx, &kgo.Record{Topic: "bills.raw", Key: fmt.Appendf(nil, "b%d", i), Value: fmt.Appendf(nil, `{"bill_id":"b%d"}`, i)}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Errorf("send: %v", err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	dropsAll(ctx, t, client, program, files, dir, n, fresh)
}

// fillRedis starts a Redis with n IDs in the set "seen" and returns its URL.
func fillRedis(ctx context.Context, t *testing.T, n int) string {
	s := startedRedis(t)
	c := goredis.NewClient(&goredis.Options{Addr: s.Address})
	defer func() { _ = c.Close() }()
	const at = 2000
	for from := 0; from < n; from += at {
		ids := make([]any, 0, at)
		for i := range min(at, n-from) {
			ids = append(ids, fmt.Sprintf("b%d", from+i))
		}
		if err := c.SAdd(ctx, "seen", ids...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return s.DSN("")
}

// fillFile writes n IDs, a line each.
func fillFile(t *testing.T, name string, n int) string {
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	for i := range n {
		fmt.Fprintf(w, "b%d\n", i)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

// runImport kills an import once it has committed something, and completes it.
func runImport(ctx context.Context, t *testing.T, client *kgo.Client, program, log string, args []string) {
	killed := exec.CommandContext(ctx, program, args...)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for ends(ctx, client, log) == 0 && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	_ = killed.Process.Kill()
	early := killed.Wait() != nil
	half := time.Since(began)
	cmd := exec.CommandContext(ctx, program, args...)
	began = time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// One that was done before it could be killed is begun anew where its source may have got more (Redis).
	if s := string(out); early && !strings.Contains(s, "going on where an earlier import ended") {
		t.Errorf("the second import does not go on:\n%s", s)
	}
	memory := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	if memory > importMemory {
		t.Errorf("the import took %d bytes of memory, at most %d", memory, importMemory)
	}
	t.Logf("killed after %v, in the midst of it: %t; completed in %v with %d MiB of memory:\n%s", half.Round(time.Millisecond), early, time.Since(began).Round(time.Millisecond), memory>>20, out)
}

// ends is how far a topic reaches, all partitions together; 0 if there is none.
func ends(ctx context.Context, client *kgo.Client, topic string) (sum int64) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, 1
	x := kmsg.NewListOffsetsRequestTopic()
	x.Topic = topic
	for i := range billPartitions {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = int32(i), -1
		x.Partitions = append(x.Partitions, p)
	}
	req.Topics = append(req.Topics, x)
	for _, shard := range client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			continue
		}
		for _, r := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range r.Partitions {
				sum += max(0, p.Offset)
			}
		}
	}
	return sum
}

// dropsAll runs the pipelines, which hand on what is new and nothing else.
func dropsAll(ctx context.Context, t *testing.T, client *kgo.Client, program string, files []string, dir string, n, fresh int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // the daemon takes the port
	d := &crash.Daemon{Program: program, File: files[0], Dir: filepath.Join(dir, "data"), HTTP: l.Addr().String(), Log: filepath.Join(dir, "log"), Args: append(files[1:], "--admin", "off")}
	t.Cleanup(func() {
		d.Kill()
		if t.Failed() {
			t.Logf("the end of streamd's log:\n%s", d.Tail())
		}
	})
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]int{"unique.redis": {}, "unique.csv": {}}
	complete := func() bool { return len(got["unique.redis"]) >= fresh && len(got["unique.csv"]) >= fresh }
	for !complete() && ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got[r.Topic][string(r.Key)]++ })
	}
	if code, err := d.Stop(time.Minute); err != nil || code != 0 {
		t.Errorf("the stop: exit %d, %v", code, err)
	}
	for topic, records := range got {
		for id, times := range records {
			var i int
			if _, err := fmt.Sscanf(id, "b%d", &i); err != nil || i < n || times != 1 {
				t.Fatalf("%s has %q %d times, which is one of the %d IDs that were imported, or doubled", topic, id, times, n)
			}
		}
		if len(records) != fresh {
			t.Errorf("%s has %d records, want %d", topic, len(records), fresh)
		}
	}
}
