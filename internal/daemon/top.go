package daemon

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/processor"
)

// Top is what `streamd top` shows of one pipeline at one moment.
type Top struct {
	web.Summary
	Status processor.Status
	Live   web.Live
}

// Tops asks for what top shows, of all pipelines of the process.
func (c *Client) Tops(ctx context.Context) ([]Top, error) {
	list, err := c.Pipelines(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Top, len(list))
	for i, s := range list {
		out[i].Summary = s
		path := "/api/v1/pipelines/" + url.PathEscape(s.Name)
		if err := c.Get(ctx, path, &out[i].Status); err != nil {
			return nil, err
		}
		if err := c.Get(ctx, path+"/live", &out[i].Live); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// The orders of top's tables.
const (
	SortName   = "name"   // steps as the pipeline has them, tasks by name
	SortRate   = "rate"   // the busiest step first
	SortLag    = "lag"    // the task with the largest lag first
	SortErrors = "errors" // the step with most failed records first
)

// Sorts lists the orders, in the order in which the key s goes through them.
func Sorts() []string { return []string{SortName, SortRate, SortLag, SortErrors} }

// TopView is how top shows it.
type TopView struct {
	Width, Height int // of the terminal; 0: no limit
	Sort          string
	Filter        string // of steps and tasks, by name
	Selected      int    // pipeline, counted on without end: modulo their number
	Detail        TopDetail
	Paused        bool
	Typing        bool // of the filter
	Color         bool
	Once          bool // one screen without a limit, on which no key can be pressed
}

// TopDetail is what stands below the steps.
type TopDetail int

// The details, each with its key.
const (
	TopTasks      TopDetail = iota // the default
	TopDuplicates                  // d
	TopErrors                      // e
	TopInstances                   // i
)

// Details lists the details by name, as they are numbered.
func Details() []string { return []string{"tasks", "duplicates", "errors", "instances"} }

// RenderTop draws one screen, as lines that fit the view. Text that comes from records or files loses its control characters: it
// must not drive the terminal.
func RenderTop(tops []Top, v TopView, now time.Time) []string {
	s := &screen{view: v}
	if len(tops) == 0 {
		s.line("no pipeline")
		return s.lines
	}
	v.Selected = (v.Selected%len(tops) + len(tops)) % len(tops)
	for i, t := range tops {
		mark := " "
		if len(tops) > 1 && i == v.Selected {
			mark = ">"
		}
		s.head(mark, t)
	}
	t := tops[v.Selected]
	s.line("")
	s.steps(t, now)
	s.line("")
	if len(t.Sources) > 0 {
		s.sources(t, now)
		s.line("")
	}
	if len(t.Status.Globals) > 0 {
		s.globals(t, now)
		s.line("")
	}
	switch v.Detail {
	case TopDuplicates:
		s.duplicates(t, now)
		s.line("")
		s.lastDuplicates(t, now)
	case TopErrors:
		s.errors(t, now)
	case TopInstances:
		s.instances(t, now)
	default:
		s.tasks(t, now)
	}
	if v.Once {
		return s.lines
	}
	footer := "s sort: " + v.Sort + "   / filter"
	switch {
	case v.Typing:
		footer = "/" + v.Filter + "_   enter: done"
	case v.Filter != "":
		footer += ": " + v.Filter
	}
	if !v.Typing {
		footer += "   d duplicates  e errors  i instances  enter next pipeline  p pause  q quit"
	}
	if v.Paused {
		footer = "PAUSED   " + footer
	}
	return s.fit(footer)
}

// screen gathers lines.
type screen struct {
	view  TopView
	lines []string
}

func (s *screen) line(text string) { s.lines = append(s.lines, text) }

// paint colours a text, if colours are wanted.
func (s *screen) paint(code, text string) string {
	if !s.view.Color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// stateColor is green for what runs, red for what does not go on by itself, else yellow.
func stateColor(state string) string {
	switch state {
	case string(processor.Running):
		return "32"
	case string(processor.Failed), string(processor.Blocked):
		return "31"
	}
	return "33"
}

// fit cuts the lines to the terminal and puts the footer at its end.
func (s *screen) fit(footer string) []string {
	if h := s.view.Height; h > 1 && len(s.lines) > h-1 {
		left := len(s.lines) - (h - 2)
		s.lines = append(s.lines[:h-2], fmt.Sprintf(" ... %d more lines; / filters", left))
	}
	s.line(s.paint("7", footer))
	for i, l := range s.lines {
		s.lines[i] = cut(l, s.view.Width)
	}
	return s.lines
}

// cut shortens a line to a width. Escape sequences take no place.
func cut(line string, width int) string {
	if width <= 0 {
		return line
	}
	var b strings.Builder
	n, escape, painted := 0, false, false
	for _, r := range line {
		switch {
		case r == '\x1b':
			escape, painted = true, true
		case escape:
			escape = r != 'm'
		case n == width:
			if painted {
				b.WriteString("\x1b[0m")
			}
			return b.String()
		default:
			n++
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (s *screen) head(mark string, t Top) {
	worst, at := int64(-1), ""
	for _, task := range t.Status.Tasks {
		for _, in := range task.Inputs {
			if in.Lag > worst {
				worst, at = in.Lag, fmt.Sprintf("%s/%d", in.Topic, in.Partition)
			}
		}
	}
	lag := "lag " + web.Count(t.Lag)
	if worst > 0 {
		lag += fmt.Sprintf(" (max %s, %s)", web.Count(worst), plain(at))
	}
	s.line(fmt.Sprintf("%s%s   %s   %d/%d tasks   %s   in %s/s   dup %s   latency p99 %s   commit p99 %s",
		mark, plain(t.Name), s.paint(stateColor(string(t.State)), string(t.State)), t.TasksRunning, t.Tasks, lag, web.Short(t.Live.In),
		web.Percent(float64(t.Live.Duplicates)), web.Seconds(float64(t.Live.LatencyP99)), web.Seconds(float64(t.Live.CommitP99))))
	if t.Reason != "" {
		s.line("   " + s.paint(stateColor(string(t.State)), plain(t.Reason)))
	}
}

// table writes rows in columns. A column whose head begins with > is of numbers.
func (s *screen) table(rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(strings.TrimPrefix(c, ">")))
		}
	}
	for n, r := range rows {
		var b strings.Builder
		for i, c := range r {
			c = strings.TrimPrefix(c, ">")
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if strings.HasPrefix(rows[0][i], ">") {
				b.WriteString(" " + pad + c + " ")
			} else {
				b.WriteString(" " + c + pad + " ")
			}
		}
		text := strings.TrimRight(b.String(), " ")
		if n == 0 {
			text = s.paint("1", text)
		}
		s.line(text)
	}
}

// steps lists the operators.
func (s *screen) steps(t Top, now time.Time) {
	rows := [][]string{{"STEP", "KIND", ">IN/s", ">OUT/s", ">DROPPED/s", ">ERRORS", "DETAIL"}}
	ops := slices.Clone(t.Status.Operators)
	switch s.view.Sort {
	case SortRate:
		slices.SortStableFunc(ops, func(a, b processor.OperatorStatus) int {
			return cmp.Compare(t.Live.Operators[b.Name].In, t.Live.Operators[a.Name].In)
		})
	case SortErrors:
		slices.SortStableFunc(ops, func(a, b processor.OperatorStatus) int { return cmp.Compare(failures(b), failures(a)) })
	}
	for _, o := range ops {
		if !strings.Contains(o.Name, s.view.Filter) {
			continue
		}
		r := t.Live.Operators[o.Name]
		dropped := web.Short(r.Dropped)
		if o.Kind == "dedup" {
			dropped = web.Short(r.Dropped+r.Duplicates) + " dup"
		}
		detail := ""
		if o.Dedup != nil {
			detail = web.DedupDetail(o.Dedup, now)
		}
		if o.Effect != nil {
			detail = web.EffectDetail(o.Effect)
		}
		rows = append(rows, []string{plain(o.Name), o.Kind, web.Short(r.In), web.Short(r.Out), dropped, web.Count(failures(o)), detail})
	}
	s.table(rows)
}

// failures counts the records that an operator could not handle.
func failures(o processor.OperatorStatus) (n uint64) {
	for kind, v := range o.Counters {
		if strings.HasPrefix(kind, "errors/") {
			n += v
		}
	}
	return n
}

func taskLag(t processor.TaskStatus) (n int64) {
	for _, in := range t.Inputs {
		n += max(in.Lag, 0)
	}
	return n
}

// tasks lists the tasks: those that do not run first.
func (s *screen) tasks(t Top, now time.Time) {
	rows := [][]string{{"TASK", "STATE", ">LAG", ">STREAM TIME", "INPUT"}}
	tasks := slices.Clone(t.Status.Tasks)
	slices.SortStableFunc(tasks, func(a, b processor.TaskStatus) int {
		if x, y := a.State == processor.TaskRunning, b.State == processor.TaskRunning; x != y {
			if y {
				return -1
			}
			return 1
		}
		if s.view.Sort == SortLag {
			return cmp.Compare(taskLag(b), taskLag(a))
		}
		return 0
	})
	for _, x := range tasks {
		if !strings.Contains(x.Name, s.view.Filter) {
			continue
		}
		stream, lag := "-", web.Count(taskLag(x))
		if !x.StreamTime.IsZero() {
			stream = web.Since(now, x.StreamTime) + " ago"
		}
		var inputs []string
		for _, in := range x.Inputs {
			inputs = append(inputs, fmt.Sprintf("%s/%d", in.Topic, in.Partition))
		}
		input := plain(strings.Join(inputs, " "))
		if x.State == processor.TaskRestoring || x.State == processor.TaskRecovering {
			lag, input = "-", restoring(x, t.Live.Restores[x.Name])
		}
		if x.Reason != "" {
			input += "   " + plain(x.Reason)
		}
		rows = append(rows, []string{plain(x.Name), string(x.State), lag, stream, input})
	}
	s.table(rows)
}

// restoring shows how far a task has come.
func restoring(t processor.TaskStatus, p web.Progress) string {
	out := web.Short(float64(t.Remaining)) + " left"
	if done := float64(p.Done); !math.IsNaN(done) {
		full := min(max(int(done*10), 0), 10)
		out = strings.Repeat("#", full) + strings.Repeat(".", 10-full) + " " + web.Percent(done) + "  " + out
	}
	if left := float64(p.Left); left > 0 {
		out += "  eta " + web.Seconds(left)
	}
	return out
}

func (s *screen) duplicates(t Top, now time.Time) {
	rows := [][]string{{"DEDUP", ">CHECKED", ">DUPLICATES", ">NOW", ">CONFLICTS", ">MISSING", ">TOO LATE", ">IDS", "OLDEST", "BLOOM"}}
	for _, o := range t.Status.Operators {
		if o.Kind != "dedup" || !strings.Contains(o.Name, s.view.Filter) {
			continue
		}
		c, r := o.Counters, t.Live.Operators[o.Name]
		share := math.NaN()
		if r.Checked > 0 {
			share = r.Duplicates / r.Checked
		}
		row := []string{
			plain(o.Name), web.Count(c["dedup/checked"]), web.Count(c["dedup/dup_committed"] + c["dedup/dup_open"]), web.Percent(share),
			web.Count(c["dedup/conflict"]), web.Count(c["dedup/missing/stop"] + c["dedup/missing/dead_letter"] + c["dedup/missing/forward"]), web.Count(c["dedup/too_late"]),
		}
		if d := o.Dedup; d != nil {
			oldest := "-"
			if !d.Oldest.IsZero() {
				oldest = web.Since(now, d.Oldest) + " of " + web.Age(d.Retention)
			}
			row = append(row, web.Short(float64(d.IDs)), oldest, web.Percent(d.BloomFill)+" full, "+web.Size(d.BloomBytes))
		} else {
			row = append(row, "-", "-", "left out: one before it drops every duplicate")
		}
		rows = append(rows, row)
	}
	s.table(rows)
}

// lastDuplicates lists where they are, the newest first.
func (s *screen) lastDuplicates(t Top, now time.Time) {
	rows := [][]string{{">AGO", "STEP", "RECORD", ">AFTER THE FIRST", "FOUND IN", "ID HASH"}}
	for _, o := range t.Status.Operators {
		if o.Dedup == nil || !strings.Contains(o.Name, s.view.Filter) {
			continue
		}
		for _, d := range slices.Backward(o.Dedup.Last) {
			rows = append(rows, []string{web.Since(now, d.Time), plain(o.Name), plain(web.DuplicateAt(d)), web.DuplicateAge(d), web.DuplicateSeen(d), plain(d.ID)})
		}
	}
	if len(rows) == 1 {
		s.line(" no duplicate since the tasks came to that process")
		return
	}
	s.table(rows)
}

// sources lists the sources outside of Kafka.
func (s *screen) sources(t Top, now time.Time) {
	rows := [][]string{{"SOURCE", "KIND", ">RECORDS", "REFUSED", "POSITION", "WAITS FOR, OR LAST ERROR", "WHERE"}}
	for _, x := range t.Sources {
		why := x.Waits
		if why == "" {
			why = web.SourceError(x, now)
		}
		rows = append(rows, []string{plain(x.Name), string(x.Kind), web.Count(x.Records), plain(web.SourceRefused(x)), plain(web.SourcePosition(x, now)), plain(why), plain(x.Where)})
	}
	s.table(rows)
}

// globals lists the global tables.
func (s *screen) globals(t Top, now time.Time) {
	rows := [][]string{{"GLOBAL TABLE", "STATE", ">ROWS", ">LAG", ">AS OF", "REASON"}}
	for _, g := range t.Status.Globals {
		asOf, lag := "-", web.Count(g.Lag)
		if !g.AsOf.IsZero() {
			asOf = web.Since(now, g.AsOf) + " ago"
		}
		if g.State == processor.GlobalReading {
			lag = web.Short(float64(g.Remaining)) + " left"
		}
		rows = append(rows, []string{plain(g.Name), string(g.State), web.Count(g.Rows), lag, asOf, plain(g.Reason)})
	}
	s.table(rows)
}

// errors lists the last failed records, the newest first.
func (s *screen) errors(t Top, now time.Time) {
	rows := [][]string{{">AGO", "STEP", "STAGE", "DONE", "RECORD", "ERROR"}}
	for _, e := range slices.Backward(t.Status.Errors) {
		if strings.Contains(e.Operator, s.view.Filter) {
			rows = append(rows, []string{web.Since(now, e.Time), plain(e.Operator), e.Stage, e.Action, plain(e.Position), plain(e.Error)})
		}
	}
	s.table(rows)
	if len(rows) == 1 {
		s.line(" none since the tasks came to that process")
	}
}

// instances lists the instances of the application.
func (s *screen) instances(t Top, now time.Time) {
	rows := [][]string{{"INSTANCE", "PAGE", ">TASKS", "WHICH"}}
	if t.Status.Instances == nil {
		s.table(rows)
		s.line(" not known yet: the consumer group is asked every ten seconds")
		return
	}
	for _, x := range t.Status.Instances.List {
		if !strings.Contains(x.Instance, s.view.Filter) {
			continue
		}
		address := cmp.Or(x.Address, "none")
		if x.Here {
			address = "this one"
		}
		rows = append(rows, []string{plain(web.InstanceName(x)), plain(address), web.Count(len(x.Tasks)), plain(web.TaskRuns(x.Tasks))})
	}
	s.table(rows)
	s.line(" as of " + web.Since(now, t.Status.Instances.AsOf) + " ago")
}

// plain takes out of a text what would drive a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}
