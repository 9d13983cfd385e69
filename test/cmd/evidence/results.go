package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The lines that this command writes into a log.
const (
	headerMark = "EVIDENCE"
	resultMark = "RESULT"
)

// header is what is known of a layer before it runs.
type header struct {
	Layer, What, Command, Commit, Go string
	Date                             time.Time
	Cores                            int
}

func (h header) write(w io.Writer) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s %s\n", headerMark, data)
	return err
}

// layerResult is a log, read.
type layerResult struct {
	header
	Result, Took string
	Figures      []string
	Planted      []plantedResult
}

// plantedResult is a bug and how many seeds it took to find it.
type plantedResult struct{ Layer, Name, Seeds, Limit, Error string }

type results []layerResult

var (
	// logLine is what t.Logf prints: the figures of a test are its lines that begin with a number.
	logLine = regexp.MustCompile(`^\s+\w+\.go:\d+: (\d[\d,.]* [a-z].*)$`)
	planted = regexp.MustCompile(`^PLANTED layer=(\S+) seeds=(\S+) limit=(\d+) bug=("(?:[^"\\]|\\.)*") error=("(?:[^"\\]|\\.)*")`)
)

// maxFigures bounds what one layer takes of the table.
const maxFigures = 8

// readLogs reads the logs of a directory, in the order of their names.
func readLogs(dir string) (results, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("no logs in %s", dir), err)
	}
	var out results
	for _, name := range files {
		r, err := readLog(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func readLog(name string) (layerResult, error) {
	f, err := os.Open(name)
	if err != nil {
		return layerResult{}, err
	}
	defer f.Close()
	r, passed := layerResult{Result: "RED (not finished)"}, 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, headerMark+" "); ok {
			if err := json.Unmarshal([]byte(rest), &r.header); err != nil {
				return r, err
			}
		}
		if rest, ok := strings.CutPrefix(line, resultMark+" "); ok {
			r.Result, r.Took, _ = strings.Cut(rest, " ")
		}
		if strings.HasPrefix(strings.TrimSpace(line), "--- PASS: ") {
			passed++
		}
		// Not what spin says of each model: the broken variants have errors, as they must.
		if m := logLine.FindStringSubmatch(line); m != nil && len(r.Figures) < maxFigures && !strings.Contains(m[1], " states, ") {
			r.Figures = append(r.Figures, m[1])
		}
		if m := planted.FindStringSubmatch(line); m != nil {
			p := plantedResult{Layer: m[1], Seeds: m[2], Limit: m[3]}
			if p.Name, err = strconv.Unquote(m[4]); err == nil {
				p.Error, err = strconv.Unquote(m[5])
			}
			if err != nil {
				return r, fmt.Errorf("line %q: %w", line, err)
			}
			r.Planted = append(r.Planted, p)
		}
	}
	if r.Layer == "" {
		return r, errors.New("no header: not a log of this command")
	}
	r.Figures = append(r.Figures, fmt.Sprintf("%d tests passed", passed))
	return r, lines.Err()
}

func (rs results) red() bool {
	for _, r := range rs {
		if r.Result != "green" {
			return true
		}
	}
	return false
}

// entry is what the file says of one layer, line by line.
type entry struct {
	layer, row, command string
	planted             []string
}

func (r layerResult) entry() entry {
	e := entry{
		layer:   r.Layer,
		row:     fmt.Sprintf("| %s | %s | %s | %s | %s | `%s` | %s |", r.Layer, r.What, r.Result, cell(strings.Join(r.Figures, "<br>")), r.Took, r.Commit, r.Date.Format("2006-01-02 15:04")),
		command: fmt.Sprintf("- %s: `%s` (%d cores, %s)", r.Layer, r.Command, r.Cores, r.Go),
	}
	for _, p := range r.Planted {
		e.planted = append(e.planted, fmt.Sprintf("| %s | %s | %s | %s | %s |", p.Layer, cell(p.Name), p.Seeds, p.Limit, cell(p.Error)))
	}
	return e
}

