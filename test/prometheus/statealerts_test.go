//go:build prometheus && linux

package prometheus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/test/sinks/dbenv"
)

// The pipelines of TestAlertsOfStateFire.
const (
	strict = `
version: 1
name: NAME
kafka: {brokers: ["BROKER"]}
sources: {in: {topic: NAME, format: json}}
steps:
  - {name: unique, dedup: {id: value.id, retention: RETENTION, expected_ids: 1000, false_positive_rate: RATE, scope: partition}}
  - {name: publish, to: {topic: NAME.out}}
errors: {on_error: POLICY}
`
	joined = `
version: 1
name: NAME
kafka: {brokers: ["BROKER"]}
sources: {in: {topic: NAME, format: json}}
tables: {rates: {topic: NAME.rates, global: true}}
steps:
  - {name: rated, join: {table: rates, on: value.id, kind: inner, value: {id: value.id}}}
  - {name: publish, to: {topic: NAME.out}}
`
	polled = `
version: 1
name: NAME
kafka: {brokers: ["BROKER"]}
sources: {in: {topic: NAME, postgres: {dsn: "DATABASE", table: orders, column: id, poll: 100ms}}}
steps:
  - {name: publish, to: {topic: NAME.out}}
`
)

// stateDriven are the alerts that TestAlertsOfStateFire sees.
var stateDriven = []string{
	"StreamdPipelineFailed/poisoned",
	"StreamdCrashLoop/looping",
	"StreamdTransactionOpenTooLong/stalled",
	"StreamdRestoreSlow/restoring",
	"StreamdBloomSaturated/saturated",
	"StreamdDedupRetentionTooShort/aged",
	"StreamdGlobalTableStale/joined",
	"StreamdTableUndecided/polled",
	"StreamdTableNotRead/polled",
}

// unread has a broker give no answer to who reads the topics that it is about.
func unread(c *kfake.Cluster, about func(topic string) bool) (broken *atomic.Bool) {
	broken = &atomic.Bool{}
	c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		if !broken.Load() {
			return nil, nil, false
		}
		for _, t := range r.(*kmsg.FetchRequest).Topics {
			if about(t.Topic) {
				return nil, errors.New("no answer"), true
			}
		}
		return nil, nil, false
	})
	return broken
}

// TestAlertsOfStateFire is TestAlertsFire for what the state of a process is about: its start and end, what it restores and remembers, and the tables
// that it reads.
func TestAlertsOfStateFire(t *testing.T) {
	t.Parallel() // mostly it waits, as TestAlertsFire
	names := []string{"well", "poisoned", "stalled", "looping", "restoring", "saturated", "aged", "joined"}
	topics := []string{"joined.rates", "polled.out"}
	for _, n := range names {
		topics = append(topics, n, n+".out")
	}
	g := newRig(t, topics...)
	noChangelog := unread(g.kafka.Cluster, func(topic string) bool {
		return strings.HasPrefix(topic, "restoring-") && strings.HasSuffix(topic, "-changelog")
	})
	noRates := unread(g.kafka.Cluster, func(topic string) bool { return topic == "joined.rates" })
	database, server := orders(t)
	retention := "1h"
	file := func(name, text, policy string, rate float64) string {
		g.fill = strings.NewReplacer("BROKER", g.kafka.ListenAddrs()[0], "DATABASE", server.DSN("postgres"), "POLICY", policy, "RATE", fmt.Sprint(rate), "RETENTION", retention)
		return g.file(name, text)
	}

	_, well := g.run("well", g.dir("well"), file("well", strict, "stop", 0.001), file("joined", joined, "", 0), file("polled", polled, "", 0),
		file("saturated", strict, "stop", 0.5))
	short, agedAt := g.run("aged", g.dir("aged"), file("aged", strict, "stop", 0.001))
	poisonedAt := "127.0.0.1:" + freePort(t)
	poisoned := func(policy string) *exec.Cmd {
		return g.start("poisoned", g.dir("poisoned"), poisonedAt, "--shutdown-timeout", "30s", file("poisoned", strict, policy, 0.001), file("stalled", strict, "stop", 0.001))
	}
	ending := poisoned("stop")
	looping, loopingAt := g.run("looping", g.dir("looping"), file("looping", strict, "stop", 0.001))
	restoring, restoringAt := g.run("restoring", g.dir("restoring"), file("restoring", strict, "stop", 0.001))
	s := start(t, shortened(t), well, poisonedAt, loopingAt, restoringAt, agedAt)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var late atomic.Bool
	filling, filled := context.WithCancel(ctx)
	defer filled()
	full := make(chan struct{})
	for _, topic := range names {
		switch topic {
		case "aged":
			go g.past(ctx, topic, 2*time.Hour, &late)
		case "saturated":
			go func() {
				defer close(full)
				g.past(filling, topic, time.Millisecond, &atomic.Bool{})
			}()
		default:
			go g.load(ctx, topic, 4, 50*time.Millisecond)
		}
	}
	s.wait(t, "all pipelines work", func() (bool, error) {
		n, err := s.query(`sum by (pipeline) (streamd_consumed_records_total) > 3`)
		return len(n) == len(names)+1, err
	})
	s.quiet(t)

	// The faults, all at once.
	g.kafka.uncommitted.Store(true)
	noRates.Store(true)
	_ = restoring.Process.Kill()
	_ = restoring.Wait()
	if err := os.RemoveAll(g.dir("restoring")); err != nil {
		t.Fatal(err)
	}
	noChangelog.Store(true)
	g.start("restoring", g.dir("restoring"), restoringAt, filepath.Join(g.dirs, "restoring.yaml"))
	faulty, heal := context.WithCancel(ctx)
	defer heal()
	loop := make(chan struct{})
	go func() { defer close(loop); g.restart(faulty, s, looping, loopingAt) }()
	late.Store(true)
	for i := range 40_000 {
		g.bill("saturated", fmt.Sprint("many-", i), longAgo)
	}
	open, err := database.BeginTx(ctx, nil)
	if err == nil {
		_, err = open.ExecContext(ctx, "INSERT INTO orders DEFAULT VALUES")
	}
	if err == nil {
		_, err = database.ExecContext(ctx, "INSERT INTO orders DEFAULT VALUES")
	}
	if err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	s.eachFires(t, 3*time.Minute, stateDriven, func(alert string) {
		switch alert {
		case "StreamdTableUndecided/polled": // the transaction ends with its server
			if err := server.Kill(); err != nil {
				t.Error(err)
			}
		case "StreamdTransactionOpenTooLong/stalled": // it cannot commit: the process waits for it when the other pipeline has failed
			g.send("poisoned", 0, `{"id":`)
		case "StreamdCrashLoop/looping":
			heal()
		}
	})

	// All is well again.
	heal()
	<-loop
	g.kafka.uncommitted.Store(false)
	_ = ending.Wait()
	poisoned("skip")
	noRates.Store(false)
	noChangelog.Store(false)
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := short.Process.Signal(os.Interrupt); err != nil { // copies come as late as before: the runbook says what to do
		t.Fatal(err)
	}
	_ = short.Wait()
	retention = "12h"
	g.start("aged", g.dir("aged"), agedAt, file("aged", strict, "stop", 0.001))
	filled()
	<-full
	g.bill("saturated", "much later", longAgo.Add(24*time.Hour))
	s.wait(t, "all pipelines work again", func() (bool, error) {
		n, err := s.query(`sum by (pipeline) (streamd_pipeline_state{state="running"}) == 1`)
		return len(n) == len(names)+1, err
	})
	s.noneFires(t)
	t.Logf("over after %v", time.Since(began).Round(100*time.Millisecond))
}

