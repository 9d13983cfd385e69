package daemon

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// ErrTests: a test of a pipeline file failed. What failed has been printed.
var ErrTests = errors.New("tests failed")

// TestConfig says which tests of pipeline files are run and how that is told.
type TestConfig struct {
	Load LoadConfig
	// Run selects tests by name; nil: all.
	Run *regexp.Regexp
	// Verbose prints what came out of tests that passed, too.
	Verbose bool
	// JUnit is the file for a report in JUnit's XML; empty: none.
	JUnit string
}

// testResult is the outcome of one test.
type testResult struct {
	file, name string
	place      string // for a reader: tests[1] at line 71
	in, out    int
	took       time.Duration
	problems   []string
	outputs    []string // what came out, for Verbose
}

// Test runs the tests of pipeline files in memory, with the operators that run uses, and prints their outcome. ErrTests if one
// failed; an *pipeline.Error if a file cannot be read.
func Test(w io.Writer, files []string, c TestConfig) error {
	var results []testResult
	var broken []error
	for _, file := range files {
		p, err := loadUnset(file, c.Load)
		if err != nil {
			broken = append(broken, err)
			continue
		}
		for i, t := range p.Tests {
			if c.Run != nil && !c.Run.MatchString(t.Name) {
				continue
			}
			r := runTest(p, i, t)
			results = append(results, r)
			if err := r.write(w, c.Verbose); err != nil {
				return err
			}
		}
	}
	failed := 0
	for _, r := range results {
		if len(r.problems) > 0 {
			failed++
		}
	}
	if c.JUnit != "" {
		if err := writeJUnit(c.JUnit, results); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d passed, %d failed\n", len(results)-failed, failed)
	switch {
	case err != nil:
		return err
	case len(broken) > 0:
		return errors.Join(broken...)
	case failed > 0:
		return ErrTests
	}
	return nil
}

// write prints the line of a test, and what is wrong below it.
func (r *testResult) write(w io.Writer, verbose bool) error {
	var b bytes.Buffer
	if len(r.problems) == 0 {
		fmt.Fprintf(&b, "ok    %s   %s   %d in, %d out\n", r.file, r.name, r.in, r.out)
	} else {
		fmt.Fprintf(&b, "FAIL  %s   %s   %s\n", r.file, r.name, r.place)
	}
	lines := r.problems
	if verbose {
		lines = slices.Concat(r.problems, r.outputs)
	}
	for _, l := range lines {
		b.WriteString("      " + strings.ReplaceAll(l, "\n", "\n      ") + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// testStart is the time of a test's first record, if the file does not say another one.
func testStart() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// runTest runs one test. Whatever goes wrong is one of its problems.
func runTest(p *pipeline.Pipeline, i int, t pipeline.Test) testResult {
	r := testResult{file: p.File, name: t.Name, place: fmt.Sprintf("tests[%d] at line %d", i, t.Line), in: len(t.Input)}
	began := time.Now()
	topo, outputs, err := p.TestTopology()
	if err != nil {
		r.problems = append(r.problems, err.Error())
		return r
	}
	if err := r.drive(p, t, topo, outputs); err != nil {
		r.problems = append(r.problems, err.Error())
	}
	r.took = time.Since(began)
	return r
}

// drive sends the input and compares what comes out.
func (r *testResult) drive(p *pipeline.Pipeline, t pipeline.Test, topo *topology.Topology, outputs []pipeline.Output) error {
	x, err := newTryout(topo, p.Errors.Policy)
	if err != nil {
		return err
	}
	sources := map[string]pipeline.Source{}
	for _, s := range p.Sources {
		sources[s.Name] = s
	}
	for i, rec := range testInput(sources, t) {
		if err := x.send(sources[t.Input[i].Source].Topic, rec); err != nil {
			return fmt.Errorf("input[%d] at line %d: %w", i, t.Input[i].Line, err)
		}
	}
	if err := x.settle(p.Settle()); err != nil {
		return err
	}
	for _, o := range outputs {
		r.compare(o, t, x.out[o.Topic])
	}
	if len(r.problems) > 0 {
		for _, d := range x.dead {
			r.problems = append(r.problems, fmt.Sprintf("dead letter: %s: %v", testRecord{key: d.key, value: d.value}, d.err))
		}
	}
	return nil
}

// compare compares what a step has written with what was expected of it.
func (r *testResult) compare(o pipeline.Output, t pipeline.Test, got []topology.SinkRecord) {
	r.out += len(got)
	actual := make([]testRecord, len(got))
	for i, g := range got {
		actual[i] = testRecord{key: g.Key, value: g.Value, at: g.Timestamp, headers: g.Headers}
		r.outputs = append(r.outputs, o.Step+": "+actual[i].String())
	}
	if o.Upsert {
		actual = lastOfEach(actual)
	}
	for _, e := range t.Expect {
		if e.Step == o.Step {
			r.problems = append(r.problems, compareOutput(o.Step, e.Records, actual)...)
		}
	}
}

// testInput is the input as it stands in the topics.
func testInput(sources map[string]pipeline.Source, t pipeline.Test) []broker.Record {
	at := testStart()
	out := make([]broker.Record, len(t.Input))
	for i, rec := range t.Input {
		if rec.Timestamp != nil {
			at = *rec.Timestamp
		}
		out[i] = broker.Record{Timestamp: at, Key: keyBytes(rec.Key), Value: valueBytes(rec.Value, sources[rec.Source].Format)}
		for _, h := range rec.Headers {
			out[i].Headers = append(out[i].Headers, record.Header{Key: h[0], Value: []byte(h[1])})
		}
	}
	return out
}

// keyBytes is a key of a test as it stands in a topic: a text without quotes, a list as JSON.
func keyBytes(b []byte) []byte {
	var text string
	switch {
	case b == nil || string(b) == "null":
		return nil
	case json.Unmarshal(b, &text) == nil:
		return []byte(text)
	}
	return b
}

// valueBytes is a value of a test as it stands in a topic.
func valueBytes(b []byte, format string) []byte {
	if string(b) == "null" {
		return nil
	}
	if format == "string" || format == "bytes" {
		return keyBytes(b)
	}
	return b
}

// junit is the report in the form that CI systems read.
type junit struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitFailure `xml:"failure"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func writeJUnit(path string, results []testResult) error {
	suite := junit{Name: "streamd", Tests: len(results)}
	for _, r := range results {
		c := junitCase{Class: r.file, Name: r.name, Time: strconv.FormatFloat(r.took.Seconds(), 'f', 3, 64)}
		if len(r.problems) > 0 {
			suite.Failures++
			c.Failure = &junitFailure{Message: r.place, Text: strings.Join(r.problems, "\n")}
		}
		suite.Cases = append(suite.Cases, c)
	}
	data, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return fmt.Errorf("test report: %w", err)
	}
	if err := os.WriteFile(path, append([]byte(xml.Header), append(data, '\n')...), 0o644); err != nil {
		return fmt.Errorf("test report: %w", err)
	}
	return nil
}
