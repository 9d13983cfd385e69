package daemon

import (
	"bytes"
	"context"
	"math"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/processor"
)

// topOf is what a process with one task that restores says.
func topOf() Top {
	at := time.Unix(1000, 0)
	st := processor.Status{
		Pipeline: "bills-dedup", State: processor.Restoring, Reason: "1 task restores",
		Tasks: []processor.TaskStatus{
			{Name: "bills/0", State: processor.TaskRunning, StreamTime: at.Add(-800 * time.Millisecond), Inputs: []processor.InputStatus{{Topic: "bills.raw", Lag: 402}}},
			{Name: "bills/1", State: processor.TaskRunning, Inputs: []processor.InputStatus{{Topic: "bills.raw", Partition: 1, Lag: 1611}}},
			{Name: "bills/2", State: processor.TaskRestoring, Remaining: 611_000, Inputs: []processor.InputStatus{{Topic: "bills.raw", Partition: 2}}},
		},
		Operators: []processor.OperatorStatus{
			{Name: "unique", Kind: "dedup", Counters: map[string]uint64{"dedup/checked": 812_334, "dedup/dup_committed": 1200, "dedup/dup_open": 3, "dedup/conflict": 2}, Dedup: &processor.DedupStatus{IDs: 41_200_000, Retention: 7 * 24 * time.Hour, Oldest: at.Add(-100 * time.Hour), BloomFill: .31, FalsePositiveRate: 1. / 2100}},
			{Name: "publish", Kind: "to", Counters: map[string]uint64{"errors/encode/dead_letter": 4}},
		},
		Errors: []processor.RecordErrorStatus{{Time: at.Add(-time.Minute), Operator: "publish", Stage: "encode", Action: "dead_letter", Position: "bills.raw/1@7", Error: "bad \x1b[31mvalue\n"}},
	}
	st.Instances = &processor.InstancesStatus{AsOf: at.Add(-4 * time.Second), List: []processor.InstanceStatus{
		{Instance: "streamd-0", Here: true, Address: "h0:80", Tasks: []string{"bills/0", "bills/1", "bills/2"}}, {Instance: "streamd-1", Address: "h1:80\x1b[2J"}, {},
	}}
	st.Operators[0].Dedup.Last = []processor.DuplicateStatus{
		{Time: at.Add(-time.Hour), Position: "bills.raw/1@91002", Timestamp: at, FirstSeen: at.Add(-178 * time.Minute), Seen: "committed", ID: "4f1a0b22"},
		{Time: at.Add(-time.Second), Position: "bills.raw/0@7\x1b[2J", Timestamp: at, FirstSeen: at, Seen: "open_transaction", ID: "00ff00ff"},
	}
	st.Operators[1].Effect = &processor.EffectStatus{Waiting: 7, Uncertain: 2}
	st.Globals = []processor.GlobalStatus{
		{Name: "rates", State: processor.GlobalStale, Reason: "no\x1b[2J leader", Rows: 12_345, AsOf: at.Add(-5 * time.Minute), Lag: 17},
		{Name: "names", State: processor.GlobalReading, Remaining: 611_000},
	}
	nan := web.Number(math.NaN())
	sum := web.Summarize("bills-dedup", st)
	sum.Sources = []ingress.Status{
		{Name: "posted", Kind: ingress.KindHTTP, Where: "http://h:1/\x1b[2J", Records: 12_345, Refused: map[string]uint64{"busy": 2}, Waits: "Kafka: no\x1b[2J leader", HTTP: &ingress.SenderStatus{Open: 3}},
		{Name: "logs", Kind: ingress.KindFiles, Where: "/l/*", LastError: "no right", LastErrorAt: at.Add(-5 * time.Minute), Files: &ingress.FilesStatus{Known: 7, Behind: 17}},
	}
	return Top{Summary: sum, Status: st, Live: web.Live{
		In: 48_100, Duplicates: .0015, LatencyP99: .16, CommitP99: nan,
		Operators: map[string]web.Rates{"unique": {In: 48_100, Out: 48_029, Duplicates: 71, Checked: 48_100}, "publish": {In: 48_029, Out: 48_029}},
		Restores:  map[string]web.Progress{"bills/2": {Done: .61, Left: 12}},
	}}
}

