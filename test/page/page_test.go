//go:build page

package page

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

//go:embed testdata/axe.min.js
var axe string

// acted is a pipeline that a test acts.
type acted struct {
	mu sync.Mutex // guards s
	s  processor.Status
}

func (a *acted) Status() processor.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	// What it has counted goes on with every look, so that there are rates.
	for i := range a.s.Operators {
		c := map[string]uint64{}
		for k, v := range a.s.Operators[i].Counters {
			c[k] = v + v/10
		}
		a.s.Operators[i].Counters = c
	}
	return a.s
}

func (a *acted) set(change func(*processor.Status)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.s)
}

// bills is a pipeline with something of everything: tasks that restore, failed records, aborts, a dedup log.
func bills(tasks, operators int) (*acted, topology.Graph) {
	now := time.Now()
	st := processor.Status{
		Pipeline: "bill-totals", State: processor.Restoring, Reason: "2 tasks restore", Instance: "streamd-0", Started: now.Add(-76 * time.Hour),
		Transactions: processor.TransactionStatus{Committed: 812_334, Aborted: map[string]uint64{"rebalance": 3, "timeout": 1}, LastCommit: now, OldestOpen: now},
	}
	for i := range 50 {
		outcome := ""
		if i%17 == 9 {
			outcome = "rebalance"
		}
		st.Transactions.Recent = append(st.Transactions.Recent, outcome)
	}
	for i := range 3 {
		st.Errors = append(st.Errors, processor.RecordErrorStatus{
			Time: now, Operator: "unique", Stage: "decode", Action: "dead_letter", Position: fmt.Sprintf("bills.raw/%d@91002", i),
			Error: "serde: value is not JSON: a message that is long enough to be wrapped into more than one line of a table cell",
		})
	}
	for i := range tasks {
		t := processor.TaskStatus{
			Name: fmt.Sprintf("bills/%d", i), Partition: int32(i), State: processor.TaskRunning, Sequence: 1, StreamTime: now,
			Inputs: []processor.InputStatus{{Topic: "bills.raw", Partition: int32(i), Next: 1_000_000, Lag: int64(i * 7 % 1204)}},
		}
		if i < 2 {
			t.State, t.Remaining, t.RestoreMode = processor.TaskRestoring, 611_000, "tail"
		}
		st.Tasks = append(st.Tasks, t)
	}
	st.Globals = []processor.GlobalStatus{
		{Name: "rates", Topic: "exchange.rates", State: processor.GlobalStale, Reason: "the leader of exchange.rates/3 does not answer: the rows stay as they were", Rows: 12_345, Bytes: 3 << 20, MaxBytes: 64 << 20, AsOf: now.Add(-5 * time.Minute), Lag: 17},
		{Name: "shops", Topic: "shops", State: processor.GlobalCurrent, Rows: 77, MaxBytes: 64 << 20, AsOf: now},
		{Name: "names", Topic: "names", State: processor.GlobalReading, Remaining: 611_000, MaxBytes: 64 << 20},
	}
	st.Instances = instancesOf(now, tasks)
	g := topology.Graph{Nodes: []topology.GraphNode{{ID: "topic:bills.raw", Kind: topology.NodeTopic, Name: "bills.raw", Subtopology: -1}}}
	before := "topic:bills.raw"
	for i := range operators {
		name, kind := fmt.Sprintf("step-%d", i), "map"
		o := processor.OperatorStatus{Name: name, Kind: kind, Counters: map[string]uint64{"in": 48_000, "out": 48_000}}
		if i == 1 {
			name, o.Name, kind, o.Kind = "unique", "unique", "dedup", "dedup"
			o.Counters = map[string]uint64{"in": 48_000, "out": 47_900, "dedup/checked": 48_000, "dedup/dup_committed": 100, "errors/id/dead_letter": 20}
			o.Dedup = &processor.DedupStatus{Last: duplicates(now), IDs: 41_200_000, Retention: 7 * 24 * time.Hour, Oldest: now.Add(-100 * time.Hour), BloomBytes: 90 << 20, BloomFill: .31, FalsePositiveRate: .0005}
		}
		if i == 3 {
			kind, o.Kind, o.Effect = "effect", "effect", &processor.EffectStatus{Waiting: 12, Running: 5, Uncertain: 3, Hanging: 1}
		}
		st.Operators = append(st.Operators, o)
		g.Nodes = append(g.Nodes, topology.GraphNode{ID: "operator:" + name, Kind: topology.NodeOperator, Name: name, Operator: kind})
		g.Edges = append(g.Edges, topology.GraphEdge{From: before, To: "operator:" + name, Case: -1})
		if i%5 != 4 { // each fifth one has two successors
			before = "operator:" + name
		}
	}
	return &acted{s: st}, g
}

