package pipeline

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
)

// at is so many seconds after the start of topologytest's clock.
func at(seconds int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC)
}

// driven is a pipeline on the real engine, in memory.
type driven struct {
	*topologytest.Driver
	t *testing.T
}

func drive(t *testing.T, text string) driven {
	t.Helper()
	topo, err := mustLoad(t, text, Options{}).Topology()
	if err != nil {
		t.Fatal(err)
	}
	return driven{topologytest.New(t, topo, topologytest.StartAt(at(3600))), t}
}

func (d driven) send(topic, key, value string, seconds int, headers ...string) {
	opts := []topologytest.SendOption{topologytest.At(at(seconds))}
	for i := 0; i+1 < len(headers); i += 2 {
		opts = append(opts, topologytest.Header(headers[i], []byte(headers[i+1])))
	}
	topologytest.Input(d.Driver, topic, serde.String(), serde.String()).Send(key, value, opts...)
	d.Run()
}

func (d driven) want(topic string, lines ...string) {
	d.t.Helper()
	got := strings.Join(topologytest.Output(d.Driver, topic, serde.String(), serde.String()).Values(), "\n")
	if want := strings.Join(lines, "\n"); got != want {
		d.t.Errorf("%s has\n%s\nwant\n%s", topic, got, want)
	}
}

const windowHead = "version: 1\nname: test\nkafka: {brokers: [\"localhost:9092\"]}\nsources: {in: {topic: in}}\n"