func screenOf(v TopView, tops ...Top) string {
	return strings.Join(RenderTop(tops, v, time.Unix(1000, 0)), "\n")
}

func TestRenderTop(t *testing.T) {
	for name, c := range map[string]struct {
		view TopView
		want []string
		not  []string
	}{
		"default": {
			TopView{Sort: SortName},
			[]string{
				" bills-dedup   restoring   2/3 tasks   lag 2 013 (max 1 611, bills.raw/1)   in 48.1k/s   dup 0.15%   latency p99 160ms   commit p99 –", "1 task restores",
				" unique   dedup  48.1k  48.0k     71 dup       0  41.2M IDs, bloom 31% full, false 1 in 2.1k, oldest 4d 4h of 7d",
				"bills/2  restoring      -            -  ######.... 61%  611k left  eta 12s", "bills/0  running      402    800ms ago  bills.raw/0", "q quit",
			},
			[]string{"\x1b", "PAUSED"},
		},
		"once":   {TopView{Once: true}, []string{"bills/0"}, []string{"q quit", "filter"}},
		"by lag": {TopView{Sort: SortLag}, []string{"bills/1  running"}, nil},
		"duplicates": {TopView{Detail: TopDuplicates}, []string{
			"812 334       1 203", "0.15%",
			" 1.0s  unique  bills.raw/0@7 [2J                –  same transaction  00ff00ff\n   1h  unique  bills.raw/1@91002           2h 58m  committed         4f1a0b22",
		}, []string{"\x1b", "TASK"}},
		"no duplicates": {TopView{Detail: TopDuplicates, Filter: "publish"}, []string{"no duplicate since"}, []string{"4f1a0b22"}},
		"effects":       {TopView{}, []string{"4  7 calls wait, 0 run, 2 of them uncertain"}, nil},
		"global tables": {TopView{}, []string{
			" rates         stale    12 345         17  5m ago  no [2J leader\n", " names         reading       0  611k left       -",
		}, []string{"\x1b"}},

		"sources": {TopView{}, []string{
			" posted  http    12 345  2 busy   3 in flight", "Kafka: no [2J leader", "http://h:1/ [2J", " logs    files        0  0        7 files, 17 B behind", "5m ago: no right",
		}, []string{"\x1b"}},
		"errors":    {TopView{Detail: TopErrors}, []string{"1m  publish  encode  dead_letter  bills.raw/1@7  bad  [31mvalue"}, []string{"\x1b", "TASK"}},
		"no errors": {TopView{Detail: TopErrors, Filter: "unique"}, []string{"none since", "filter: unique"}, []string{"publish"}},
		"instances": {TopView{Detail: TopInstances}, []string{
			" streamd-0        this one       3  bills/0–2", " streamd-1        h1:80 [2J      0", " (without an ID)  none           0", "as of 4.0s ago",
		}, []string{"\x1b", "STREAM TIME", "not known"}},
		"filter":      {TopView{Filter: "bills/2"}, []string{"bills/2"}, []string{"bills/0", "unique "}},
		"typing":      {TopView{Filter: "bi", Typing: true}, []string{"/bi_"}, []string{"q quit"}},
		"paused":      {TopView{Paused: true}, []string{"PAUSED"}, nil},
		"colour":      {TopView{Color: true}, []string{"\x1b[33mrestoring\x1b[0m"}, nil},
		"out of many": {TopView{Selected: -1}, []string{"bills-dedup"}, nil},
	} {
		got := screenOf(c.view, topOf())
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", name, w, got)
			}
		}
		for _, w := range c.not {
			if strings.Contains(got, w) {
				t.Errorf("%s: %q in\n%s", name, w, got)
			}
		}
	}
	if got := screenOf(TopView{Sort: SortLag}, topOf()); strings.Index(got, "bills/1  ") > strings.Index(got, "bills/0  ") || strings.Index(got, "bills/2  ") > strings.Index(got, "bills/1  ") {
		t.Errorf("order:\n%s", got)
	}
	if got := screenOf(TopView{Sort: SortErrors}, topOf()); strings.Index(got, " publish") > strings.Index(got, " unique") {
		t.Errorf("order:\n%s", got)
	}
	if got := screenOf(TopView{}); got != "no pipeline" {
		t.Error(got)
	}
}

