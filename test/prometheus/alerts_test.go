//go:build prometheus && linux

package prometheus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/test/smalldisk"
)

// The pipelines, a topic of each named like it. "well" is the one that nothing happens to.
const (
	dedup = `
version: 1
name: NAME
kafka: {brokers: ["BROKER"]}
sources: {in: {topic: NAME, format: json}}
steps:
  - name: unique
    dedup: {id: value.id, retention: 7d, expected_ids: 1000, scope: partition, compare: payload, on_conflict: drop, on_missing_id: forward}
  - {name: publish, to: {topic: NAME.out}}
errors: {on_error: dead_letter, dead_letter_topic: NAME.dlq}
`
	intoTarget = `
version: 1
name: NAME
kafka: {brokers: ["BROKER"]}
sources: {in: {topic: NAME, format: json}}
steps:
  - {name: target, to: {http: {url: "TARGET", class: idempotent, columns: {id: string(value.id)}}}}
`
	posted = `
version: 1
name: NAME
kafka: {brokers: ["BROKER"]}
sources: {in: {topic: NAME, http: {address: "POSTS", timeout: 1s}}}
steps:
  - {name: publish, to: {topic: NAME.out}}
`
)

// sunkPartitions is how many partitions try to reach the target. Each tries once in five seconds, which the shortened rule takes for five
// minutes, so that they have to take turns.
const sunkPartitions = 16

// faults is a Kafka in memory whose answers can be made those of one in trouble.
type faults struct {
	*kfake.Cluster
	// uncommitted refuses the transactions of the pipeline "stalled", as a coordinator that is not there; restless has each heartbeat
	// of the group "restless" begin a rebalance; deaf refuses what is written to the topic "posted".
	uncommitted, restless, deaf atomic.Bool
}

func newFaults(t *testing.T, topics ...string) *faults {
	t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(4, topics...), kfake.SeedTopics(sunkPartitions, "sunk"), kfake.MaxVersions(embedded.Versions())}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	unwait, err := embedded.KeepWaiting(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unwait(); c.Close() })
	f := &faults{Cluster: c}
	c.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		req := r.(*kmsg.EndTxnRequest)
		if !f.uncommitted.Load() || !strings.HasPrefix(req.TransactionalID, "stalled") {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.EndTxnResponse)
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code
		return resp, nil, true
	})
	c.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		req := r.(*kmsg.HeartbeatRequest)
		if !f.restless.Load() || req.Group != "restless" {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.RebalanceInProgress.Code
		return resp, nil, true
	})
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		if !f.deaf.Load() || !slices.ContainsFunc(req.Topics, func(t kmsg.ProduceRequestTopic) bool { return t.Topic == "posted" }) {
			return nil, nil, false
		}
		return nil, errors.New("no answer"), true
	})
	return f
}

// rig is the whole scene.
type rig struct {
	t      *testing.T
	binary string
	kafka  *faults
	client *kgo.Client
	dirs   string
	fill   *strings.Replacer
}

