package web

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/streamd/streamd/processor"
)

// Limits of the page: more is in the API.
const (
	tasksPerPage = 50
	maxSteps     = 200
	maxErrors    = 20
	maxErrorText = 500 // bytes of one message
)

// request is what an address of the page chooses. Everything in it comes from outside and is only compared or escaped.
type request struct {
	pipeline, step, query string
	page                  int  // of the tasks, from 1
	local                 bool // the reader came by an address of this machine
}

func parse(r *http.Request) request {
	v := r.URL.Query()
	page, err := strconv.Atoi(v.Get("tasks"))
	if err != nil {
		page = 1
	}
	return request{v.Get("pipeline"), v.Get("step"), shorten(strings.TrimSpace(v.Get("q")), 100), page, loopback(r.Host)}
}

// values is the address of the page with one thing changed.
func (r request) values(change func(*request)) url.Values {
	change(&r)
	v := url.Values{}
	for name, text := range map[string]string{"pipeline": r.pipeline, "step": r.step, "q": r.query} {
		if text != "" {
			v.Set(name, text)
		}
	}
	if r.page > 1 {
		v.Set("tasks", strconv.Itoa(r.page))
	}
	return v
}

// stepLink is the address of a step's panel.
func (r request) stepLink(step string) string {
	return "?" + r.values(func(r *request) { r.step = step }).Encode() + "#step"
}

// pageView is what the page is made of. It holds text and numbers only: all marks are the template's.
type pageView struct {
	Version   Version
	Now       time.Time
	Pipelines []choice // to switch to
	P         *pipelineView
	Asked     string // a pipeline that is not there
}

type choice struct {
	Summary
	Href    string
	Current bool
}

type pipelineView struct {
	Summary
	Up      string
	Figures []figure
	Graphs  []graphView
	Formats []string // in which the graph can be had
	Steps   []stepRow
	More    int // steps that are not shown
	Step    *stepView
	Tasks   tasksView
	Sources []sourceRow
	Globals []globalRow
	Peers   *instancesView
	Txn     txnView
	Errors  []errorView
	Config  []Setting

	// AskedStep is the name of a step that was asked for, if none has it.
	AskedStep string
}

// figure is one number of the page's head with its curve.
type figure struct {
	Name, Value, Note string
	Curve             string // points of an SVG polyline; empty: nothing to draw
	Highest           string // of the curve
}

type stepRow struct {
	Name, Kind, In, Out, Dropped, Errors, Detail, Href string
	Current                                            bool
	Bad                                                bool
}

type stepView struct {
	Name, Kind string
	Facts      []fact
	Dedup      bool
	Ages       []Bar
	AgesNote   string
	Last       []duplicateRow
	Counters   []fact
}

type fact struct{ Name, Value, Note string }

// Bar is one bar of a histogram.
type Bar struct {
	Label string
	Count uint64
	Share string
	Width int // 0 to 100
}

type tasksView struct {
	Rows       []taskRow
	States     []fact // how many are in which
	Query      string
	Matches    int
	From, To   int
	Prev, Next string
	Pipeline   string // hidden fields of the filter
	Step       string
}

type taskRow struct {
	Name, State, Reason, Input, Lag, StreamTime, Restore string
	Done                                                 int // percent; -1: none
}

type txnView struct {
	Committed, Aborted, Last, Open string
	Reasons                        []fact
	Recent                         []dot
	RecentText                     string
}

type dot struct {
	X     int
	Class string
	Title string
}

type errorView struct {
	Time, Step, Stage, Action, Position, Text string
}

