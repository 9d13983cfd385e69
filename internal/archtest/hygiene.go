package archtest

import (
	"bytes"
	"fmt"
	"regexp"
)

// A Rule is one rule of the house.
type Rule struct {
	Name  string
	Check func(*Repo) []Finding
}

// Rules returns every rule. Files that do not parse are findings of the first one.
func Rules() []Rule {
	return []Rule{
		{"parses", func(r *Repo) []Finding { return r.bad }},
		{"imports go down", checkLevels},
		{"libraries have one importer", checkLibraries},
		{"doubles are for tests", checkTestOnly},
		{"goroutines live in runners", checkConcurrency},
		{"time is a parameter", checkPure},
		{"no panic, no init", checkPanics},
		{"documented", checkDocs},
		{"file size", checkSize},
		{"example size", checkExample},
		{"words", checkWords},
	}
}

// forbidden are words that mean that something is unfinished, or true on one machine only. They are
// written in pieces so that this file does not find itself.
var forbidden = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`), "unfinished: do it, or write what is missing where a reader looks for it"},
	{regexp.MustCompile(`(^|[^\w.])/(wo` + `rk|ro` + `ot|Us` + `ers)/\w`), "a path of one machine"},
	{regexp.MustCompile(`/ho` + `me/[a-z]+/`), "a path of one machine"},
	{regexp.MustCompile(`<<<<<` + `<< |>>>>>` + `>> `), "a merge that was not finished"},
}

// checkWords looks for forbidden words in every text file.
func checkWords(r *Repo) []Finding {
	var found []Finding
	for _, t := range r.Text {
		n := 0
		for line := range bytes.Lines(t.Data) {
			n++
			for _, w := range forbidden {
				if m := w.pattern.Find(line); m != nil {
					found = append(found, Finding{t.Path, n, fmt.Sprintf("%q: %s", bytes.TrimSpace(m), w.why)})
				}
			}
		}
	}
	return found
}

// example is the program that shows how little embedding takes; its length is a promise.
const (
	example         = "examples/embed/main.go"
	maxExampleLines = 40
)

// checkExample counts the example's lines, without blank ones and comments.
func checkExample(r *Repo) []Finding {
	for _, t := range r.Text {
		if t.Path != example {
			continue
		}
		lines := 0
		for line := range bytes.Lines(t.Data) {
			line = bytes.TrimSpace(line)
			if len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
				lines++
			}
		}
		if lines > maxExampleLines {
			return []Finding{{t.Path, 0, fmt.Sprintf("%d lines of code: at most %d", lines, maxExampleLines)}}
		}
	}
	return nil
}
