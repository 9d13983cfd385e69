//go:build planted

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// change replaces one piece of a source file. The piece must stand there exactly once: a planted bug
// that no longer fits its place fails, it is not passed over.
type change struct{ file, old, new string }

// bug is a mistake that somebody could make, planted by an overlay of the source when the simulation is
// compiled: the shipped code holds no switch for it.
type bug struct {
	name    string
	changes []change
}

// plantedSeeds is within how many seeds each bug must be found.
const plantedSeeds = "500"

func bugs() []bug {
	const (
		commit  = "processor/commit.go"
		worker  = "processor/worker.go"
		restore = "processor/restore.go"
		task    = "processor/task.go"
	)
	return []bug{
		{"restore to the last stable offset", []change{{restore, "rs.ends, err = w.cluster.HighWatermarks(ctx, tps)", "rs.ends, err = w.cluster.StableOffsets(ctx, tps)"}}},
		{"no RequireStable", []change{{"internal/simbroker/client.go", "if c.b.offsets.unstable(k) {", "if false && c.b.offsets.unstable(k) {"}}},
		{"commit by group only, without generation", []change{{"internal/simbroker/group.go", "if code := b.groups[meta.Group].check(meta); code != None {", "if code := b.groups[meta.Group].check(meta); code != None && false {"}}},
		// As if the group's present generation were asked for when the offsets are committed.
		{"generation of the newest session", []change{{"internal/simbroker/producer.go", "\t\t\treturn p.c.b.commitOffsets(id, pid, epoch, meta, offsets)\n", "\t\t\tmeta = p.c.b.groups[meta.Group].meta(meta.Instance)\n\t\t\treturn p.c.b.commitOffsets(id, pid, epoch, meta, offsets)\n"}}},
		{"applied before the commit", []change{
			{commit, "\tw.point(\"commit.prepared\")\n", "\tfor _, p := range parts {\n\t\tif p.txn.Batch != nil {\n\t\t\tp.txn.Batch.Position.Changelogs = p.run.changelogs\n\t\t\tif err := w.applyBatch(ctx, p.run, p.txn.Batch); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t}\n\tw.point(\"commit.prepared\")\n"},
			{commit, "\t\t\tif err := w.applyBatch(ctx, p.run, p.txn.Batch); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t\tw.point(\"commit.applied\")", "\t\t}\n\t\tw.point(\"commit.applied\")"},
		}},
		{"applied on an unknown outcome", []change{{commit, "if outcome != broker.Committed {\n\t\treturn w.commitFailed", "if outcome == broker.NotCommitted {\n\t\treturn w.commitFailed"}}},
		{"run again from memory after an unknown outcome", []change{{commit, "if outcome == broker.Unknown || react(err) != reactReplay", "if react(err) != reactReplay"}}},
		{"no new epoch after a doubt", []change{{"internal/simbroker/producer.go", "\tp.ready = false\n\tid := p.conf.TransactionalID\n", "\tp.ready = false\n\tid := p.conf.TransactionalID\n\tif p.pid >= 0 {\n\t\tp.c.request(ctx, EndTxn, id, func() Code { return p.c.b.endTxn(id, p.pid, p.epoch, false) })\n\t\tp.ready = true\n\t\treturn nil\n\t}\n"}}},
		{"IDs in a second transaction", []change{
			{commit, "\t\t\tw.producer.Add(p.txn.Changelog[i])\n", "\t\t\tif p.txn.Changelog[i].Topic != p.run.plan.idLog.Name {\n\t\t\t\tw.producer.Add(p.txn.Changelog[i])\n\t\t\t}\n"},
			{commit, "\tw.point(\"commit.acked\")\n", "\tfor _, p := range parts {\n\t\tfor i := range p.txn.Changelog {\n\t\t\tif p.txn.Changelog[i].Topic == p.run.plan.idLog.Name {\n\t\t\t\tw.producer.Add(p.txn.Changelog[i])\n\t\t\t}\n\t\t}\n\t}\n\tif n, _ := w.producer.Buffered(); n > 0 {\n\t\tsecond, outcome, err := w.producer.Commit(ctx, broker.GroupMeta{}, nil)\n\t\tif outcome != broker.Committed {\n\t\t\treturn w.commitFailed(ctx, outcome, err)\n\t\t}\n\t\tfor tp, next := range second.Next {\n\t\t\treceipt.Next[tp] = next\n\t\t}\n\t}\n\tw.point(\"commit.acked\")\n"},
		}},
		{"no set of pending IDs", []change{{"dedup/index.go", "if pos := ix.pending.find(k); pos >= 0 {\n\t\treturn ix.found(ix.pending.entry(pos), payload, Answer{Verdict: DuplicatePending", "if pos := ix.pending.find(k); false {\n\t\treturn ix.found(ix.pending.entry(pos), payload, Answer{Verdict: DuplicatePending"}}},
		{"no check of delete.retention", []change{{"changelog/keep.go", "age >= limit {", "age >= limit && false {"}}},
		{"the target written as the position", []change{{restore, "\t\tw.point(\"restore.batch\")\n", "\t\tfor i := range step.Position.Changelogs {\n\t\t\tstep.Position.Changelogs[i].Next = r.restore.ends[step.Position.Changelogs[i].TopicPartition]\n\t\t}\n\t\tw.point(\"restore.batch\")\n"}}},
		{"the overlay survives an abort", []change{{task, "\tfor _, s := range t.stores {\n\t\ts.abort()\n\t}\n", ""}}},
		// Found by seed 352 on the day that the points to die at were added.
		{"a full disk makes a task run that is not restored", []change{{commit, "if r.state != was {", "if false {"}}},
		{"the commit record does not come last", []change{{task, "\tto(t.cfg.idLog, k, v) // the last record of the task's transaction\n", "\tto(t.cfg.idLog, k, v)\n\tlast := len(txn.Changelog) - 1\n\ttxn.Changelog = append([]broker.Output{txn.Changelog[last]}, txn.Changelog[:last]...)\n"}}},
	}
}