// view builds what the page shows for a request.
func (h *Handler) view(now time.Time, r request) pageView {
	out := pageView{Version: h.Version, Now: now.UTC().Truncate(time.Second)}
	at := -1
	for i, e := range h.Pipelines {
		if e.Name == r.pipeline || r.pipeline == "" && at < 0 {
			at = i
		}
	}
	for i, e := range h.Pipelines {
		c := choice{Summary: Summarize(e.Name, e.Pipeline.Status()), Href: "?" + url.Values{"pipeline": {e.Name}}.Encode(), Current: i == at}
		out.Pipelines = append(out.Pipelines, c)
	}
	if at < 0 {
		out.Asked = r.pipeline
		return out
	}
	out.P = h.pipelineView(now, h.Pipelines[at], h.history.series[at], r)
	return out
}

func (h *Handler) pipelineView(now time.Time, e Entry, s *series, r request) *pipelineView {
	st := e.Pipeline.Status()
	asked := r.step
	r.step = chosen(st, r.step)
	v := s.view(r.step)
	p := &pipelineView{Summary: Summarize(e.Name, st), Up: Since(now, st.Started), Config: e.Config}
	if asked != r.step {
		p.AskedStep = asked
	}
	p.Figures = figures(p.Summary, v)
	details := map[string]string{}
	for _, o := range st.Operators {
		rates := v.live.Operators[o.Name]
		if rates.Duplicates > 0 {
			details[o.Name] = "dup " + Short(rates.Duplicates) + "/s"
		}
		if len(p.Steps) == maxSteps {
			p.More++
			continue
		}
		p.Steps = append(p.Steps, step(now, o, rates, r))
	}
	p.Graphs = graphs(e.Topology, v.live, details, r.stepLink, r.step)
	if e.Graph != nil {
		p.Formats = e.Formats
	}
	for _, o := range st.Operators {
		if o.Name == r.step {
			p.Step = panel(now, o, v)
		}
	}
	p.Tasks = tasks(now, st, v.live, r)
	p.Sources = sources(now, e.sources())
	p.Globals = globals(now, st.Globals)
	p.Peers = h.instances(now, st, r)
	p.Txn = transactions(now, st.Transactions)
	p.Errors = failures(st.Errors)
	return p
}

// chosen is the step whose panel is shown: the one asked for, else the first that looks for duplicates, else the first.
func chosen(st processor.Status, asked string) string {
	name := ""
	for _, o := range st.Operators {
		if o.Name == asked {
			return asked
		}
		if name == "" && o.Dedup != nil {
			name = o.Name
		}
	}
	if name == "" && len(st.Operators) > 0 {
		name = st.Operators[0].Name
	}
	return name
}

func figures(s Summary, v view) []figure {
	curve := func(of func(point) float64, format func(float64) string) (string, string) {
		return sparkline(v.points, of, format)
	}
	out := []figure{
		{Name: "lag", Value: Count(s.Lag), Note: "records; most in one partition: " + Count(s.LagMax)},
		{Name: "in", Value: Short(v.live.In) + "/s", Note: "records a second from outside"},
		{Name: "duplicates", Value: Percent(float64(v.live.Duplicates)), Note: "of what was checked; " + Count(s.Duplicates) + " in all"},
		{Name: "latency p99", Value: Seconds(float64(v.live.LatencyP99)), Note: "from a record's time to its commit"},
		{Name: "commit p99", Value: Seconds(float64(v.live.CommitP99)), Note: "to commit one transaction"},
	}
	out[0].Curve, out[0].Highest = curve(func(p point) float64 { return p.lag }, Short)
	out[1].Curve, out[1].Highest = curve(func(p point) float64 { return p.in }, func(v float64) string { return Short(v) + "/s" })
	out[2].Curve, out[2].Highest = curve(func(p point) float64 { return p.duplicates }, Percent)
	out[3].Curve, out[3].Highest = curve(func(p point) float64 { return p.latency }, Seconds)
	out[4].Curve, out[4].Highest = curve(func(p point) float64 { return p.commit }, Seconds)
	return out
}

// The size of a curve, in the units of its SVG.
const curveWidth, curveHeight = 150, 28

