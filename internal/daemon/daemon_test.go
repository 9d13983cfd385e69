package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

func TestExitCode(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("pipeline %q: %w", "p", &broker.Error{Op: "x", Kind: err}) }
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{&processor.RecordError{Err: errors.New("poison")}, 1},
		{ErrWarnings, 1},
		{Usagef("no such flag"), 2},
		{wrap(broker.ErrUnreachable), 75},
		{fmt.Errorf("x: %w", txlog.ErrLocked), 75},
		{fmt.Errorf("x: %w", txlog.ErrDiskFull), 75},
		{fmt.Errorf("x: %w", ErrInUse), 75},
		{wrap(broker.ErrAuthentication), 77},
		{wrap(broker.ErrAuthorization), 77},
		// What makes the broker unreachable is what to mend.
		{&broker.Error{Op: "connect", Kind: broker.ErrUnreachable, Cause: broker.ErrAuthentication}, 77},
		{wrap(broker.ErrConfig), 78},
		{wrap(broker.ErrUnsupported), 78},
		{fmt.Errorf("x: %w", processor.ErrTopics), 78},
		{fmt.Errorf("x: %w", processor.ErrOffsets), 78},
		{fmt.Errorf("x: %w", txlog.ErrOtherApp), 78},
		{fmt.Errorf("x: %w", txlog.ErrOtherCluster), 78},
		{fmt.Errorf("x: %w", txlog.ErrNewerFormat), 78},
		{fmt.Errorf("x: %w", txlog.ErrKey), 78},
		{errors.Join(nil, &pipeline.Error{}), 78},
		{ErrInvalid, 78},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, 78},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestTextLog(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, LogConfig{Level: "info", Format: LogText})
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("not shown")
	log.Info("running", "tasks", 3, "page", "http://localhost:8080")
	log.With("pipeline", "p").WithGroup("g").Warn("a message that is longer than the column", "err", errors.New("no \"x\"\nsecond line"), "took", 412*time.Millisecond)
	log.Error("evil\nmessage", slog.Group("at", "topic", "t", "offset", 7), slog.Attr{}, "list", []string{"a", "b"})
	want := `INFO  running                 tasks=3 page=http://localhost:8080
WARN  a message that is longer than the column pipeline=p g.err="no \"x\"\nsecond line" g.took=412ms
ERROR "evil\nmessage"         at.topic=t at.offset=7 list=a,b
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
	out.Reset()
	if log, err = NewLogger(&out, LogConfig{Level: "info", Format: LogAuto}); err != nil {
		t.Fatal(err)
	}
	log.Info("running")
	if !strings.HasPrefix(out.String(), `{"time":`) {
		t.Errorf("not a terminal, but %s", &out)
	}
	for _, c := range []LogConfig{{Level: "loud", Format: LogText}, {Level: "info", Format: "xml"}} {
		if _, err := NewLogger(&out, c); ExitCode(err) != ExitUsage {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// A password from an environment file must not reach an error.
func TestEnvironmentFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "env")
	write(t, path, "# comment\n\nA=1\nexport B=\"two words\"\nC='x=y'\nD=\n E = 5 \n")
	o, err := LoadConfig{EnvFiles: []string{path}, Variables: []string{"A=given", "F=a=b"}}.options()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"A": "given", "B": "two words", "C": "x=y", "D": "", "E": "5", "F": "a=b"} {
		if got, ok := o.LookupEnv(name); !ok || got != want {
			t.Errorf("%s = %q %v, want %q", name, got, ok, want)
		}
	}
	t.Setenv("B", "of the environment")
	if got, _ := o.LookupEnv("B"); got != "of the environment" {
		t.Errorf("B = %q: the environment comes before the file", got)
	}
	write(t, path, "A=1\nhunter2\n")
	_, err = LoadConfig{EnvFiles: []string{path}}.options()
	if err == nil || !strings.Contains(err.Error(), "env:2:") || strings.Contains(err.Error(), "hunter2") || ExitCode(err) != ExitConfig {
		t.Errorf("bad line: %v", err)
	}
	if _, err := (LoadConfig{Variables: []string{"novalue"}}).options(); ExitCode(err) != ExitUsage {
		t.Errorf("bad variable: %v", err)
	}
	if _, err := (LoadConfig{EnvFiles: []string{"/no/such"}}).options(); ExitCode(err) != ExitConfig {
		t.Errorf("no file: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFind(t *testing.T) {
	t.Chdir(t.TempDir())
	for path, text := range map[string]string{
		"a.yaml": "steps:\n", "b.yml": "version: 1\nsources: {}\n", "other.yaml": "kind: Pod\n", "notes.txt": "steps:\n",
		"sub/c.yaml": "steps:\n", ".hidden/d.yaml": "steps:\n", "sub/testdata/e.yaml": "steps:\n", "_old/f.yaml": "steps:\n", "empty/x.txt": "",
	} {
		write(t, path, text)
	}
	for _, c := range []struct {
		args, want []string
		code       int
	}{
		{[]string{"other.yaml"}, []string{"other.yaml"}, 0}, // what is named is taken
		{[]string{"."}, []string{"a.yaml", "b.yml"}, 0},
		{[]string{"./..."}, []string{"a.yaml", "b.yml", "sub/c.yaml"}, 0},
		{[]string{"...", "sub", "a.yaml"}, []string{"a.yaml", "b.yml", "sub/c.yaml"}, 0},
		{[]string{"empty"}, nil, ExitConfig},
		{[]string{"nope.yaml"}, nil, ExitConfig},
		{[]string{"a.yaml/..."}, nil, ExitUsage},
	} {
		got, err := Find(c.args)
		if ExitCode(err) != c.code || !slices.Equal(got, c.want) {
			t.Errorf("%v: %v %v, want %v and code %d", c.args, got, err, c.want, c.code)
		}
	}
}

func TestReportFormats(t *testing.T) {
	d := pipeline.Diagnostic{File: "a,b.yaml", Line: 3, Column: 5, Severity: pipeline.SeverityError, Rule: "unknown-field", Message: "100% wrong\nreally", Hints: []string{"mend it"}}
	w := pipeline.Diagnostic{File: "a,b.yaml", Severity: pipeline.SeverityWarning, Rule: "dedup-scope", Message: "careful"}
	r := Report{Errors: 1, Warnings: 1, Files: []FileReport{{File: "a,b.yaml", Diagnostics: []pipeline.Diagnostic{d, w}, Lines: []diagnosticJSON{{"error", d}, {"warning", w}}}}}
	for format, want := range map[string]string{
		"github": "::error file=a%2Cb.yaml,line=3,col=5,title=unknown-field::100%25 wrong%0Areally%0Amend it\n::warning file=a%2Cb.yaml,line=1,col=1,title=dedup-scope::careful\n",
		"text":   "a,b.yaml: 1 error, 1 warning\n",
		"json":   `"severity": "error"`,
	} {
		var out bytes.Buffer
		if err := r.Write(&out, format); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", format, err, &out)
		}
	}
	if err := r.Write(&bytes.Buffer{}, "xml"); ExitCode(err) != ExitUsage {
		t.Errorf("xml: %v", err)
	}
	if ExitCode(r.Err(false)) != ExitConfig || ExitCode(Report{Warnings: 1}.Err(true)) != ExitFailed || (Report{Warnings: 1}).Err(false) != nil {
		t.Error("exit codes of reports")
	}
}

func TestDraw(t *testing.T) {
	b := topology.New("app")
	type rec = record.Record[string, string]
	in := topology.From(b, "in", serde.String(), serde.String(), topology.Name("source"))
	unique := topology.Dedup(in, "unique", topology.Retention(time.Hour), topology.ID(func(r rec) record.ID { return record.StringID(r.Value) }))
	keyed := topology.KeyBy(unique, "by", serde.String(), func(r rec) (string, error) { return r.Value, nil })
	topology.To(keyed, "out", serde.String(), serde.String())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		format   string
		internal bool
		want     []string
		not      []string
	}{
		{"text", false, []string{"Sub-topology: 1", "Source: source (topics: [in])", "--> unique"}, nil},
		{"json", false, []string{`"subtopology": 1`, `"name": "app-by-repartition"`}, nil},
		{"mermaid", false, []string{"flowchart LR", `subgraph s1 ["Sub-topology 1"]`, `[["in"]]`, `("unique (dedup)")`}, []string{"app-by-repartition\"]]", "unique-ids"}},
		{"mermaid", true, []string{`[["app-by-repartition"]]`, `[("unique-ids")]`}, nil},
		{"dot", true, []string{"digraph topology {", `label="unique (dedup)", shape=box`, `shape=cylinder`, "subgraph cluster_s0"}, nil},
	} {
		got, err := Draw(topo, c.format, c.internal)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s has no %s:\n%s", c.format, w, got)
			}
		}
		for _, w := range c.not {
			if strings.Contains(got, w) {
				t.Errorf("%s has %s:\n%s", c.format, w, got)
			}
		}
	}
	// Without the repartition topic the two sub-topologies still hang together.
	g := withoutInternal(topo.Graph())
	reached := map[string]bool{"topic:in": true}
	for range g.Edges {
		for _, e := range g.Edges {
			reached[e.To] = reached[e.To] || reached[e.From]
		}
	}
	if !reached["topic:out"] {
		t.Errorf("no way from in to out: %v", g.Edges)
	}
	if _, err := Draw(topo, "png", false); ExitCode(err) != ExitUsage {
		t.Errorf("png: %v", err)
	}
	if got := mermaidText(`a"b#c`) + dotText(`a"b\c`); got != `"a#quot;b#35;c""a\"b\\c"` {
		t.Errorf("quoted: %s", got)
	}
}

func TestWriteStatus(t *testing.T) {
	now := time.Unix(1000, 0)
	var out bytes.Buffer
	list := []web.Summary{
		{Name: "bills", State: processor.Running, Ready: true, Tasks: 3, TasksRunning: 3, Lag: 7, LastCommit: now.Add(-1500 * time.Millisecond)},
		{Name: "b", State: processor.Restoring, Reason: "waits", Tasks: 2, Sources: []ingress.Status{
			{Name: "logs", Kind: ingress.KindFiles, Where: "/l/*", Records: 12345, Waits: "a\x1b[2J right", LastError: "no", LastErrorAt: now.Add(-time.Hour), Files: &ingress.FilesStatus{Known: 7, Behind: 17}},
		}},
	}
	if err := WriteStatus(&out, list, now); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"bills      running     3/3     7", "1.5s ago", "b          restoring   0/2", "b: waits", "\nb: source logs (files /l/*): 12345 records, refused: 0; 7 files, 17 B behind; waits for a [2J right; last error 1h ago: no\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if err := NotReady(list); err == nil || err.Error() != "not ready: b is restoring" {
		t.Error(err)
	}
	if err := NotReady(list[:1]); err != nil {
		t.Error(err)
	}
}

func TestReachableAddress(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatalf("this machine has no name: %v; give it one with: hostname NAME", err)
	}
	for in, want := range map[string]string{Off: "", ":8080": host + ":8080", "0.0.0.0:80": host + ":80", "[::]:80": host + ":80", "10.0.0.1:80": "10.0.0.1:80", "x:80": "x:80", "nonsense": "", "127.0.0.1:0": ""} {
		if got := reachable(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
