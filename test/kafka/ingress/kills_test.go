//go:build kafka

package ingress

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
)

// patience is how long anything that must come may take.
const patience = 90 * time.Second

const kills = 15

// world is a broker, a pipeline file, and the process that runs it.
type world struct {
	*testing.T
	brokers  []string
	dir, bin string
	table    *fault.Table
	process  *exec.Cmd
	ended    chan error
	starts   int
	address  atomic.Pointer[string] // of the endpoint; nil while there is none
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, dir: t.TempDir(), brokers: kafkaenv.Start(t).Addresses()}
	var err error
	if w.bin, w.table, err = crash.BuildWithPoints(t.Context(), "../../..", w.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.table.Close() })
	w.write("pipeline.yaml", fmt.Sprintf(`version: 1
name: come-in
kafka: {brokers: [%q]}
sources:
  posts: {topic: posts, http: {address: "127.0.0.1:0"}}
  lines: {topic: lines, file: {paths: [%q], owner: test, poll: 10ms}}
steps:
  - {name: unique, from: posts, dedup: {id: 'headers["record-id"]', retention: 1d, scope: partition}}
  - {name: out-posts, to: {topic: out-posts}}
  - {name: out-lines, from: lines, to: {topic: out-lines}}
`, strings.Join(w.brokers, ","), filepath.Join(w.dir, "app.log*")))
	for _, topic := range []string{"out-posts", "out-lines"} {
		req := kmsg.NewPtrCreateTopicsRequest()
		x := kmsg.NewCreateTopicsRequestTopic()
		x.Topic, x.NumPartitions, x.ReplicationFactor = topic, 3, 1
		req.Topics = append(req.Topics, x)
		if _, err := req.RequestWith(t.Context(), w.client()); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) write(name, text string) {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(w.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(c.Close)
	return c
}

// start starts the process and waits until its endpoint listens.
func (w *world) start() {
	w.Helper()
	w.starts++
	log, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("log-%02d", w.starts)))
	if err != nil {
		w.Fatal(err)
	}
	defer log.Close()
	w.process = exec.Command(w.bin, "run", filepath.Join(w.dir, "pipeline.yaml"), "--data-dir", filepath.Join(w.dir, "data"), "--http", "off", "--admin", "off", "--log-format", "json")
	w.process.Env = append(os.Environ(), fault.Variable+"="+filepath.Join(w.dir, "table"))
	w.process.Stderr, w.process.Stdout = log, log
	w.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.process.Start(); err != nil {
		w.Fatal(err)
	}
	process, ended := w.process, make(chan error, 1)
	w.ended = ended
	go func() { ended <- process.Wait() }()
	w.Cleanup(func() { _ = process.Process.Kill() })
	w.await("the endpoint", func() bool {
		f, err := os.Open(log.Name())
		if err != nil {
			return false
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			var line struct{ Msg, Source, Address string }
			if json.Unmarshal(s.Bytes(), &line) == nil && line.Msg == "source listening" {
				w.address.Store(&line.Address)
				return true
			}
		}
		select {
		case err := <-ended: // an armed point may be met before anybody listens
			ended <- err
			return true
		default:
			return false
		}
	})
}

func (w *world) await(what string, ok func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("%s does not come\n%s", what, w.tail())
		}
	}
}