// sparkline places the points of a curve from 0 to its highest value, the newest at the right.
func sparkline(points []point, of func(point) float64, format func(float64) string) (line, highest string) {
	top := math.NaN()
	for _, p := range points {
		if v := of(p); math.IsNaN(top) || v > top {
			top = v
		}
	}
	var b strings.Builder
	for i, p := range points {
		v := of(p)
		if math.IsNaN(v) {
			continue
		}
		y := float64(curveHeight - 1)
		if top > 0 {
			y -= v / top * (curveHeight - 2)
		}
		x := float64(curveWidth) * float64(keptPoints-len(points)+i) / (keptPoints - 1)
		fmt.Fprintf(&b, "%.1f,%.1f ", x, y)
	}
	return strings.TrimSpace(b.String()), format(top)
}

func step(now time.Time, o processor.OperatorStatus, rates Rates, r request) stepRow {
	t := totals(o)
	row := stepRow{
		Name: o.Name, Kind: o.Kind, In: Short(rates.In), Out: Short(rates.Out), Dropped: Count(uint64(t.Dropped + t.Duplicates)),
		Errors: Count(uint64(t.Errors)), Bad: t.Errors > 0, Current: o.Name == r.step,
		Href: r.stepLink(o.Name),
	}
	if d := o.Dedup; d != nil {
		row.Detail = DedupDetail(d, now)
	}
	if e := o.Effect; e != nil {
		row.Detail = EffectDetail(e)
	}
	return row
}

// DedupDetail says in a line how the log of a dedup operator is.
func DedupDetail(d *processor.DedupStatus, now time.Time) string {
	s := fmt.Sprintf("%s IDs, bloom %s full", Short(float64(d.IDs)), Percent(d.BloomFill))
	if d.FalsePositiveRate > 0 {
		s += ", false " + oneIn(d.FalsePositiveRate)
	}
	if !d.Oldest.IsZero() {
		s += ", oldest " + Since(now, d.Oldest) + " of " + Age(d.Retention)
	}
	return s
}

func oneIn(rate float64) string {
	if rate <= 0 {
		return "none"
	}
	return "1 in " + Short(1/rate)
}

// panel describes one operator in full.
func panel(now time.Time, o processor.OperatorStatus, v view) *stepView {
	rates := v.live.Operators[o.Name]
	p := &stepView{Name: o.Name, Kind: o.Kind}
	p.Facts = []fact{
		{"in", Count(o.Counters["in"]), Short(rates.In) + "/s"},
		{"out", Count(o.Counters["out"]), Short(rates.Out) + "/s"},
	}
	for _, kind := range sortedKeys(o.Counters) {
		group, rest, _ := strings.Cut(kind, "/")
		name := strings.ReplaceAll(rest, "_", " ")
		switch group {
		case "dropped":
			p.Facts = append(p.Facts, fact{"dropped: " + name, Count(o.Counters[kind]), ""})
		case "errors":
			p.Facts = append(p.Facts, fact{"errors: " + strings.ReplaceAll(name, "/", ", "), Count(o.Counters[kind]), ""})
		case "timers":
			p.Facts = append(p.Facts, fact{"timers fired", Count(o.Counters[kind]), ""})
		}
	}
	if o.Dedup != nil || o.Kind == "dedup" {
		p.dedup(now, o, rates, v.age)
	}
	if o.Effect != nil {
		p.effect(o.Effect)
	}
	return p
}

