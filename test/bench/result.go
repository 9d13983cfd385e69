package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// result is one line of the meter: "KIND | DESCRIPTION | NAME=VALUE ... [| CHECK]".
type result struct {
	kind    string
	text    string
	figures map[string]float64
	wrong   bool // the checker found the output wrong
}

// parseResult reads a line of the meter. Other lines of its output are not ok.
func parseResult(line string) (r result, ok bool) {
	kind, rest, ok := strings.Cut(strings.TrimSpace(line), " | ")
	if !ok || !slices.Contains([]string{"run", "latency", "recovery", "recovery-check"}, kind) {
		return result{}, false
	}
	// The description holds settings, which look like figures.
	_, rest, ok = strings.Cut(rest, " | ")
	if !ok {
		return result{}, false
	}
	r = result{kind: kind, text: strings.TrimSpace(line), figures: map[string]float64{}}
	checked := false
	for _, field := range strings.Fields(rest) {
		switch field {
		case "CORRECT":
			checked = true
		case "WRONG", "FAILED":
			r.wrong = true
		}
		name, value, ok := strings.Cut(field, "=")
		if !ok {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			r.figures[name] = v
		}
	}
	r.wrong = r.wrong || (kind == "run" || kind == "recovery-check") && !checked || r.figures["lost"] > 0
	return r, true
}

// series is what the runs of one system on one workload gave.
type series struct {
	system  string
	results []result
}

// journal keeps the meter's lines of each run in a file.
type journal struct {
	path    string
	entries []entry
}

// entry is one run.
type entry struct {
	Title  string   `json:"title"`
	System string   `json:"system"`
	Lines  []string `json:"lines"`
}

// openJournal reads what earlier calls wrote.
func openJournal(path string) (*journal, error) {
	j := &journal{path: path}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		j.entries = append(j.entries, e)
	}
	return j, nil
}

// add appends a run.
func (j *journal) add(title, system string, results []result) error {
	e := entry{Title: title, System: system}
	for _, r := range results {
		e.Lines = append(e.Lines, r.text)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		_ = f.Close()
		return err
	}
	j.entries = append(j.entries, e)
	return f.Close()
}

// count is the number of runs of a system.
func (j *journal) count(title, system string) (n int) {
	for _, e := range j.entries {
		if e.Title == title && e.System == system {
			n++
		}
	}
	return n
}

// series returns the runs of a system.
func (j *journal) series(title, system string) series {
	s := series{system: system}
	for _, e := range j.entries {
		if e.Title != title || e.System != system {
			continue
		}
		for _, line := range e.Lines {
			if r, ok := parseResult(line); ok {
				s.results = append(s.results, r)
			}
		}
	}
	return s
}

// median returns the median of a figure, not ok if no run has it.
func (s series) median(figure string) (float64, bool) {
	var v []float64
	for _, r := range s.results {
		if x, ok := r.figures[figure]; ok {
			v = append(v, x)
		}
	}
	if len(v) == 0 {
		return 0, false
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2, true
	}
	return v[len(v)/2], true
}

// best returns the best median of a figure among some series: the highest or the lowest.
func best(all []series, figure string, highest bool) (float64, bool) {
	found, out := false, 0.0
	for _, s := range all {
		v, ok := s.median(figure)
		if ok && (!found || highest == (v > out)) {
			found, out = true, v
		}
	}
	return out, found
}
