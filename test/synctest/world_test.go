//go:build bubble

package synctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/processor"
)

const (
	partitions         = 3
	brokers            = 3
	transactionTimeout = 10 * time.Second // the App's default
	sessionTimeout     = 45 * time.Second // of internal/kafka
	// recoveryLimit is C9.
	recoveryLimit = transactionTimeout + sessionTimeout + 10*time.Second
)

func TestMain(m *testing.M) {
	if lock, _ := reflect.TypeFor[sarama.Broker]().FieldByName("lock"); lock.Type.Name() != "waitableLock" {
		fmt.Println("this test binary hangs without the sarama that waitableLock describes: run the package without the tag bubble")
		os.Exit(2)
	}
	// sarama's meters share a goroutine that never ends: a bubble with it would never end either.
	metrics.UseNilMetrics = true
	os.Exit(m.Run())
}

// config is one run.
type config struct {
	seed     uint64
	clients  int
	workers  int
	bills    int
	accounts int
	gap      time.Duration // longest between two bursts
	interval time.Duration // of commits
	events   schedule
	wipe     bool // one client starts again with an empty directory before the last repeats
	// wait is how long the faults have, at least: the load must not be over before them.
	wait time.Duration
}

// result is what a run came to.
type result struct {
	errors []string
	hits   map[string]int
	trace  []string
	// stops are the errors with which clients stopped, and were started again.
	stops []error
	took  time.Duration // virtual
}

// world is one run in its bubble.
type world struct {
	conf    config
	ctx     context.Context
	start   time.Time
	k       *kfake.Cluster
	net     kfake.VirtualNetwork
	clients []*client
	load    *loader
	watch   *watcher
	dir     string
	unwait  func()

	mu     sync.Mutex // guards the rest
	errs   []string
	hits   map[string]int
	lines  []string
	stops  []error
	closed bool
}

// run runs one seed in a bubble of its own.
func run(t *testing.T, conf config) (res result) {
	t.Helper()
	dir, err := os.MkdirTemp(scratch(), "synctest-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	over := watchdog(conf)
	defer close(over)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		w := &world{conf: conf, ctx: ctx, start: time.Now(), hits: map[string]int{}, dir: dir}
		w.life()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closed = true
		res = result{errors: w.errs, hits: w.hits, trace: w.lines, stops: w.stops, took: time.Since(w.start)}
	})
	return res
}

// scratch is a folder in memory if there is one: a run opens a dozen stores.
func scratch() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// watchdog ends a run that hangs: a bubble cannot see that itself. It runs on real time.
func watchdog(conf config) chan struct{} {
	over := make(chan struct{})
	go func() {
		select {
		case <-over:
		case <-time.After(*hangLimit):
			panic(fmt.Sprintf("seed %d hangs: a goroutine waits outside of the bubble, or for a mutex\n%s", conf.seed, conf.events))
		}
	}()
	return over
}

// life is the whole run.
func (w *world) life() {
	w.open()
	defer w.close()
	load := make(chan struct{})
	go func() {
		defer close(load)
		w.load.run(w.ctx, w.conf.gap)
	}()
	for _, c := range w.clients {
		c.start()
	}
	w.conduct(load)
	<-load
	w.settle("after the last fault")
	if w.conf.wipe && len(w.errs) == 0 {
		w.clients[0].wiped()
		w.settle("after a wipe")
	}
	w.load.again(w.ctx, 60)
	w.settle("after the last repeats")
	if len(w.errs) == 0 {
		w.check()
	}
	for _, c := range w.clients {
		c.stop()
	}
	if len(w.errs) == 0 {
		w.checkStores()
	}
}

func (w *world) open() {
	var err error
	w.k, err = kfake.NewCluster(
		kfake.NumBrokers(brokers), kfake.Ports(9092, 9093, 9094), kfake.ListenFn(w.net.Listen), kfake.ClusterID("bubble"),
		kfake.SeedTopics(partitions, billsTopic, echoTopic, totalsTopic, sumsTopic),
	)
	if err != nil {
		panic(err)
	}
	if w.unwait, err = embedded.KeepWaiting(w.k, w.net.DialContext); err != nil {
		panic(err)
	}
	w.watch = newWatcher(w)
	w.load = &loader{
		w: w, rng: rand.New(rand.NewPCG(w.conf.seed, 2)), accounts: w.conf.accounts, left: w.conf.bills,
		plain: w.kgo(kgo.RecordPartitioner(kgo.ManualPartitioner())), aborter: w.kgo(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID("aborter")),
	}
	for i := range w.conf.clients {
		w.clients = append(w.clients, newClient(w, i))
	}
}