// took is how long the layer took; none if it is one of planted bugs.
func (e entry) took() time.Duration {
	cells := strings.Split(strings.ReplaceAll(e.row, `\|`, ""), "|")
	if len(cells) < 6 || strings.HasPrefix(e.layer, plantedPrefix) {
		return 0
	}
	d, _ := time.ParseDuration(strings.TrimSpace(cells[5])) // a layer that was broken off has none
	return d
}

// plantedPrefix is what the names of the layers of planted bugs begin with; the rows of their bugs say the rest.
const plantedPrefix = "planted "

const (
	layersHead  = "| layer | what | result | figures | took | commit | date (UTC) |\n|---|---|---|---|---|---|---|\n"
	commandHead = "Commands, each on the machine named behind it:\n\n"
	plantedHead = "Seeds (or kills) until the bug is found, of those that it may take. \"none\" fails the run.\n\n| layer | bug | found after | of | by |\n|---|---|---|---|---|\n"
)

// readEntries reads what block wrote.
func readEntries(block string) (out []entry) {
	at := map[string]int{}
	section := func(head string) []string {
		_, rest, _ := strings.Cut(block, head)
		lines, _, _ := strings.Cut(rest, "\n\n")
		return strings.Split(strings.TrimSpace(lines), "\n")
	}
	for _, row := range section(layersHead) {
		if layer, _, ok := strings.Cut(strings.TrimPrefix(row, "| "), " | "); ok {
			at[layer] = len(out)
			out = append(out, entry{layer: layer, row: row})
		}
	}
	for _, line := range section(commandHead) {
		layer, _, _ := strings.Cut(strings.TrimPrefix(line, "- "), ": ")
		if n, ok := at[layer]; ok {
			out[n].command = line
		}
	}
	for _, row := range section(plantedHead) {
		layer, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		if n, ok := at[plantedPrefix+layer]; ok {
			out[n].planted = append(out[n].planted, row)
		}
	}
	return out
}

// entries are those of the results, and of layers without a log what was said of them before.
func (rs results) entries(before []entry) []entry {
	var out []entry
	for _, r := range rs {
		out = append(out, r.entry())
	}
	for _, e := range before {
		if !slices.ContainsFunc(out, func(o entry) bool { return o.layer == e.layer }) {
			out = append(out, e)
		}
	}
	order := map[string]int{}
	for n, l := range append(layers(), plantedLayers()...) {
		order[l.Name] = n
	}
	slices.SortStableFunc(out, func(a, b entry) int { return order[a.layer] - order[b.layer] })
	return out
}

// block is the part of the file that is replaced.
func block(entries []entry) string {
	var b strings.Builder
	var took time.Duration
	b.WriteString(layersHead)
	for _, e := range entries {
		fmt.Fprintln(&b, e.row)
		took += e.took()
	}
	fmt.Fprintf(&b, "\nAll of them, were they run one after the other: %v.\n\n", took)
	b.WriteString(commandHead)
	for _, e := range entries {
		fmt.Fprintln(&b, e.command)
	}
	b.WriteString("\n## Planted bugs\n\n")
	any := false
	for _, e := range entries {
		for _, row := range e.planted {
			if !any {
				b.WriteString(plantedHead)
				any = true
			}
			fmt.Fprintln(&b, row)
		}
	}
	if !any {
		b.WriteString("Not run yet: `make evidence`.\n")
	}
	return b.String()
}

// cell keeps a text within its cell of a table.
func cell(s string) string {
	const most = 400
	s = strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

const (
	blockBegin = "<!-- results: written by make soak, do not edit -->"
	blockEnd   = "<!-- end of results -->"
)

// write replaces the results in the file. Layers that were not run keep their rows.
func write(path string, rs results) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), blockBegin)
	old, after, ok2 := strings.Cut(rest, blockEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the results: %s ... %s", path, blockBegin, blockEnd)
	}
	return os.WriteFile(path, []byte(before+blockBegin+"\n\n"+block(rs.entries(readEntries(old)))+"\n"+blockEnd+after), 0o644)
}