func (w *world) tail() string {
	b, err := os.ReadFile(filepath.Join(w.dir, fmt.Sprintf("log-%02d", w.starts)))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// post sends batches until stop, each until it is acknowledged, and returns how many were.
func (w *world) post(stop <-chan struct{}) (batches, again int) {
	client := &http.Client{Timeout: 15 * time.Second}
	for ; ; batches++ {
		for {
			select {
			case <-stop:
				return batches, again
			default:
			}
			if w.postOnce(client, batches) {
				break
			}
			again++
		}
	}
}

func (w *world) postOnce(client *http.Client, n int) bool {
	address := w.address.Load()
	if address == nil {
		time.Sleep(time.Millisecond)
		return false
	}
	req, err := http.NewRequest(http.MethodPost, *address, strings.NewReader(fmt.Sprintf(`["%d-0","%d-1","%d-2"]`, n, n, n)))
	if err != nil {
		w.Error(err)
		return false
	}
	req.Header.Set("Idempotency-Key", fmt.Sprint(n))
	resp, err := client.Do(req)
	if err != nil {
		time.Sleep(5 * time.Millisecond)
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// log writes lines to a file until stop, and rotates it: by renaming, and every third time by copying and truncating.
func (w *world) log(stop <-chan struct{}) (lines int) {
	path := filepath.Join(w.dir, "app.log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.Error(err)
		return 0
	}
	defer func() { _ = f.Close() }()
	for ; ; lines++ {
		select {
		case <-stop:
			return lines
		case <-time.After(500 * time.Microsecond):
		}
		if _, err = fmt.Fprintf(f, "{\"line\":%d,\"text\":\"%s\"}\n", lines, strings.Repeat("é", 30)); err != nil {
			w.Error(err)
			return lines
		}
		if lines%300 != 299 {
			continue
		}
		aside := fmt.Sprintf("%s.%d", path, lines)
		if lines%900 == 899 {
			var b []byte
			if b, err = os.ReadFile(path); err == nil {
				if err = os.WriteFile(aside+".new", b, 0o600); err == nil { // app.log.N.new is seen in the middle of its copying, too
					err = f.Truncate(0)
				}
			}
		} else {
			_ = f.Close()
			if err = os.Rename(path, aside); err == nil {
				f, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			}
		}
		if err != nil {
			w.Error(err)
			return lines
		}
	}
}

// TestKills: kill -9 at each point, in turn, while a client posts and a file grows and is rotated.
func TestKills(t *testing.T) {
	w := newWorld(t)
	w.start()
	stop := make(chan struct{})
	var batches, again, lines int
	var senders sync.WaitGroup
	senders.Go(func() { batches, again = w.post(stop) })
	senders.Go(func() { lines = w.log(stop) })
	ended := sync.OnceFunc(func() { close(stop); senders.Wait() })
	defer ended()
	points := fault.IngressNames()
	for n := range kills {
		point := points[n%len(points)]
		w.table.Arm(point, uint64(3+n), fault.Kill)
		select {
		case <-w.ended:
		case <-time.After(patience):
			t.Fatalf("kill %d at %s does not come\n%s", n, point, w.tail())
		}
		w.address.Store(nil)
		if w.table.Fired(point) != uint64(n/len(points)+1) {
			t.Fatalf("the process ended by itself\n%s", w.tail())
		}
		w.start()
	}
	// Some more without a kill, so that all has a chance to be acknowledged.
	hits := w.table.Hits(points[2])
	w.await("a quiet end", func() bool { return w.table.Hits(points[2]) > hits+20 })
	ended()
	t.Logf("%d batches, %d requests sent again, %d lines, %d starts", batches, again, lines, w.starts)
	want := map[string]map[string]bool{"out-posts": {}, "out-lines": {}}
	for b := range batches {
		for i := range 3 {
			want["out-posts"][fmt.Sprintf(`"%d-%d"`, b, i)] = true
		}
	}
	for l := range lines {
		want["out-lines"][fmt.Sprintf("{\"line\":%d,\"text\":\"%s\"}", l, strings.Repeat("é", 30))] = true
	}
	w.reaches(want)
	if err := w.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-w.ended; err != nil {
		t.Fatalf("%v\n%s", err, w.tail())
	}
	w.compare(want, batches)
}

// reaches waits until all that is wanted is committed.
func (w *world) reaches(want map[string]map[string]bool) {
	w.Helper()
	c := w.client(kgo.ConsumeTopics("out-posts", "out-lines"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	missing := map[string]map[string]bool{}
	left := 0
	for topic, values := range want {
		missing[topic] = map[string]bool{}
		for v := range values {
			missing[topic][v] = true
			left++
		}
	}
	for deadline := time.Now().Add(patience); left > 0; {
		if time.Now().After(deadline) {
			w.Fatalf("%d of posts and %d of lines are missing\n%s", len(missing["out-posts"]), len(missing["out-lines"]), w.tail())
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if m := missing[r.Topic]; m[string(r.Value)] {
				delete(m, string(r.Value))
				left--
			}
		})
		cancel()
	}
}

const sentinel = "the end"

// compare reads all that is committed: each wanted record once, and nothing else, but for the batch that was not acknowledged when the
// client stopped.
func (w *world) compare(want map[string]map[string]bool, batches int) {
	w.Helper()
	c := w.client(kgo.ConsumeTopics("out-posts", "out-lines"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	for topic := range want {
		for p := range int32(3) {
			if err := c.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Partition: p, Value: []byte(sentinel)}).FirstErr(); err != nil {
				w.Fatal(err)
			}
		}
	}
	got := map[string]map[string]int{"out-posts": {}, "out-lines": {}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ends := 0; ends < 6; {
		if ctx.Err() != nil {
			w.Fatal("the ends do not come")
		}
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if string(r.Value) == sentinel {
				ends++
				return
			}
			got[r.Topic][string(r.Value)]++
		})
	}
	wrong := 0
	for topic, values := range want {
		for v, n := range got[topic] {
			last := topic == "out-posts" && strings.HasPrefix(v, fmt.Sprintf(`"%d-`, batches))
			if n != 1 || !values[v] && !last {
				if wrong++; wrong < 10 {
					w.Errorf("%s: %s stands %d times", topic, v, n)
				}
			}
		}
		for v := range values {
			if got[topic][v] == 0 {
				w.Errorf("%s: %s is missing", topic, v)
			}
		}
	}
}