func (p *stepView) dedup(now time.Time, o processor.OperatorStatus, rates Rates, age *dto.Histogram) {
	c, d := o.Counters, o.Dedup
	p.Dedup = true
	share := math.NaN()
	if rates.Checked > 0 {
		share = rates.Duplicates / rates.Checked
	}
	p.Facts = append(p.Facts,
		fact{"checked", Count(c["dedup/checked"]), Short(rates.Checked) + "/s"},
		fact{"duplicates", Count(c["dedup/dup_committed"] + c["dedup/dup_open"]), Percent(share) + " now"},
		fact{"conflicts", Count(c["dedup/conflict"]), "same ID, other payload"},
		fact{"missing IDs", Count(c["dedup/missing/stop"] + c["dedup/missing/dead_letter"] + c["dedup/missing/forward"]), ""},
		fact{"too late to judge", Count(c["dedup/too_late"]), "older than what is remembered"})
	if d == nil {
		p.Facts = append(p.Facts, fact{"log", "left out", "one before it has dropped every duplicate"})
		return
	}
	p.Facts = append(p.Facts,
		fact{"IDs held", Count(d.IDs), Count(d.Expired) + " forgotten"},
		fact{"oldest ID", Since(now, d.Oldest), "of " + Age(d.Retention) + " retention"},
		fact{"bloom filters", Percent(d.BloomFill) + " full", Size(d.BloomBytes) + " in memory"},
		fact{"false positives", oneIn(d.FalsePositiveRate), falseSeen(c)})
	p.Ages, p.AgesNote = lateness(age, d.Retention)
	p.Last = lastDuplicates(d)
}

// falseSeen says how often a filter really was wrong.
func falseSeen(c map[string]uint64) string {
	wrong, right := c["dedup/bloom/false_positive"], c["dedup/bloom/negative"]
	if wrong == 0 {
		return "estimated; none seen"
	}
	return "estimated; seen " + oneIn(float64(wrong)/float64(wrong+right))
}

// lateness turns the histogram of how late duplicates come into bars.
func lateness(h *dto.Histogram, retention time.Duration) (bars []Bar, note string) {
	all := h.GetSampleCount()
	if all == 0 {
		return nil, ""
	}
	var before, late uint64
	most := uint64(1)
	for _, b := range h.GetBucket() {
		n := b.GetCumulativeCount() - before
		before = b.GetCumulativeCount()
		label := "later"
		if bound := b.GetUpperBound(); !math.IsInf(bound, 1) {
			label = "≤ " + Seconds(bound)
			if bound <= retention.Seconds()/2 {
				late = all - before
			}
		}
		bars = append(bars, Bar{Label: label, Count: n})
		most = max(most, n)
	}
	if before < all {
		bars = append(bars, Bar{Label: "later", Count: all - before})
		most = max(most, all-before)
	}
	// Empty ends say nothing.
	for len(bars) > 1 && bars[len(bars)-1].Count == 0 {
		bars = bars[:len(bars)-1]
	}
	for i := range bars {
		bars[i].Width = int(100 * bars[i].Count / most)
		bars[i].Share = Percent(float64(bars[i].Count) / float64(all))
	}
	if late > 0 {
		note = fmt.Sprintf("%s of them come later than half of the retention (%s): consider a longer one.", Percent(float64(late)/float64(all)), Age(retention))
	}
	return bars, note
}

// tasks lists one page of the tasks, those that do not run first, then by lag.
func tasks(now time.Time, st processor.Status, live Live, r request) tasksView {
	out := tasksView{Query: r.query, Pipeline: r.pipeline, Step: r.step}
	lag := func(t processor.TaskStatus) (n int64) {
		for _, in := range t.Inputs {
			n += max(in.Lag, 0)
		}
		return n
	}
	states := map[string]uint64{}
	var found []processor.TaskStatus
	for _, t := range st.Tasks {
		states[string(t.State)]++
		if matches(t, r.query) {
			found = append(found, t)
		}
	}
	for _, s := range sortedKeys(states) {
		out.States = append(out.States, fact{Name: s, Value: Count(states[s])})
	}
	slices.SortStableFunc(found, func(a, b processor.TaskStatus) int {
		if x, y := a.State == processor.TaskRunning, b.State == processor.TaskRunning; x != y {
			if y {
				return -1
			}
			return 1
		}
		return int(min(max(lag(b)-lag(a), -1), 1))
	})
	out.Matches = len(found)
	pages := max((len(found)+tasksPerPage-1)/tasksPerPage, 1)
	page := min(max(r.page, 1), pages)
	first := (page - 1) * tasksPerPage
	shown := found[first:min(first+tasksPerPage, len(found))]
	out.From, out.To = first+1, first+len(shown)
	at := func(n int) string { return "?" + r.values(func(r *request) { r.page = n }).Encode() + "#tasks" }
	if page > 1 {
		out.Prev = at(page - 1)
	}
	if page < pages {
		out.Next = at(page + 1)
	}
	for _, t := range shown {
		out.Rows = append(out.Rows, task(now, t, lag(t), live.Restores[t.Name]))
	}
	return out
}