func (w *world) close() {
	w.watch.close()
	w.load.plain.Close()
	w.load.aborter.Close()
	w.unwait()
	w.k.Close()
	time.Sleep(30 * time.Second) // what waits for a timeout of its own ends
}

// kgo is another client library: the checks share nothing with the engine.
func (w *world) kgo(opts ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(w.addrs()...), kgo.Dialer(w.net.DialContext)}, opts...)...)
	if err != nil {
		panic(err)
	}
	return c
}

func (w *world) addrs() []string { return w.k.ListenAddrs() }

// committed is the group's offset of a partition, 0 for none.
func (w *world) committed(topic string, p int32) int64 {
	g := w.k.GroupInfo(app)
	if g == nil {
		return 0
	}
	return g.Commits[topic][p].Offset
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, fmt.Sprintf(format, args...))
}

func (w *world) hit(what string) {
	w.mu.Lock()
	w.hits[what]++
	w.mu.Unlock()
	w.trace("hit: %s", what)
}

func (w *world) trace(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf("%9.3f ", time.Since(w.start).Seconds())+fmt.Sprintf(format, args...))
}

// settle waits until nothing is behind. C8 and C9.
func (w *world) settle(when string) {
	begin := time.Now()
	why := ""
	for time.Since(begin) < recoveryLimit {
		if why = w.behind(); why == "" {
			w.trace("settled %s in %v", when, time.Since(begin))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.fail("C9: not caught up %v %s: %s", recoveryLimit, when, why)
}

// behind says what is not done yet: "" for nothing.
func (w *world) behind() string {
	for _, c := range w.clients {
		if s := c.status().State; s != processor.Running {
			return fmt.Sprintf("client %s is %s", c.name, s)
		}
	}
	g := w.k.GroupInfo(app)
	if g == nil || len(g.Members) != len(w.clients) {
		return "the group is not complete"
	}
	for _, topic := range w.inputs() {
		for _, p := range w.k.PartitionInfos(topic) {
			if p.LastStableOffset != p.HighWatermark {
				return fmt.Sprintf("C8: %s/%d is stable to %d, ends at %d", topic, p.Partition, p.LastStableOffset, p.HighWatermark)
			}
			if at := g.Commits[topic][p.Partition].Offset; at != p.HighWatermark {
				return fmt.Sprintf("%s/%d is committed to %d, ends at %d", topic, p.Partition, at, p.HighWatermark)
			}
		}
	}
	for _, topic := range []string{echoTopic, totalsTopic, sumsTopic} {
		for _, p := range w.k.PartitionInfos(topic) {
			if p.LastStableOffset != p.HighWatermark {
				return fmt.Sprintf("C8: %s/%d is stable to %d, ends at %d", topic, p.Partition, p.LastStableOffset, p.HighWatermark)
			}
		}
	}
	return ""
}

// inputs are what the group reads.
func (w *world) inputs() []string {
	return []string{billsTopic, w.clients[0].topo.RepartitionTopic("by-region")}
}

// tracer is where a client logs.
type tracer struct {
	w *world
	c *client
}

// Write implements io.Writer.
func (t tracer) Write(b []byte) (int, error) {
	t.w.mu.Lock()
	closed := t.w.closed
	t.w.mu.Unlock()
	if !closed {
		_, line, _ := strings.Cut(string(bytes.TrimSpace(b)), " ") // without the time
		t.w.trace("%s: %s", t.c.name, line)
		if strings.Contains(line, "outcome=unknown") {
			t.w.hit("unknown: " + t.c.endOutcome.Swap("by something else").(string))
		}
	}
	return len(b), nil
}

// legal says whether an application may stop with this error after a fault of the network: it is one of
// the kinds that Run documents, and its supervisor starts it again.
func legal(err error) bool {
	for _, kind := range []error{broker.ErrFenced, broker.ErrUnreachable, broker.ErrUnknownTopic, processor.ErrStopTimeout, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (w *world) stopped(c *client, err error) {
	w.trace("%s: stopped: %v", c.name, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops = append(w.stops, err)
}

// newLogger makes a client's logger.
func newLogger(c *client) *slog.Logger {
	return slog.New(slog.NewTextHandler(tracer{c.w, c}, nil))
}

// keysOf are Kafka's request keys by name.
func keysOf(names ...string) []faultnet.Key {
	keys := make([]faultnet.Key, len(names))
	for i, n := range names {
		keys[i] = faultnet.KeyOf(n)
	}
	return slices.Clip(keys)
}
