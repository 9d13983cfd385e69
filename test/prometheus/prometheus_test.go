//go:build prometheus

package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Where the rules are.
const (
	rules     = "../../deploy/prometheus"
	rulesName = "streamd.rules.yaml"
)

// program finds one of Prometheus' programs, or says how to get it.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("no %s on the PATH: `make tools` installs Prometheus from Debian's package", name)
	}
	return path
}

func TestRules(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", rulesName},
		{"test", "rules", "streamd.rules_test.yaml"},
	} {
		c := exec.CommandContext(t.Context(), promtool, args...)
		c.Dir = rules
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// server is a running Prometheus.
type server struct{ address string }

// background starts a program and ends it with the test. What it wrote is shown if the test fails.
func background(t *testing.T, c *exec.Cmd) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(c.Path)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait() // the demo's own verdict is another test's matter
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s:\n%s", c.Path, text[max(0, len(text)-4000):])
		}
	})
}

// freePort returns a port of 127.0.0.1 that nobody listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// start starts a Prometheus that scrapes the targets and evaluates the file of rules.
func start(t *testing.T, rules string, targets ...string) server {
	t.Helper()
	rules, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 250ms}\n"+
		"rule_files: [%q]\nscrape_configs:\n- job_name: streamd\n  static_configs: [{targets: %s}]\n",
		rules, list)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := server{"127.0.0.1:" + freePort(t)}
	background(t, exec.CommandContext(t.Context(), program(t, "prometheus"), "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+s.address, "--log.level=warn"))
	s.wait(t, "Prometheus answers", func() (bool, error) {
		return s.get("/-/ready", url.Values{}, nil) == nil, nil
	})
	return s
}

// get reads one answer of the HTTP API; data may be nil.
func (s server) get(path string, q url.Values, data any) error {
	r, err := http.Get("http://" + s.address + path + "?" + q.Encode())
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, r.Status, text)
	}
	if data == nil {
		return nil
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// query returns the values of an expression, by the labels' text.
func (s server) query(expr string) (map[string]float64, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := s.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	values := map[string]float64{}
	for _, r := range data.Result {
		text, ok := r.Value[1].(string)
		if !ok {
			return nil, fmt.Errorf("%s: value %v", expr, r.Value[1])
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expr, err)
		}
		values[fmt.Sprint(r.Metric)] = v
	}
	return values, nil
}

// wait polls until the condition holds.
func (s server) wait(t *testing.T, what string, cond func() (bool, error)) {
	t.Helper()
	waitFor(t, 90*time.Second, what, cond)
}

// waitFor is wait with another patience.
func waitFor(t *testing.T, patience time.Duration, what string, cond func() (bool, error)) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ok, err := cond()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v until %s: %v", patience, what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// What holds at every scrape, also of a worker that was killed with kill -9 between two of them. Each
// expression has a result only where it is broken.
var never = []string{
	`sum by (operator) (streamd_operator_records_in_total{operator="unique"}) != sum by (operator) (streamd_dedup_checked_records_total) + sum by (operator) (streamd_dedup_missing_ids_total)`,
	`sum(streamd_dedup_checked_records_total) != sum(streamd_dedup_duplicates_total) + sum(streamd_operator_records_out_total{operator="unique"})`,
	`sum(streamd_dedup_bloom_lookups_total) > sum(streamd_dedup_checked_records_total) - sum(streamd_dedup_duplicates_total{seen="open_transaction"})`,
	`sum(streamd_consumed_records_total{topic=~".*raw"}) != sum(streamd_operator_records_in_total{operator="unique"})`,
	// The counters of records survive the kill. A scrape while tasks are being restored may lack theirs, but not for long.
	`max_over_time(streamd_dedup_duplicates_total[5m]) > streamd_dedup_duplicates_total`,
	`max_over_time(streamd_consumed_records_total[5m]) > streamd_consumed_records_total`,
	`count by (pipeline) (streamd_pipeline_state == 1) != 1`,
	`scrape_samples_scraped > 2000`,
}

// A comparison with a series that is not there has no result either: these are there.
var always = []string{
	`sum(streamd_operator_records_in_total{operator="unique"}) > 0`,
	`sum(streamd_operator_records_out_total{operator="unique"}) > 0`,
	`sum(streamd_consumed_records_total{topic=~".*raw"}) > 0`,
	`sum(streamd_dedup_duplicates_total) > 0`,
	`count(streamd_dedup_missing_ids_total) > 0`,
	`count(streamd_dedup_bloom_lookups_total) > 0`,
	`count(streamd_pipeline_state) > 1`,
}

func TestScrapeOfAWorkerThatIsKilled(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "streamd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/streamd").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	target := "127.0.0.1:" + freePort(t)
	background(t, exec.CommandContext(t.Context(), binary, "demo", "--http", target, "--no-progress"))
	s := start(t, filepath.Join(rules, rulesName), target)

	// The demo kills its worker after a few seconds: the new process has a later start.
	s.wait(t, "the worker was killed and works again", func() (bool, error) {
		starts, err := s.query(`changes(streamd_pipeline_start_timestamp_seconds[5m]) > 0 and sum by (pipeline, instance, job) (streamd_dedup_duplicates_total) > 50`)
		return len(starts) == 1, err
	})
	for range 12 {
		for _, expr := range never {
			broken, err := s.query(expr)
			if err != nil {
				t.Fatal(err)
			}
			if len(broken) > 0 {
				t.Errorf("%s: %v", expr, broken)
			}
		}
		time.Sleep(500 * time.Millisecond) // the next scrape
	}

	for _, expr := range always {
		if there, err := s.query(expr); err != nil || len(there) != 1 {
			t.Errorf("%s: %v, %v", expr, there, err)
		}
	}

	var targets struct {
		ActiveTargets []struct{ Health, LastError string }
	}
	if err := s.get("/api/v1/targets", url.Values{"state": {"active"}}, &targets); err != nil {
		t.Fatal(err)
	}
	if len(targets.ActiveTargets) != 1 || targets.ActiveTargets[0].Health != "up" {
		t.Errorf("targets: %+v", targets)
	}
	var groups struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	if err := s.get("/api/v1/rules", nil, &groups); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			seen++
			if r.Health != "ok" || r.State == "firing" {
				t.Errorf("rule %s: health %s, state %q, %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d rules", seen)
	}
}