// duplicates are as many as a status has at most.
func duplicates(now time.Time) (out []processor.DuplicateStatus) {
	for i := range 20 {
		d := processor.DuplicateStatus{Time: now, Position: fmt.Sprintf("bills.raw/%d@%d", i%3, 91_002+i*17), Timestamp: now, FirstSeen: now.Add(-time.Duration(i*i*i) * time.Minute), Seen: "committed", ID: fmt.Sprintf("%08x", i/2*77_777_777)}
		if i%7 == 3 {
			d.Seen = "open_transaction"
		}
		out = append(out, d)
	}
	return out
}

// instancesOf are instances that have the tasks mixed; the last one has no page.
func instancesOf(now time.Time, tasks int) *processor.InstancesStatus {
	out := &processor.InstancesStatus{AsOf: now.Add(-8 * time.Second)}
	for i := range 3 {
		out.List = append(out.List, processor.InstanceStatus{Instance: fmt.Sprintf("streamd-%d", i), Here: i == 0, Address: fmt.Sprintf("streamd-%d.streamd.example:8080", i)})
	}
	out.List[2].Address = ""
	for i := range tasks {
		x := &out.List[i*7/5%3]
		x.Tasks = append(x.Tasks, fmt.Sprintf("bills/%d", i))
	}
	return out
}

// outside are sources outside of Kafka, of each kind.
func outside() []ingress.Status {
	now := time.Now()
	return []ingress.Status{
		{Name: "posted", Kind: ingress.KindHTTP, Where: "https://0.0.0.0:8443/bills", Topic: "bills.posted", Records: 12_345_678, Refused: map[string]uint64{"bad_request": 1_017, "busy": 2}, Waits: "Kafka: the leader of bills.posted/3 does not answer", LastError: "the leader of bills.posted/3 does not answer", LastErrorAt: now.Add(-3 * time.Second), HTTP: &ingress.SenderStatus{Open: 31, OldestSince: now.Add(-7 * time.Second)}},
		{Name: "logs", Kind: ingress.KindFiles, Where: "/var/log/bills/*.log, /srv/bills/*.json", Topic: "bills.logs", Records: 88_000, LongLines: 4, Files: &ingress.FilesStatus{Known: 1204, Behind: 3 << 20}},
		{Name: "orders", Kind: ingress.KindTable, Where: "orders at postgres://db:5432/shop", Topic: "orders", Records: 9_000, LastError: "connection refused", LastErrorAt: now.Add(-time.Hour), Table: &ingress.TableStatus{Reading: true, Number: 9_001, ReadAt: now.Add(-time.Minute), Behind: 7, Undecided: "transactions that write the table: 3/17", UndecidedSeconds: 44}},
		{Name: "meters", Kind: ingress.KindTCP, Where: "0.0.0.0:5000", Topic: "meters", Records: 7, TCP: &ingress.SenderStatus{Open: 5, OldestSince: now.Add(-time.Hour)}},
	}
}

