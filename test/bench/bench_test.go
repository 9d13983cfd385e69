package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	runLine = "run | w3 tuned commit.interval.ms=1000 | rec/s=28189 cpu_us=47.58 rss_mib=875 others_cores=0.05 | CORRECT inputs=1000000 outputs=949906 missing=0"
	latLine = "latency | w2 default | rate=1000 samples=30000 lost=0 p50=69.1 p99=150.0 max=200.5 ms app_cores=0.2"
)

func TestParseResult(t *testing.T) {
	for _, c := range []struct {
		line  string
		wrong bool
		want  map[string]float64
	}{
		{runLine, false, map[string]float64{"rec/s": 28189, "cpu_us": 47.58, "inputs": 1e6}},
		{strings.Replace(runLine, "CORRECT", "WRONG", 1), true, nil},
		{strings.Replace(runLine, "CORRECT ", "", 1), true, nil},
		{latLine, false, map[string]float64{"p50": 69.1, "p99": 150}},
		{strings.Replace(latLine, "lost=0", "lost=1", 1), true, nil},
		{"recovery | w3 exec | step=kill FAILED no 'first-record'", true, nil},
		{"recovery | w3 exec | step=kill first_output_s=0.52 restored=0", false, map[string]float64{"first_output_s": 0.52}},
		{"recovery-check | w3 exec | steps=kill state_mib=80.2 CORRECT inputs=5", false, map[string]float64{"state_mib": 80.2}},
		{"recovery-check | w3 exec | steps=kill state_mib=80.2 WRONG inputs=5", true, nil},
	} {
		r, ok := parseResult(c.line + "\n")
		if !ok || r.wrong != c.wrong {
			t.Errorf("%s: ok %v, wrong %v", c.line, ok, r.wrong)
		}
		for k, v := range c.want {
			if r.figures[k] != v {
				t.Errorf("%s: %s = %v, want %v", c.line, k, r.figures[k], v)
			}
		}
		if _, ok := r.figures["commit.interval.ms"]; ok {
			t.Error("a setting was taken for a figure")
		}
	}
	for _, line := range []string{"", "loaded 1000000 records in 6.00 s", "run | half a line", "other | a | b=1"} {
		if _, ok := parseResult(line); ok {
			t.Errorf("%q was taken for a result", line)
		}
	}
}

func of(system, figure string, values ...float64) series {
	s := series{system: system}
	for _, v := range values {
		s.results = append(s.results, result{figures: map[string]float64{figure: v}})
	}
	return s
}

func TestMedianAndBest(t *testing.T) {
	if v, ok := of("a", "x", 9, 1, 5).median("x"); !ok || v != 5 {
		t.Errorf("odd: %v, %v", v, ok)
	}
	if v, ok := of("a", "x", 9, 1, 5, 7).median("x"); !ok || v != 6 {
		t.Errorf("even: %v, %v", v, ok)
	}
	if _, ok := of("a", "x", 1).median("y"); ok {
		t.Error("a median of nothing")
	}
	all := []series{of("a", "x", 3), of("b", "x", 7), of("c", "y", 100)}
	if v, ok := best(all, "x", true); !ok || v != 7 {
		t.Errorf("highest: %v, %v", v, ok)
	}
	if v, ok := best(all, "x", false); !ok || v != 3 {
		t.Errorf("lowest: %v, %v", v, ok)
	}
}

// TestJournal: a later call sees the runs of an earlier one.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	for call := range 2 {
		j, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := j.count("T", "a"); n != call {
			t.Errorf("call %d finds %d runs", call, n)
		}
		r, _ := parseResult(runLine)
		if err := j.add("T", "a", []result{r}); err != nil {
			t.Fatal(err)
		}
		if v, ok := j.series("T", "a").median("cpu_us"); !ok || v != 47.58 {
			t.Errorf("call %d: %v, %v", call, v, ok)
		}
		if n := j.count("T", "b"); n != 0 {
			t.Errorf("%d runs of another system", n)
		}
	}
}

func TestTable(t *testing.T) {
	tab := table{
		title:   "T",
		rows:    []row{{"records/s", "x", true, "%.0f"}, {"absent", "z", false, "%.0f"}},
		streamd: of("s", "x", 800), plain: of("p", "x", 100), tuned: []series{of("t", "x", 100), of("u", "x", 200)},
	}
	var b bytes.Buffer
	if err := tab.write(&b); err != nil {
		t.Fatal(err)
	}
	want := "| records/s | 800 | 100 | 8.00x | 200 | 4.00x |\n"
	if !strings.HasSuffix(strings.TrimRight(b.String(), "\n")+"\n", want) || strings.Contains(b.String(), "absent") {
		t.Errorf("got\n%swant the last line\n%s", b.String(), want)
	}
}

// TestNoPeer: who runs it without the peer is told what it expects.
func TestNoPeer(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		_, err := preparePeer(t.Context(), dir, t.TempDir(), "", io.Discard)
		if !errors.Is(err, errNoPeer) || !strings.Contains(err.Error(), "PEER") {
			t.Errorf("%q: %v", dir, err)
		}
	}
}

// TestOwnCheck: our classes and our check are built into the peer, or it is refused: without the check each output of the
// join of streams would be wrong.
func TestOwnCheck(t *testing.T) {
	for _, c := range []struct {
		harness string
		ok      bool
	}{{"{\n" + verifyHead + "    rest\n", true}, {"{\n  private String verify(Other other) {\n", false}, {verifyHead + verifyHead, false}} {
		p := &peer{dir: t.TempDir()}
		classes := filepath.Join(p.dir, "src/main/java/bench")
		if err := os.MkdirAll(classes, 0o755); err != nil {
			t.Fatal(err)
		}
		harness := filepath.Join(classes, "Bench.java")
		if err := os.WriteFile(harness, []byte(c.harness), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := p.addOwn(); (err == nil) != c.ok || err != nil && !errors.Is(err, errNoPeer) {
			t.Errorf("%q: %v", c.harness, err)
		}
		if !c.ok {
			continue
		}
		if got, err := os.ReadFile(harness); err != nil || string(got) != "{\n"+verifyHead+verifyOwn+"    rest\n" {
			t.Errorf("the harness is %q, %v", got, err)
		}
		for _, class := range []string{"Operators.java", "StreamJoin.java"} {
			if _, err := os.Stat(filepath.Join(classes, class)); err != nil {
				t.Error(err)
			}
		}
	}
}