var seedsToRed = regexp.MustCompile(`red after (\d+) seeds`)

// Each planted bug must be found within 500 seeds; how many it takes is the sensitivity of the simulation.
func TestPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bugs() {
		t.Run(b.name, func(t *testing.T) {
			bin := compile(t, root, b)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, bin, "-test.run=^TestSeeds$", "-seeds="+plantedSeeds, "-until-red")
			cmd.Dir = filepath.Join(root, "test", "sim")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			m := seedsToRed.FindStringSubmatch(string(out))
			if !errors.As(err, &exit) || m == nil {
				t.Fatalf("not found within %s seeds (%v):\n%s", plantedSeeds, err, tail(string(out), 20))
			}
			t.Logf("found after %s seeds: %s", m[1], firstError(string(out)))
		})
	}
}

// compile builds the test binary with the bug in it.
func compile(t *testing.T, root string, b bug) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{}
	for _, c := range b.changes {
		path := filepath.Join(root, c.file)
		from := path
		if files[path] != "" {
			from = files[path]
		}
		src, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(src), c.old); n != 1 {
			t.Fatalf("%s: the place for %q is there %d times: the planted bug must follow the code\n%s", c.file, b.name, n, c.old)
		}
		changed := filepath.Join(dir, strings.ReplaceAll(c.file, "/", "_"))
		if err := os.WriteFile(changed, []byte(strings.Replace(string(src), c.old, c.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		files[path] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "sim.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", list, "-c", "-o", bin, "./test/sim")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	return bin
}

// firstError is the first line of a red seed's report that says what was wrong.
func firstError(out string) string {
	lines := strings.Split(out, "\n")
	for i, l := range lines {
		if strings.Contains(l, "replay with") && i+1 < len(lines) {
			return strings.TrimSpace(lines[i+1])
		}
	}
	return ""
}

func tail(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