func serve(t *testing.T, tasks, operators int) (*acted, string) {
	t.Helper()
	a, g := bills(tasks, operators)
	h, err := web.New(web.Config{
		Version:   web.Version{Version: "v0.1.0"},
		Link:      func(pipeline, address string) string { return "http://" + address + "/?pipeline=" + pipeline },
		Pipelines: []web.Entry{{Name: "bill-totals", Pipeline: a, Topology: g, Config: []web.Setting{{Name: "brokers", Value: "kafka-1:9092, kafka-2:9092"}, {Name: "sasl password", Value: "***"}}, Graph: func(string) (string, error) { return "", nil }, Sources: outside}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return a, server.URL + "/"
}

// views are the ways in which people look.
var views = []view{
	{Name: "light", Width: 1200, Height: 900},
	{Name: "dark", Width: 1200, Height: 900, Dark: true},
	{Name: "narrow", Width: 360, Height: 740},
	{Name: "narrow-dark", Width: 360, Height: 740, Dark: true},
}

// complaints returns what axe-core finds.
func complaints(b *browser) []string {
	b.eval(axe+"; true", nil)
	var found []struct {
		ID, Help string
		Nodes    []struct {
			HTML           string
			FailureSummary string
		}
	}
	var text string
	b.eval(`axe.run(document, {resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations))`, &text)
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, f := range found {
		out = append(out, fmt.Sprintf("%s: %s (%d times): %.300s\n%s", f.ID, f.Help, len(f.Nodes), f.Nodes[0].HTML, f.Nodes[0].FailureSummary))
	}
	return out
}

func TestAccessibleInEveryView(t *testing.T) {
	b := open(t)
	_, small := serve(t, 12, 7)
	_, large := serve(t, 500, 60)
	for name, address := range map[string]string{"small": small, "large": large} {
		for _, v := range views {
			b.load(address, v)
			b.wait(`document.getElementById("connection").textContent === "live"`)
			for _, c := range complaints(b) {
				t.Errorf("%s %s: %s", name, v.Name, c)
			}
			var wide int
			b.eval(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, &wide)
			if wide > 0 {
				t.Errorf("%s %s: the page is %d pixels wider than the screen", name, v.Name, wide)
			}
			b.shot(name + "-" + v.Name)
		}
	}
	// The checker itself can see: a page with a mistake does not pass.
	b.eval(`document.querySelector("main").insertAdjacentHTML("beforeend", "<img src=x><input>"); true`, nil)
	if got := complaints(b); len(got) < 2 {
		t.Errorf("a picture without a text and a field without a label pass: %v", got)
	}
}

// The page renews itself without losing where its reader is, and says so when the process is gone.
func TestLive(t *testing.T) {
	b := open(t)
	a, address := serve(t, 12, 7)
	b.load(address, views[0])
	b.wait(`document.getElementById("connection").textContent === "live"`)
	b.eval(`document.getElementById("q").focus(); document.getElementById("q").value = "typed"; window.kept = document.getElementById("q"); true`, nil)
	a.set(func(s *processor.Status) { s.State, s.Reason = processor.Running, "" })
	b.wait(`document.querySelector("header .state").textContent === "running"`)
	b.wait(`!document.querySelector(".reason") && document.title.includes("running")`)
	var kept bool
	b.eval(`document.activeElement === window.kept && window.kept.isConnected && window.kept.value === "typed"`, &kept)
	if !kept {
		t.Error("the reader lost the field in which they typed")
	}
	// Paused, nothing changes.
	b.eval(`document.getElementById("pause").click(); true`, nil)
	b.wait(`document.getElementById("connection").textContent === "paused"`)
	a.set(func(s *processor.Status) { s.State, s.Reason = processor.Blocked, "the output topic is gone" })
	awaitEvents(t, address, 2) // the second one comes as long after the first as it takes to renew
	var state string
	b.eval(`document.querySelector("header .state").textContent`, &state)
	if state != "running" {
		t.Errorf("paused, and yet %s", state)
	}
	b.eval(`document.getElementById("pause").click(); true`, nil)
	b.wait(`document.querySelector(".reason") && document.querySelector(".reason").textContent.includes("the output topic is gone")`)
	// The page's own policy was not in its way.
	for _, e := range b.events {
		if e.Method == "Log.entryAdded" || e.Method == "Runtime.exceptionThrown" {
			t.Errorf("%s: %s", e.Method, e.Params)
		}
	}
}

// awaitEvents reads events as the page does, until so many have come.
func awaitEvents(t *testing.T, address string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); n > 0; {
		if !lines.Scan() {
			t.Fatalf("%d events are missing: %v", n, lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			n--
		}
	}
}

// From the keyboard alone: every link and the steps of the drawing can be reached, and Enter opens one.
func TestKeyboard(t *testing.T) {
	b := open(t)
	_, address := serve(t, 12, 7)
	b.load(address, views[0])
	b.wait(`document.getElementById("connection").textContent === "live"`)
	b.eval(`document.getElementById("pause").click(); true`, nil)
	var reached []string
	for range 60 {
		b.press("Tab", 9)
		var at string
		b.eval(`(e => e.getAttribute("href") || e.id || e.tagName)(document.activeElement)`, &at)
		reached = append(reached, at)
	}
	all := strings.Join(reached, " ")
	for _, want := range []string{"#main", "pause", "?step=unique#step", "?step=step-6#step", "q", "http://streamd-1.streamd.example:8080/?pipeline=bill-totals", "metrics", "version"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s is not reached: %s", want, all)
		}
	}
	b.eval(`document.querySelector("svg a[href*='step=step-3#']").focus(); true`, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}, nil)
	b.wait(`location.search.includes("step=step-3") && document.getElementById("h-step")?.textContent.includes("step-3")`)
}

// Without JavaScript all of it is there, the curves and the drawing too, and links and the filter work.
func TestWithoutJavaScript(t *testing.T) {
	b := open(t)
	_, address := serve(t, 500, 7)
	v := view{Name: "nojs", Width: 1200, Height: 900, NoJS: true}
	b.load(address, v)
	b.shot("nojs")
	var seen struct {
		Boxes, Rows, Curves int
		Live                string
		Pause               bool
	}
	b.eval(`({Boxes: document.querySelectorAll(".box").length, Rows: document.querySelectorAll("#tasks tbody tr").length, Curves: document.querySelectorAll(".figures polyline").length,
		Live: document.getElementById("connection").textContent, Pause: document.getElementById("pause").hidden})`, &seen)
	if seen.Boxes != 8 || seen.Rows != 50 || seen.Curves < 3 || seen.Live != "" || !seen.Pause {
		t.Errorf("%+v", seen)
	}
	b.load(address+"?q=bills%2F499", v)
	b.eval(`({Rows: document.querySelectorAll("#tasks tbody tr").length})`, &seen)
	if seen.Rows != 1 {
		t.Errorf("filtered: %d rows", seen.Rows)
	}
}
