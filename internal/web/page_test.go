package web

import (
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// counted is the status of tasks that have counted so much.
func counted(in, dup uint64, tasks ...string) processor.Status {
	s := processor.Status{Pipeline: "bills", State: processor.Running}
	for _, name := range tasks {
		s.Tasks = append(s.Tasks, processor.TaskStatus{Name: name, State: processor.TaskRunning, Sequence: 1})
	}
	s.Operators = []processor.OperatorStatus{
		{Name: "bills", Kind: "source", Counters: map[string]uint64{"in": in, "out": in}},
		{Name: "unique", Kind: "dedup", Counters: map[string]uint64{"in": in, "out": in - dup, "dedup/checked": in, "dedup/dup_open": dup}, Dedup: &processor.DedupStatus{Retention: time.Hour}},
	}
	return s
}

// graph is bills.raw -> bills -> unique -> out, with an ID log.
func graph() topology.Graph {
	op := func(name, kind string, sub int) topology.GraphNode {
		return topology.GraphNode{ID: "operator:" + name, Kind: topology.NodeOperator, Name: name, Operator: kind, Subtopology: sub}
	}
	return topology.Graph{
		Name: "bills",
		Nodes: []topology.GraphNode{
			{ID: "topic:bills.raw", Kind: topology.NodeTopic, Name: "bills.raw", Subtopology: -1},
			op("bills", "source", 0), op("unique", "dedup", 0),
			{ID: "store:unique-ids", Kind: topology.NodeStore, Name: "unique-ids", Subtopology: 0},
			{ID: "topic:again", Kind: topology.NodeTopic, Name: "again", Internal: true, Subtopology: -1},
			op("again", "source", 1),
		},
		Edges: []topology.GraphEdge{
			{From: "topic:bills.raw", To: "operator:bills", Case: -1},
			{From: "operator:bills", To: "operator:unique", Case: -1},
			{From: "operator:unique", To: "store:unique-ids", Case: -1},
			{From: "operator:unique", To: "topic:again", Case: -1},
			{From: "topic:again", To: "operator:again", Case: -1},
		},
	}
}

func TestRatesAreOfTheLastSeconds(t *testing.T) {
	s := newSeries(graph())
	at := time.Unix(1000, 0)
	for i := range 20 {
		s.add(at.Add(time.Duration(i)*2*time.Second), counted(uint64(1000*i), uint64(100*i), "a", "b"), nil)
	}
	v := s.view("")
	if v.live.In != 500 || v.live.Span != 10 || math.Abs(float64(v.live.Duplicates)-.1) > 1e-9 || v.live.Operators["unique"].Out != 450 {
		t.Errorf("%+v", v.live)
	}
	// Counters that come with a task are no records of now.
	s.add(at.Add(40*time.Second), counted(1e9, 0, "a", "b", "c"), nil)
	if v := s.view(""); v.live.In != 0 || v.live.Span != 0 {
		t.Errorf("a task came: %+v", v.live)
	}
	// Counters that go with a restart are not less than nothing.
	s.add(at.Add(42*time.Second), counted(10, 0, "a", "b", "c"), nil)
	if v := s.view(""); v.live.In != 0 {
		t.Errorf("counters went back: %+v", v.live)
	}
}

func TestTheHistoryIsBounded(t *testing.T) {
	s := newSeries(graph())
	for i := range 5000 {
		st := counted(uint64(i), 0, "a")
		st.Tasks = append(st.Tasks, processor.TaskStatus{Name: fmt.Sprint("t", i), State: processor.TaskRestoring, Remaining: 9})
		s.add(time.Unix(int64(i), 0), st, map[string][]*dto.Histogram{latencyFamily: nil})
	}
	if len(s.points) != keptPoints || len(s.counts) > keptCounts || len(s.largest) != 1 || len(s.histograms) > 2*int(quantileSpan/time.Second) {
		t.Errorf("%d points, %d counts, %d restores, %d histograms", len(s.points), len(s.counts), len(s.largest), len(s.histograms))
	}
}

func TestProgressOfARestore(t *testing.T) {
	s := newSeries(topology.Graph{})
	for i, left := range []int64{1000, 800, 600} {
		s.add(time.Unix(int64(2*i), 0), processor.Status{Tasks: []processor.TaskStatus{{Name: "a", State: processor.TaskRestoring, Remaining: left}}}, nil)
	}
	p := s.view("").live.Restores["a"]
	if math.Abs(float64(p.Done)-.4) > 1e-9 || p.Left != 6 {
		t.Errorf("%+v", p)
	}
}

// What a percentile is of: what was observed lately, from what the pipeline registers.
func TestPercentilesAreOfTheLastWhile(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metric.New(reg, "bills")
	if err != nil {
		t.Fatal(err)
	}
	m.Expect(nil, []string{"unique"})
	m.DuplicateAge("unique").Observe(5)
	s := newSeries(graph())
	at := time.Unix(0, 0)
	for i := range 60 {
		latency := 20 * time.Second
		if i > 20 {
			latency = 8 * time.Millisecond
		}
		m.Latency(latency)
		s.add(at.Add(time.Duration(i)*2*time.Second), counted(0, 0), histograms(reg)["bills"])
	}
	if v := s.view("unique"); v.live.LatencyP99 > .01 || v.age.GetSampleCount() != 1 {
		t.Errorf("p99 %v, ages %v", v.live.LatencyP99, v.age)
	}
	bars, note := lateness(s.view("unique").age, 4*time.Second)
	if len(bars) != 3 || bars[2].Label != "≤ 10s" || bars[2].Count != 1 || bars[2].Width != 100 || !strings.Contains(note, "100% of them") {
		t.Errorf("%+v %s", bars, note)
	}
}

func TestThePageSaysEverything(t *testing.T) {
	st := counted(5000, 1203, "bills/0", "bills/1")
	st.Started, st.Instance = time.Now().Add(-26*time.Hour), "streamd-0"
	st.Operators[1].Dedup = &processor.DedupStatus{IDs: 41_200_000, Retention: 7 * 24 * time.Hour, Oldest: time.Now().Add(-25 * time.Hour), BloomBytes: 3 << 30, BloomFill: .31, FalsePositiveRate: 1. / 2100}
	st.Operators[1].Counters["dedup/missing/stop"] = 2
	st.Operators[1].Counters["dedup/conflict"] = 3
	st.Operators[1].Counters["errors/id/dead_letter"] = 4
	st.Tasks = append(st.Tasks, processor.TaskStatus{Name: "bills/2", State: processor.TaskRestoring, RestoreMode: "tail", Remaining: 611_000, Reason: "waits for a <broker>"})
	st.Tasks[1].Inputs = []processor.InputStatus{{Topic: "bills.raw", Partition: 1, Next: 91002, Lag: 1204}}
	st.Transactions = processor.TransactionStatus{Committed: 12345, Aborted: map[string]uint64{"rebalance": 2}, Recent: []string{"", "rebalance", ""}, OldestOpen: time.Now().Add(-3 * time.Second)}
	st.Errors = []processor.RecordErrorStatus{{Time: time.Unix(0, 0), Operator: "unique", Stage: "id", Action: "dead_letter", Position: "bills.raw/1@7", Error: "<script>alert(1)</script>" + strings.Repeat("x", 1000)}}
	h := handlerOf(t, Entry{
		Name: "bills", Pipeline: fake{st}, Topology: graph(), Config: []Setting{{"brokers", "k:9092"}},
		Graph: func(string) (string, error) { return "", nil }, Formats: []string{"mermaid"},
	})
	page := get(h, "/").Body.String()
	for _, want := range []string{
		"2/3 tasks", "up 1d 2h", "streamd-0", "1 204", ">bills.raw<", "repartition topic", "with unique-ids",
		`href="?step=bills#step"`, `aria-current="true"`, "41.2M IDs", "1d 1h", "of 7d retention", "31% full", "3.0 GiB", "1 in 2.1k",
		"errors: id, dead letter", "611k records left (tail)", "waits for a &lt;broker&gt;", "bills.raw/1@91 002",
		"12 345", "aborted: rebalance", "2 committed, 1 aborted", "bills.raw/1@7", "&lt;script&gt;alert", "k:9092", "graph?format=mermaid",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(page, strings.Repeat("x", maxErrorText+1)) {
		t.Error("an error is shown in full, however long")
	}
	if page := get(h, "/?step=bills").Body.String(); !strings.Contains(page, "Step bills") || strings.Contains(page, "conflicts") {
		t.Error("another step is not shown")
	}
	for step, said := range map[string]bool{"": false, "bills": false, "n<o": true} {
		if page := get(h, "/?step="+url.QueryEscape(step)).Body.String(); strings.Contains(page, "No step is called") != said || said && !strings.Contains(page, "“n&lt;o”") {
			t.Errorf("step %q: said %t", step, !said)
		}
	}
}

// 500 partitions and 60 operators: the page stays small and says what it leaves out.
func TestALargePipeline(t *testing.T) {
	st, g := large(500, 60)
	h := handlerOf(t, Entry{Name: "large", Pipeline: fake{st}, Topology: g})
	page := get(h, "/").Body.String()
	if len(page) > 150_000 {
		t.Errorf("%d bytes", len(page))
	}
	for _, want := range []string{"1–50 of 500", "tasks=2", ">op-59<"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	for query, want := range map[string]string{
		"?tasks=10": "451–500 of 500", "?tasks=99": "451–500 of 500", "?tasks=-1": "1–50 of 500", "?tasks=x": "1–50 of 500",
		"?q=restoring": "1–5 of 5", "?q=" + strings.Repeat("z", 5000): "no task matches",
	} {
		if page := get(h, "/"+query).Body.String(); !strings.Contains(page, want) || len(page) > 150_000 {
			t.Errorf("%.20s: no %s in %d bytes", query, want, len(page))
		}
	}
	if i, j := strings.Index(page, "<b>"), strings.Index(page, `s-restoring`); i >= 0 || j < 0 || j > strings.LastIndex(page, `s-running`) {
		t.Error("what does not run does not come first")
	}
}

func TestLayout(t *testing.T) {
	gs := graphs(graph(), Live{Operators: map[string]Rates{"bills": {In: 48_100}, "unique": {Out: 7}}}, nil, request{}.stepLink, "unique")
	if len(gs) != 2 || len(gs[0].Boxes) != 4 || len(gs[1].Boxes) != 2 {
		t.Fatalf("%+v", gs)
	}
	// Boxes of one drawing do not overlap, and lines lead to the right.
	_, wide := large(1, 60)
	for _, g := range append(gs, graphs(wide, Live{}, nil, request{}.stepLink, "")...) {
		at := map[[2]int]bool{}
		for _, b := range g.Boxes {
			if at[[2]int{b.X, b.Y}] || b.X+b.W > g.Width || b.Y+b.H > g.Height || b.X < 0 || b.Y < 0 {
				t.Errorf("%s at %d,%d", b.Title, b.X, b.Y)
			}
			at[[2]int{b.X, b.Y}] = true
		}
	}
	rates := ""
	for _, l := range gs[0].Lines {
		rates += l.Title + " " + l.Label + " " + l.Class + "; "
	}
	if want := "bills.raw → bills 48.1k/s w5; bills → unique  w0; unique → again 7/s w1; "; rates != want {
		t.Errorf("%s, want %s", rates, want)
	}
	// A circle, which no topology has, ends too.
	loop := topology.Graph{Nodes: []topology.GraphNode{{ID: "operator:a", Kind: topology.NodeOperator, Name: "a"}, {ID: "operator:b", Kind: topology.NodeOperator, Name: "b"}}, Edges: []topology.GraphEdge{{From: "operator:a", To: "operator:b"}, {From: "operator:b", To: "operator:a"}}}
	if g := graphs(loop, Live{}, nil, request{}.stepLink, ""); len(g) != 1 {
		t.Error(g)
	}
}

func TestFormats(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Count(0), "0"},
		{Count(-1234567), "-1 234 567"},
		{Count(uint64(999)), "999"},
		{Short(0), "0"},
		{Short(7.25), "7.2"},
		{Short(999.6), "1.0k"},
		{Short(48_120), "48.1k"},
		{Short(41.2e6), "41.2M"},
		{Short(math.NaN()), "–"},
		{Size(12), "12 B"},
		{Size(3 << 30), "3.0 GiB"},
		{Percent(0), "0%"},
		{Percent(.0015), "0.15%"},
		{Percent(.31), "31%"},
		{Percent(1e-9), "<0.01%"},
		{Age(140 * time.Millisecond), "140ms"},
		{Age(76*time.Hour + time.Minute), "3d 4h"},
		{Age(-90 * time.Second), "-1m 30s"},
		{Age(time.Hour), "1h"},
		{Seconds(math.NaN()), "–"},
		{Seconds(.0025), "2.5ms"},
		{Since(time.Unix(9, 0), time.Time{}), "–"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