// TestWindows: each kind, by update and by close. Of a session and of sliding windows the states are put together.
func TestWindows(t *testing.T) {
	for _, c := range []struct {
		name, window, emit string
		want               []string // start, end, count, sum, first and last
	}{
		{"tumbling on close", "tumbling: 10s", "on_close", []string{"00 10 2 3 1 2", "10 20 1 4 4 4"}},
		{"tumbling on update", "tumbling: 10s", "on_update", []string{"00 10 1 1 1 1", "00 10 2 3 1 2", "10 20 1 4 4 4"}},
		{"hopping", "hopping: {size: 10s, every: 5s}", "on_close", []string{"00 10 2 3 1 2", "05 15 2 6 2 4", "10 20 1 4 4 4", "55 05 1 1 1 1"}},
		{"sliding", "sliding: 5s", "on_close", []string{"01 06 2 3 1 2", "07 12 1 4 4 4", "56 01 1 1 1 1"}},
		{"session", "session: 5s, grace: 10s", "on_close", []string{"01 11 2 3 1 2", "12 17 1 4 4 4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := drive(t, windowHead+`steps:
  - name: sums
    aggregate:
      by: key
      window: {`+c.window+`}
      emit: `+c.emit+`
      fields: {n: {count: true}, s: {sum: int(value.v)}, first: {first: value.v}, last: {last: value.v}}
  - name: out
    to:
      topic: out
      value:
        t: string(window.start).substring(17, 19) + " " + string(window.end).substring(17, 19) + " " + string(value.n) + " " + string(value.s) + " " + string(value.first) + " " + string(value.last)
`)
			d.send("in", "k", `{"v":1}`, 1)
			d.send("in", "k", `{"v":2}`, 6)
			d.send("in", "k", `{"v":4}`, 12)
			d.Advance(2 * time.Minute)
			var got []string
			for _, v := range topologytest.Output(d.Driver, "out", serde.String(), serde.String()).Values() {
				got = append(got, strings.TrimSuffix(strings.TrimPrefix(v, `{"t":"`), `"}`))
			}
			if c.emit == "on_close" {
				slices.Sort(got)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestLate: what comes when its window is closed goes to the stream for it, or by on_late.
func TestLate(t *testing.T) {
	const steps = `steps:
  - name: sums
    aggregate: {by: key, window: {tumbling: 10s, grace: 5s}, emit: on_close, fields: {n: {count: true}}%s}
  - {name: out, to: {topic: out, value: {n: value.n, from: window.start}}}
`
	d := drive(t, windowHead+strings.Replace(steps, "%s", "", 1)+"  - {name: late, from: sums.late, to: {topic: late}}\n")
	d.send("in", "k", `{"v":1}`, 1)
	d.send("in", "k", `{"v":2}`, 14)
	d.send("in", "k", `{"v":3}`, 2) // within the grace
	d.send("in", "k", `{"v":4}`, 15)
	d.send("in", "k", `{"v":5}`, 3) // too late
	d.want("late", `{"v":5}`)
	d.want("out", `{"n":2,"from":"2026-01-01T00:00:00Z"}`)

	d = drive(t, windowHead+strings.Replace(steps, "%s", ", on_late: stop", 1))
	d.send("in", "k", `{"v":1}`, 1)
	d.send("in", "k", `{"v":2}`, 15)
	topologytest.Input(d.Driver, "in", serde.String(), serde.String()).Send("k", `{"v":3}`, topologytest.At(at(2)))
	if err := d.ExpectStop(); !strings.Contains(err.Error(), "later than its windows") {
		t.Errorf("stopped by %v", err)
	}
}

// TestDedupOutputs: each record goes to the stream that is read, and to the policy where none is.
func TestDedupOutputs(t *testing.T) {
	d := drive(t, windowHead+`steps:
  - name: unique
    dedup: {id: value.id, retention: 60s, scope: partition, compare: payload}
  - {name: out, from: unique.unique, to: {topic: out}}
  - {name: copies, from: unique.duplicate, to: {topic: copies}}
  - {name: conflicts, from: unique.conflict, to: {topic: conflicts}}
  - {name: old, from: unique.too_late, to: {topic: old}}
`)
	d.send("in", "k", `{"id":"a","v":1}`, 1000)
	d.send("in", "k", `{"id":"a","v":1}`, 1001)
	d.send("in", "k", `{"id":"a","v":2}`, 1002)
	d.send("in", "k", `{"id":"b","v":1}`, 10)
	d.want("out", `{"id":"a","v":1}`)
	d.want("copies", `{"id":"a","v":1}`)
	d.want("conflicts", `{"id":"a","v":2}`)
	d.want("old", `{"id":"b","v":1}`)
}

// TestFirstAndLastBy: by decides, not the order of arrival; of equal ones the earlier arrival is the first and the later the last.
func TestFirstAndLastBy(t *testing.T) {
	d := drive(t, windowHead+`steps:
  - name: ends
    aggregate: {by: key, fields: {first: {first: value.v, by: value.seq}, last: {last: value.v, by: value.seq}}}
  - {name: out, to: {topic: out}}
`)
	for i, v := range []string{`{"v":"a","seq":5}`, `{"v":"b","seq":3}`, `{"v":"c","seq":4}`, `{"v":"d","seq":3}`, `{"v":"e","seq":5}`} {
		d.send("in", "k", v, i)
	}
	d.want("out", `{"first":"a","last":"a"}`, `{"first":"b","last":"a"}`, `{"first":"b","last":"a"}`, `{"first":"b","last":"a"}`, `{"first":"b","last":"e"}`)
}

// TestWindowOfWindows: behind a window an aggregate by key needs no topic, and has windows of its own.
func TestWindowOfWindows(t *testing.T) {
	text := windowHead + `steps:
  - name: per-second
    aggregate: {by: key, window: {tumbling: 1s}, emit: on_close, fields: {n: {count: true}}}
  - name: per-minute
    aggregate: {by: key, window: {tumbling: 1m}, emit: on_close, fields: {most: {max: value.n}}}
  - {name: out, to: {topic: out, value: {most: value.most, to: window.end}}}
`
	topo, err := mustLoad(t, text, Options{}).Topology()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(topo.Subtopologies()); n != 1 {
		t.Errorf("%d sub-topologies, want 1:\n%s", n, topo.Describe())
	}
	d := drive(t, text)
	for _, s := range []int{1, 1, 1, 2, 2, 61} {
		d.send("in", "k", `{}`, s)
	}
	d.Advance(3 * time.Minute)
	d.want("out", `{"most":3,"to":"2026-01-01T00:01:00Z"}`, `{"most":1,"to":"2026-01-01T00:02:00Z"}`)
}

// TestMergedStates: whatever a state is made of, put together from two it is the same as made in one go.
func TestMergedStates(t *testing.T) {
	text := windowHead + `steps:
  - name: all
    aggregate:
      by: key
      window: {session: 10s, grace: 30s}
      emit: on_close
      fields:
        count: {count: value.v > 1}
        sum: {sum: value.v}
        min: {min: value.v}
        max: {max: value.v}
        avg: {avg: value.v}
        first: {first: value.v}
        last: {last: value.v}
        distinct: {count_distinct: value.v}
        lowest: {first: value.v, by: value.v}
        highest: {last: value.v, by: value.v}
  - {name: out, to: {topic: out, value: value}}
`
	whole, parts := drive(t, text), drive(t, text)
	whole.send("in", "k", `{"v":1}`, 0)
	whole.send("in", "k", `{"v":5}`, 8)
	whole.send("in", "k", `{"v":3}`, 16)
	whole.Advance(2 * time.Minute)
	parts.send("in", "k", `{"v":1}`, 0)
	parts.send("in", "k", `{"v":3}`, 16) // two sessions, until the next one joins them
	parts.send("in", "k", `{"v":5}`, 8)
	parts.Advance(2 * time.Minute)
	whole.want("out", `{"count":2,"sum":"9","min":1,"max":5,"avg":"3","first":1,"last":3,"distinct":3,"lowest":1,"highest":5}`)
	parts.want("out", `{"count":2,"sum":"9","min":1,"max":5,"avg":"3","first":1,"last":5,"distinct":3,"lowest":1,"highest":5}`)
}

// put sends a record and does not wait for what comes of it.
func (d driven) put(topic, key, value string, seconds int) {
	topologytest.Input(d.Driver, topic, serde.String(), serde.String()).Send(key, value, topologytest.At(at(seconds)))
}

// sendTo is send to the topic of a table, if the join reads it.
func (d driven) sendTo(join, topic, key, value string, seconds int) {
	if strings.Contains(join, "table: "+topic) {
		d.send(topic, key, value, seconds)
	}
}

// delete is sendTo of a record without a value.
func (d driven) delete(join, topic, key string, seconds int) {
	if strings.Contains(join, topic) {
		topologytest.Input(d.Driver, topic, serde.String(), serde.Optional(serde.String())).Send(key, nil, topologytest.At(at(seconds)))
		d.Run()
	}
}

// wantRows is want of values that may be null.
func (d driven) wantRows(topic string, lines ...string) {
	d.t.Helper()
	var got []string
	for _, v := range topologytest.Output(d.Driver, topic, serde.String(), serde.Optional(serde.String())).Values() {
		if v == nil {
			got = append(got, "<nil>")
			continue
		}
		got = append(got, *v)
	}
	if !slices.Equal(got, lines) {
		d.t.Errorf("%s has\n%s\nwant\n%s", topic, strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}
