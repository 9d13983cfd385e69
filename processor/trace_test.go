package processor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

const (
	someTrace   = "4bf92f3577b34da6a3ce929d0e0e4736"
	someContext = "00-" + someTrace + "-00f067aa0ba902b7-01"
)

// traced runs records of the chain of tapTask with a context each, and returns the traceparents of the outputs, and what is told.
func traced(t *testing.T, task *Task, abort bool, values ...int64) (headers []string, told []RecordTrace) {
	t.Helper()
	task.AddRecords(tracedBatch(values...))
	for n := 1; n > 0; {
		var err error
		if n, err = task.Process(start, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range task.out {
		headers = append(headers, fmt.Sprint(len(o.Headers))+" "+header(o.Headers, record.TraceHeader))
	}
	told = append(told, task.traces.told...)
	if abort {
		task.Abort()
	}
	return headers, told
}

func tracedBatch(values ...int64) broker.Batch {
	x := broker.Batch{TopicPartition: record.TopicPartition{Topic: "in"}, Next: record.Offset(len(values))}
	for i, v := range values {
		r := tapRecord(record.Offset(i), v)
		r.Headers = record.Headers{{Key: record.TraceHeader, Value: []byte(someContext)}, {Key: "tracestate", Value: []byte("a=b")}, {Key: "record-id", Value: []byte("id")}}
		x.Records = append(x.Records, r)
	}
	return x
}

func header(h record.Headers, key string) string {
	var all []string
	for _, x := range h {
		if x.Key == key {
			all = append(all, string(x.Value))
		}
	}
	return strings.Join(all, "+")
}

// TestTraces: outputs name a span that is this record's, in the same trace, and what is told is what they name.
func TestTraces(t *testing.T) {
	task := tapTask(t, nil)
	task.traces.app = "app"
	headers, told := traced(t, task, false, 1, 1, 7, 2) // a repeat, one that fails
	if len(headers) != 2 || len(told) != 4 {
		t.Fatalf("%d outputs, %d told", len(headers), len(told))
	}
	for i, at := range []int{0, 3} {
		if want := fmt.Sprintf("3 00-%s-%x-01", someTrace, told[at].Span); headers[i] != want {
			t.Errorf("output %d: %s, want %s", i, headers[i], want)
		}
	}
	if headers[0] == headers[1] {
		t.Error("two records are one span")
	}
	first := told[0]
	if first.State != "a=b" || first.ID != "id" || first.Outputs != 1 || first.Position.String() != "in/0@0" || !first.Begin.Equal(start) || fmt.Sprintf("%x", first.Parent) != "00f067aa0ba902b7" {
		t.Errorf("told: %+v", first)
	}
	if told[1].Outputs != 0 || told[1].Err != "" || !strings.Contains(told[2].Err, "seven") {
		t.Errorf("of a repeat %+v, of a failure %+v", told[1], told[2])
	}
}

// TestTracesAgain: a record that is run again, in other portions, by another task, writes the same bytes; another application, or
// record, others.
func TestTracesAgain(t *testing.T) {
	run := func(app string, values ...int64) string {
		task := tapTask(t, nil)
		task.traces.app = app
		before, _ := traced(t, task, true, values...)
		if len(task.traces.told) != 0 || len(task.out) != 0 {
			t.Fatal("an aborted transaction is told")
		}
		after, _ := traced(t, task, false, values...)
		if strings.Join(before, " ") != strings.Join(after, " ") {
			t.Fatalf("first %v, then %v", before, after)
		}
		return strings.Join(after, " ")
	}
	if a, b := run("app", 1, 2, 3), run("app", 1, 2, 3); a != b {
		t.Errorf("one task writes %s, another %s", a, b)
	}
	if a, b := run("app", 1), run("other", 1); a == b {
		t.Errorf("two applications have one span: %s", a)
	}
}

// TestNotTraced: without tracing, and of what is not sampled or not well-formed, headers pass as they came.
func TestNotTraced(t *testing.T) {
	const id = "-00f067aa0ba902b7-"
	for _, c := range []struct{ name, app, value string }{
		{"off", "", someContext},
		{"not sampled", "app", "00-" + someTrace + id + "00"},
		{"short", "app", someContext[:54]},
		{"long", "app", someContext + "-0"},
		{"capitals", "app", strings.ToUpper(someContext)},
		{"no digits", "app", strings.Replace(someContext, "4b", "zz", 1)},
		{"no trace", "app", "00-" + strings.Repeat("0", 32) + id + "01"},
		{"no parent", "app", "00-" + someTrace + "-0000000000000000-01"},
		{"version ff", "app", "ff" + someContext[2:]},
		{"of a later version, wrong", "app", "01" + someContext[2:] + "x"},
		{"empty", "app", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			task := tapTask(t, nil)
			task.traces.app = c.app
			x := tracedBatch(1)
			x.Records[0].Headers[0].Value = []byte(c.value)
			task.AddRecords(x)
			if _, err := task.Process(start, 10); err != nil {
				t.Fatal(err)
			}
			if got := header(task.out[0].Headers, record.TraceHeader); got != c.value || len(task.traces.told) != 0 {
				t.Errorf("the output has %q, told: %v", got, task.traces.told)
			}
		})
	}
	var r RecordTrace
	h := record.Header{Key: record.TraceHeader, Value: []byte(someContext)}
	if r.read(record.Headers{h, h}) {
		t.Error("one of two contexts is believed")
	}
	h.Value = []byte("01" + someContext[2:] + "-more")
	if !r.read(record.Headers{h}) {
		t.Error("a later version is not read as far as it is known")
	}
}

// TestTracesAreBounded: what is told has an end, what is written has not.
func TestTracesAreBounded(t *testing.T) {
	task := tapTask(t, nil)
	task.traces.app = "app"
	values := make([]int64, maxTraced+3)
	for i := range values {
		values[i] = 100 + int64(i) // filtered: nothing is written
	}
	if _, told := traced(t, task, false, values...); len(told) != maxTraced || task.traces.untold != 3 {
		t.Errorf("%d told, %d not", len(told), task.traces.untold)
	}
}
