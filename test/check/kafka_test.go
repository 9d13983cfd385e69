//go:build kafka

package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/soak"
	"github.com/streamd/streamd/test/kafkaenv"
)

// TestSoakOnKafka: the command that users run, on a real Kafka: kills, every check made and equal, and
// nothing left behind. Then the same data is looked at by the two other ways to do so.
func TestSoakOnKafka(t *testing.T) {
	length := 20 * time.Second
	if os.Getenv("STREAMD_SOAK") == "1" {
		length = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), length+4*time.Minute)
	defer cancel()
	kafka := kafkaenv.Start(t)
	brokers := strings.Join(kafka.Addresses(), ",")
	program := filepath.Join(t.TempDir(), "streamd")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "../../cmd/streamd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	temp := t.TempDir()
	run := func(name string, args ...string) (stdout []byte) {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "TMPDIR="+temp)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s %v: %v\n%s%s", name, args, err, &out, &errs)
		}
		return out.Bytes()
	}
	var r soak.Report
	out := run(program, "soak", "-b", brokers, "--for", length.String(), "--kill-every", "4s", "--rate", "2000", "--keep", "--json")
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if !r.OK || len(r.Results) != 10 || r.Kills == 0 {
		t.Fatalf("%s", out)
	}
	t.Logf("%d records (%.0f a second), %d bills, %d copies, %d late, %d of unknown outcome; %d kills, %d with the state lost; latency p50 %.0f ms, p99 %.0f ms",
		r.Sent, r.Rate, r.Distinct, r.Copies, r.Late, r.Unknown, r.Kills, r.Wiped, r.Latency.P50, r.Latency.P99)

	// What it kept: the pipeline file and a data directory for each worker.
	dirs, err := filepath.Glob(filepath.Join(temp, "streamd-soak-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatal(dirs, err)
	}
	file := filepath.Join(dirs[0], "pipeline.yaml")
	for _, w := range []string{"worker-0", "worker-1"} {
		t.Logf("%s", run(program, "verify", file, "--data-dir", filepath.Join(dirs[0], w)))
	}
	args := []string{
		"run", "../cmd/check", "--brokers", brokers, "--app", "streamd-soak", "--input", "streamd-soak-bills", "--output", "streamd-soak-unique",
		"--id-field", "bill_id", "--account-field", "account", "--region-field", "region", "--cents-field", "cents", "--window", "1h", "--dedup", "unique",
		"--totals", "streamd-soak-totals", "--total-min-field", "low", "--total-max-field", "high", "--within", "1m",
	}
	for _, w := range []string{"worker-0", "worker-1"} {
		args = append(args, "--state-dir", filepath.Join(dirs[0], w, "streamd-soak"))
	}
	t.Logf("%s", run("go", args...))
}
