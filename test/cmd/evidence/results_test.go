package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const log = `=== RUN   TestSeeds
PLANTED layer=L1 seeds=3 limit=500 bug="restore to the LSO" error="C1: bill \"b1\" | lost"
    sim_test.go:88: 100000 seeds, 0 red, 5 steps in 3m (500 seeds/s)
        1234 hits of something
    sim_test.go:90: not a figure
--- PASS: TestSeeds (180.00s)
`

// The file says what stands in the logs, and nothing of the rest of it changes.
func TestTheFileSaysWhatTheLogsSay(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, h header, end string) {
		var b strings.Builder
		if err := h.write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()+log+end), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := header{Layer: "L1", What: "simulation", Command: "go test ./test/sim", Commit: "abc", Date: time.Unix(0, 0).UTC(), Cores: 2, Go: "go1"}
	put("01.log", h, "\nRESULT green 3m0s\n")
	rs, err := readLogs(dir)
	if err != nil || rs.red() {
		t.Fatal(rs, err)
	}
	file := filepath.Join(dir, "evidence.md")
	if err := os.WriteFile(file, []byte("# head\n"+blockBegin+"\nold\n"+blockEnd+"\ntail\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // again: the same file
		if err := write(file, rs); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{
		"# head\n", "\ntail\n", "| L1 | simulation | green | 100000 seeds, 0 red, 5 steps in 3m (500 seeds/s)<br>1 tests passed | 3m0s | `abc` | 1970-01-01 00:00 |",
		"| L1 | restore to the LSO | 3 | 500 | C1: bill \"b1\" \\| lost |", "`go test ./test/sim` (2 cores, go1)",
		"one after the other: 3m0s.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	// Where there are no logs of a layer, what was said of it stays, in the order of the layers.
	other := h
	other.Layer, other.What, other.Commit = "planted L1", "planted bugs", "def"
	put("01.log", other, "\nRESULT green 5m0s\n")
	if rs, err = readLogs(dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := write(file, rs); err != nil {
			t.Fatal(err)
		}
	}
	if data, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 3m0s | `abc` | 1970-01-01 00:00 |\n| planted L1 | planted bugs | green |", "one after the other: 3m0s.",
		"- L1: `go test ./test/sim` (2 cores, go1)\n- planted L1: `go test", "|---|---|---|---|---|\n| L1 | restore to the LSO | 3 | 500 | C1: bill \"b1\" \\| lost |\n\n",
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %q in\n%s", want, data)
		}
	}
	if strings.Contains(text, "old") || strings.Contains(text, "not a figure") {
		t.Error(text)
	}
	// A run that was cut off is red, and so is one that says so.
	put("02.log", h, "")
	if rs, err = readLogs(dir); err != nil || !rs.red() || rs[1].Result == "green" {
		t.Error(rs, err)
	}
	put("02.log", h, "\nRESULT RED 3m0s\n")
	if rs, err = readLogs(dir); err != nil || !rs.red() {
		t.Error(rs, err)
	}
}

func TestAFileWithoutAPlaceIsLeftAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "evidence.md")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(file, nil); err == nil {
		t.Error("written")
	}
	if err := run([]string{"--only", "L9", "--logs", t.TempDir()}, os.Stdout); err == nil {
		t.Error("a layer that does not exist was run")
	}
}