// matches tells whether a task's name, state or input holds the text.
func matches(t processor.TaskStatus, query string) bool {
	if query == "" || strings.Contains(t.Name, query) || strings.Contains(string(t.State), query) {
		return true
	}
	return slices.ContainsFunc(t.Inputs, func(in processor.InputStatus) bool { return strings.Contains(in.Topic, query) })
}

func task(now time.Time, t processor.TaskStatus, lag int64, p Progress) taskRow {
	row := taskRow{Name: t.Name, State: string(t.State), Reason: t.Reason, Lag: Count(lag), StreamTime: "–", Done: -1}
	var inputs []string
	for _, in := range t.Inputs {
		inputs = append(inputs, fmt.Sprintf("%s/%d@%s", in.Topic, in.Partition, Count(int64(in.Next))))
	}
	row.Input = strings.Join(inputs, ", ")
	if !t.StreamTime.IsZero() {
		row.StreamTime = Since(now, t.StreamTime) + " ago"
	}
	if t.State != processor.TaskRestoring && t.State != processor.TaskRecovering {
		return row
	}
	row.Lag = "–"
	row.Restore = Short(float64(t.Remaining)) + " records left"
	if left := float64(p.Left); left > 0 {
		row.Restore += ", about " + Age(time.Duration(left)*time.Second)
	}
	if t.RestoreMode != "" {
		row.Restore += " (" + t.RestoreMode + ")"
	}
	// The zero value of a task that no sample has seen yet is no progress either.
	if done := float64(p.Done); !math.IsNaN(done) {
		row.Done = int(100 * done)
	}
	return row
}

func transactions(now time.Time, t processor.TransactionStatus) txnView {
	out := txnView{Committed: Count(t.Committed), Last: "none yet", Open: "none"}
	var aborted uint64
	for _, reason := range sortedKeys(t.Aborted) {
		aborted += t.Aborted[reason]
		out.Reasons = append(out.Reasons, fact{Name: reason, Value: Count(t.Aborted[reason])})
	}
	out.Aborted = Count(aborted)
	if !t.LastCommit.IsZero() {
		out.Last = Since(now, t.LastCommit) + " ago"
	}
	if !t.OldestOpen.IsZero() {
		out.Open = "for " + Since(now, t.OldestOpen)
	}
	bad := 0
	for i, outcome := range t.Recent {
		d := dot{X: 8 + i*14, Class: "committed", Title: "committed"}
		if outcome != "" {
			bad++
			d.Class, d.Title = "aborted", "aborted: "+outcome
		}
		out.Recent = append(out.Recent, d)
	}
	out.RecentText = fmt.Sprintf("the last %d transactions, oldest first: %d committed, %d aborted", len(t.Recent), len(t.Recent)-bad, bad)
	return out
}

// failures lists the last errors, the newest first.
func failures(all []processor.RecordErrorStatus) (out []errorView) {
	for _, e := range slices.Backward(all) {
		if len(out) == maxErrors {
			break
		}
		text := e.Error
		if len(text) > maxErrorText {
			text = strings.ToValidUTF8(text[:maxErrorText], "") + " …"
		}
		out = append(out, errorView{e.Time.UTC().Format("2006-01-02 15:04:05Z"), e.Operator, e.Stage, e.Action, e.Position, text})
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