// newRig builds streamd, and starts the broker with topics.
func newRig(t *testing.T, topics ...string) *rig {
	t.Helper()
	g := &rig{t: t, dirs: t.TempDir(), binary: filepath.Join(t.TempDir(), "streamd"), kafka: newFaults(t, topics...)}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", g.binary, "../../cmd/streamd").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var err error
	if g.client, err = kgo.NewClient(kgo.SeedBrokers(g.kafka.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.client.Close)
	return g
}

// dir is the data directory of a process.
func (g *rig) dir(name string) string { return filepath.Join(g.dirs, name) }

// run starts a process with pipelines, whose metrics are at the returned address.
func (g *rig) run(name string, dataDir string, files ...string) (*exec.Cmd, string) {
	g.t.Helper()
	address := "127.0.0.1:" + freePort(g.t)
	return g.start(name, dataDir, address, files...), address
}

func (g *rig) start(name, dataDir, address string, files ...string) *exec.Cmd {
	g.t.Helper()
	c := exec.CommandContext(g.t.Context(), g.binary, append([]string{"run", "--http", address, "--data-dir", dataDir, "--instance-id", name}, files...)...)
	background(g.t, c)
	return c
}

// file writes a pipeline file.
func (g *rig) file(name, text string) string {
	g.t.Helper()
	path := filepath.Join(g.dirs, name+".yaml")
	text = g.fill.Replace(strings.ReplaceAll(text, "NAME", name))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// send writes a record, to the given partition.
func (g *rig) send(topic string, partition int32, value string) {
	if err := g.client.ProduceSync(g.t.Context(), &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}).FirstErr(); err != nil && g.t.Context().Err() == nil {
		g.t.Errorf("sending to %s: %v", topic, err)
	}
}

// hang opens a transaction on a topic and leaves it so until the returned function is called.
func (g *rig) hang(topic string) (end func()) {
	g.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(g.kafka.ListenAddrs()...), kgo.TransactionalID("somebody-else"),
		kgo.TransactionTimeout(10*time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		g.t.Fatal(err)
	}
	if err := c.BeginTransaction(); err != nil {
		g.t.Fatal(err)
	}
	if err := c.ProduceSync(g.t.Context(), &kgo.Record{Topic: topic, Value: []byte(`{"id":"open"}`)}).FirstErr(); err != nil {
		g.t.Fatal(err)
	}
	return func() {
		if err := c.EndTransaction(context.WithoutCancel(g.t.Context()), kgo.TryAbort); err != nil {
			g.t.Error(err)
		}
		c.Close()
	}
}

// load is normal load: records at a pace, each fifth a copy of the one before.
func (g *rig) load(ctx context.Context, topic string, partitions int, pace time.Duration) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		id := n - n/5
		g.send(topic, int32(id%partitions), fmt.Sprintf(`{"id":"%s-%d"}`, topic, id))
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// firing returns the alerts that fire, as NAME/PIPELINE or, of a process, NAME.
func (s server) firing() (map[string]bool, error) {
	var data struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	if err := s.get("/api/v1/alerts", url.Values{}, &data); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, a := range data.Alerts {
		if a.State == "firing" {
			out[strings.TrimSuffix(a.Labels["alertname"]+"/"+a.Labels["pipeline"], "/")] = true
		}
	}
	return out, nil
}

// driven are the alerts that this test sees, with the pipeline that they are about. TestAlertsOfStateFire sees the others.
var driven = []string{
	"StreamdPipelineGone/killed",
	"StreamdBlocked/hung",
	"StreamdStalled/stalled", "StreamdLagGrowing/stalled", "StreamdTransactionAborts/stalled",
	"StreamdDedupIDConflict/records", "StreamdDedupMissingIDs/records", "StreamdDeadLetters/records",
	"StreamdSinkFailing/sunk",
	"StreamdIngressFailing/posted",
	"StreamdRebalanceStorm/restless",
	"StreamdDiskFull",
}

// TestAlertsFire drives faults through real processes, and sees in a real Prometheus with the real rules, a minute of theirs being a second, that each
// alert fires in the situation that it names and is over after it, and that the pipeline which nothing happens to has none.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if !smalldisk.Mount(t, disk) {
		return
	}
	names := []string{"well", "killed", "records", "sunk", "hung", "stalled", "restless", "full"}
	topics := []string{"posted", "posted.out"}
	for _, n := range names {
		if n != "sunk" {
			topics = append(topics, n, n+".out", n+".dlq")
		}
	}
	g := newRig(t, topics...)
	var down atomic.Bool
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(target.Close)
	posts := "127.0.0.1:" + freePort(t)
	g.fill = strings.NewReplacer("BROKER", g.kafka.ListenAddrs()[0], "TARGET", target.URL, "POSTS", posts)

	_, well := g.run("well", g.dir("well"), g.file("well", dedup))
	victim, killed := g.run("killed", g.dir("killed"), g.file("killed", dedup))
	_, troubled := g.run("troubled", g.dir("troubled"), g.file("records", dedup), g.file("sunk", intoTarget), g.file("posted", posted),
		g.file("hung", dedup), g.file("stalled", dedup), g.file("restless", dedup))
	_, full := g.run("full", filepath.Join(disk, "data"), g.file("full", dedup))
	s := start(t, shortened(t), well, killed, troubled, full)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, topic := range names {
		if topic == "sunk" {
			go g.load(ctx, topic, sunkPartitions, 350*time.Millisecond)
			continue
		}
		go g.load(ctx, topic, 4, 50*time.Millisecond)
	}
	s.wait(t, "all pipelines work", func() (bool, error) {
		n, err := s.query(`sum by (pipeline) (streamd_consumed_records_total) > 10`)
		return len(n) == len(names), err
	})
	s.quiet(t)

	// The faults, all at once.
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	end := g.hang("hung")
	g.kafka.uncommitted.Store(true)
	g.kafka.restless.Store(true)
	g.kafka.deaf.Store(true)
	down.Store(true)
	ballast := filepath.Join(disk, "ballast")
	occupy(t, ballast)
	g.send("records", 0, `{"id":"one","amount":1}`)
	g.send("records", 0, `{"id":"one","amount":2}`)
	g.send("records", 1, `{"amount":2}`)
	g.send("records", 2, `{"id":`)
	faulty, heal := context.WithCancel(ctx)
	defer heal()
	go g.load(faulty, "stalled", 4, 4*time.Millisecond) // more than can wait unnoticed
	go func() {
		for faulty.Err() == nil {
			post(ctx, "http://"+posts)
		}
	}()

	began := time.Now()
	s.eachFires(t, 90*time.Second, driven, func(string) {})

	// All is well again.
	heal()
	end()
	g.kafka.uncommitted.Store(false)
	g.kafka.restless.Store(false)
	g.kafka.deaf.Store(false)
	down.Store(false)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	g.start("killed", g.dir("killed"), killed, filepath.Join(g.dirs, "killed.yaml"))
	post(ctx, "http://"+posts)
	s.noneFires(t)
	t.Logf("over after %v", time.Since(began).Round(100*time.Millisecond))
}