func TestTopFitsTheTerminal(t *testing.T) {
	big := topOf()
	for range 500 {
		big.Status.Tasks = append(big.Status.Tasks, big.Status.Tasks[0])
	}
	for _, size := range [][2]int{{80, 24}, {20, 5}, {1, 2}, {200, 1}} {
		lines := RenderTop([]Top{big, topOf()}, TopView{Width: size[0], Height: size[1], Color: true}, time.Unix(1000, 0))
		if size[1] > 1 && len(lines) > size[1] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if n := len([]rune(unpainted(l))); n > size[0] {
				t.Errorf("%v: %d wide: %q", size, n, l)
			}
			if strings.Contains(l, "\x1b[3") && !strings.Contains(l, "\x1b[0m") {
				t.Errorf("a cut line leaves its colour on: %q", l)
			}
		}
	}
}

// unpainted takes the colours out of a line.
func unpainted(l string) string {
	var b strings.Builder
	for i, part := range strings.Split(l, "\x1b[") {
		if i > 0 {
			_, part, _ = strings.Cut(part, "m")
		}
		b.WriteString(part)
	}
	return b.String()
}

func TestTopKeys(t *testing.T) {
	v := TopView{Sort: SortName}
	for _, k := range []byte("/ab\x7fcq\rssidp\r") {
		if v.Key(k) {
			t.Fatalf("%q ends it", k)
		}
	}
	want := TopView{Sort: SortLag, Filter: "acq", Detail: TopDuplicates, Paused: true, Selected: 1}
	if v != want {
		t.Errorf("%+v, want %+v", v, want)
	}
	for _, k := range []byte("de/x\x1bsse") {
		v.Key(k)
	}
	if v.Filter != "" || v.Typing || v.Sort != SortName || v.Detail != TopTasks {
		t.Errorf("%+v", v)
	}
	if !v.Key('q') || !v.Key(3) {
		t.Error("q and Ctrl-C do not end it")
	}
}

type topPipeline struct{ s processor.Status }

func (p topPipeline) Status() processor.Status { return p.s }

// lockedBuffer is a terminal that a test reads while top writes.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// From HTTP to the screen, with a process that goes away in between.
func TestRunTop(t *testing.T) {
	h, err := web.New(web.Config{Pipelines: []web.Entry{{Name: "bills/dedup", Pipeline: topPipeline{topOf().Status}}}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	c, err := NewClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	out := &lockedBuffer{}
	keys := make(keyboard)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- RunTop(ctx, c, TopConfig{Interval: time.Millisecond, Out: out, Keys: keys, View: TopView{Sort: SortName}})
	}()
	until := func(what string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), what); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never %q", what)
			}
		}
	}
	until("bills/dedup   restoring")
	keys <- 'd'
	until("CHECKED")
	server.Close()
	until("no streamd at")
	keys <- 'q'
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("q does not end it")
	}
	if !strings.HasSuffix(out.String(), mainAgain) {
		t.Error("the terminal is not given back")
	}
}

// keyboard hands out one byte at each read.
type keyboard chan byte

func (k keyboard) Read(p []byte) (int, error) {
	p[0] = <-k
	return 1, nil
}
