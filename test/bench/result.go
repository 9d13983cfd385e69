package main

import (
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
	r = result{kind: kind, text: line, figures: map[string]float64{}}
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