// orders starts a PostgreSQL with a table of orders, one of them written.
func orders(t *testing.T) (*sql.DB, *dbenv.Server) {
	t.Helper()
	server, err := dbenv.PostgreSQL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, statement := range []string{"CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)", "INSERT INTO orders SELECT FROM generate_series(1, 10)"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return db, server
}

// restart kills a process as soon as its start was scraped, and starts it again, until ctx ends. The last one runs.
func (g *rig) restart(ctx context.Context, s server, c *exec.Cmd, address string) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		before := s.started("looping")
		_ = c.Process.Kill()
		_ = c.Wait()
		c = g.start("looping", g.dir("looping"), address, filepath.Join(g.dirs, "looping.yaml"))
		for ctx.Err() == nil && s.started("looping") <= before {
			<-tick.C
		}
	}
}

// started is when a pipeline was started, as Prometheus knows it; 0: it does not.
func (s server) started(pipeline string) float64 {
	values, _ := s.query(fmt.Sprintf(`max_over_time(streamd_pipeline_start_timestamp_seconds{pipeline=%q}[1m])`, pipeline))
	latest := 0.0
	for _, v := range values {
		latest = max(latest, v)
	}
	return latest
}

// longAgo is the time of records that are to move event time: what lies in the future moves nothing.
var longAgo = time.Now().Add(-365 * 24 * time.Hour)

// past sends records from long ago, some time after one another, until ctx ends; while late is set a copy of each, three quarters
// of the retention after it.
func (g *rig) past(ctx context.Context, topic string, step time.Duration, late *atomic.Bool) {
	tick := time.NewTicker(100 * time.Millisecond) // a copy is to come in a later transaction: in the same one it has no age
	defer tick.Stop()
	for at := longAgo; ctx.Err() == nil; at = at.Add(step) {
		id := fmt.Sprint("old-", at.UnixMilli())
		g.bill(topic, id, at)
		<-tick.C
		if late.Load() {
			g.bill(topic, id, at.Add(45*time.Minute))
		}
	}
}

// bill sends a record whose time is its own.
func (g *rig) bill(topic, id string, at time.Time) {
	r := &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, `{"id":%q}`, id), Timestamp: at}
	g.client.Produce(g.t.Context(), r, func(_ *kgo.Record, err error) {
		if err != nil && g.t.Context().Err() == nil {
			g.t.Errorf("sending to %s: %v", topic, err)
		}
	})
}