// quiet holds that nothing fires in three seconds of normal load: three minutes of the rules.
func (s server) quiet(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for range 12 {
		if now, err := s.firing(); err != nil || len(now) > 0 {
			t.Errorf("in normal load: %v fire, %v", slices.Sorted(maps.Keys(now)), err)
		}
		<-tick.C
	}
}

// eachFires waits until each of the alerts has fired, and says so to done when it does. None of the pipeline "well" may.
func (s server) eachFires(t *testing.T, patience time.Duration, alerts []string, done func(alert string)) {
	t.Helper()
	missing := map[string]bool{}
	for _, a := range alerts {
		missing[a] = true
	}
	began := time.Now()
	waitFor(t, patience, "each alert fires", func() (bool, error) {
		now, err := s.firing()
		for a := range now {
			if missing[a] {
				t.Logf("after %v: %s", time.Since(began).Round(100*time.Millisecond), a)
				delete(missing, a)
				done(a)
			}
			if strings.HasSuffix(a, "/well") {
				t.Errorf("%s fires", a)
			}
		}
		if len(missing) > 0 && err == nil {
			err = fmt.Errorf("%v have not fired, these fire: %v", slices.Sorted(maps.Keys(missing)), slices.Sorted(maps.Keys(now)))
		}
		return len(missing) == 0, err
	})
}

// noneFires waits until all is over.
func (s server) noneFires(t *testing.T) {
	t.Helper()
	s.wait(t, "each alert is over", func() (bool, error) {
		now, err := s.firing()
		if len(now) > 0 && err == nil {
			err = fmt.Errorf("still: %v", slices.Sorted(maps.Keys(now)))
		}
		return err == nil, err
	})
}

// post sends a record to the HTTP source. Whether it is taken is the matter of others.
func post(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(`{"id":"x"}`))
	if err != nil {
		return
	}
	req.Header.Set("Idempotency-Key", fmt.Sprint(time.Now().UnixNano()))
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

// occupy leaves less than a tenth of the small disk.
func occupy(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var st syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &st); err != nil {
		t.Fatal(err)
	}
	size := int64(st.Bavail-st.Blocks/20) * st.Bsize
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
}
