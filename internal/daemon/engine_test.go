package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/topologytest"
)

// TestTestsAgreeWithTheEngine runs tests of pipeline files in the runtime of streamd test and in the engine, on a model of Kafka
// with one partition for each topic and a clock that goes as the timestamps do. Both must write the same, in the same order.
func TestTestsAgreeWithTheEngine(t *testing.T) {
	names, err := os.ReadDir("templates")
	if err != nil {
		t.Fatal(err)
	}
	files := []string{}
	for _, f := range names {
		files = append(files, filepath.Join("templates", f.Name()))
	}
	more := filepath.Join(t.TempDir(), "more.yaml")
	if err := os.WriteFile(more, []byte(engineFile), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := 0
	for _, file := range append(files, more) {
		p, err := loadUnset(file, LoadConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range p.Tests {
			tests++
			t.Run(filepath.Base(file)+"/"+tc.Name, func(t *testing.T) { agree(t, p, tc) })
		}
	}
	if tests < 8 { // of fewer, something was not read
		t.Errorf("%d tests", tests)
	}
}

func agree(t *testing.T, p *pipeline.Pipeline, tc pipeline.Test) {
	topo, outputs, err := p.TestTopology()
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]pipeline.Source{}
	for _, s := range p.Sources {
		sources[s.Name] = s
	}
	input := testInput(sources, tc)
	x, err := newTryout(topo, p.Errors.Policy)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range input {
		if err := x.send(sources[tc.Input[i].Source].Topic, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.settle(p.Settle()); err != nil {
		t.Fatal(err)
	}
	d := engine(t, p, topo, outputs)
	for i, r := range input {
		if i > 0 && r.Timestamp.After(input[i-1].Timestamp) {
			d.Advance(r.Timestamp.Sub(input[i-1].Timestamp))
		}
		send(d, sources[tc.Input[i].Source].Topic, r)
	}
	d.Advance(p.Settle())
	for _, o := range outputs {
		var got, want []string
		for _, r := range topologytest.Output(d, o.Topic, serde.Bytes(), serde.Bytes()).Records() {
			want = append(want, recordText(r.Key, r.Value, r.Timestamp.UnixMilli(), r.Headers))
		}
		for _, r := range x.out[o.Topic] {
			got = append(got, recordText(r.Key, r.Value, r.Timestamp.UnixMilli(), r.Headers))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: streamd test has\n%q\nthe engine has\n%q", o.Step, got, want)
		}
	}
}

// engine makes the engine for the pipeline, one partition for each topic.
func engine(t *testing.T, p *pipeline.Pipeline, topo *topology.Topology, outputs []pipeline.Output) *topologytest.Driver {
	const dead = "dead-letters"
	opts := []topologytest.Option{
		topologytest.StartAt(testStart().AddDate(1, 0, 0)), // no timestamp is in the future
		topologytest.Partitions(dead, 1),
		topologytest.Options(processor.WithErrorPolicy(p.Errors.Policy, dead)),
	}
	for _, s := range p.Sources {
		opts = append(opts, topologytest.Partitions(s.Topic, 1))
	}
	for _, o := range outputs {
		opts = append(opts, topologytest.Partitions(o.Topic, 1))
	}
	return topologytest.New(t, topo, opts...)
}

func send(d *topologytest.Driver, topic string, r broker.Record) {
	opts := []topologytest.SendOption{topologytest.At(r.Timestamp)}
	for _, h := range r.Headers {
		opts = append(opts, topologytest.Header(h.Key, h.Value))
	}
	topologytest.Input(d, topic, serde.Bytes(), serde.Bytes()).Send(r.Key, r.Value, opts...)
	d.Run()
}

// recordText is a record, but for its ID: by its position it has another one in another cluster.
func recordText(key, value []byte, at int64, headers record.Headers) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %q %q %d", map[bool]string{true: "null"}[value == nil], key, value, at)
	for _, h := range headers {
		if h.Key != topology.DefaultIDHeader {
			fmt.Fprintf(&b, " %s=%q", h.Key, h.Value)
		}
	}
	return b.String()
}

// engineFile has what the templates do not show.
const engineFile = `version: 1
name: more
kafka: {brokers: ["localhost:9092"]}
sources:
  a: {topic: a, out_of_orderness: 5s}
  b: {topic: b, on_error: dead_letter}
types:
  User: {name: string, age: int}
  City: {name: string}
tables:
  users: {topic: users, type: User, on_error: dead_letter}
  cities: {topic: cities, type: City}
steps:
  - {name: profiles, from: users, join: {table: cities, kind: outer, value: {name: value.name, age: value.age, city: table.name}}}
  - {name: grown, on_error: skip, filter: "!has(value.age) || value.age >= 18"}
  - {name: shown, on_error: skip, map: {profile: 'value.name + " of " + value.city'}}
  - {name: profiles-out, to: {topic: profiles}}
  - {name: all-profiles, from: profiles, to: {topic: all-profiles}}
  - {name: named, from: a, on_error: skip, join: {table: grown, on: value.k, value: {id: value.id, name: table.name}}}
  - {name: named-out, to: {topic: named}}
  - {name: both, merge: [a, b]}
  - {name: unique, on_error: skip, dedup: {id: value.id, retention: 10m, scope: stream, on_missing_id: forward}}
  - {name: split, branch: {large: "value.n > 10", small: otherwise}}
  - {name: counts, from: split.small, on_error: dead_letter, aggregate: {by: [value.k, "string(value.n)"], window: {tumbling: 10s, grace: 1s}, emit: on_close, fields: {n: {count: "true"}, s: {sum: int(value.n)}}}}
  - {name: windows, to: {topic: windows, value: {n: value.n, s: value.s, from: window.start}}}
  - {name: large, from: split.large, flat_map: "[1, 2].map(x, value.n * x)"}
  - {name: out, to: {topic: out, key: "'k'"}}
  - {name: twice, from: unique.duplicate, to: {topic: twice}}
  - {name: late, from: counts.late, to: {topic: late}}
  - {name: visits, from: split.small, on_error: skip, aggregate: {by: value.k, window: {session: 5s}, fields: {last: {last: value.n}, n: {count: "int(value.n) > 1"}}}}
  - {name: seen, to: {topic: seen, value: {last: value.last, n: value.n, to: window.end}}}
  - {name: known, from: split.small, on_error: skip, aggregate: {by: value.k, fields: {first: {first: value.n}, ids: {count_distinct: value.id}}}}
  - {name: totals, to: {topic: totals}}
errors: {on_error: dead_letter, dead_letter_topic: dead}
tests:
  - name: many
    input:
      - {source: a, value: {id: 1, k: x, n: 1}, timestamp: "2026-01-01T00:00:01Z", headers: {h: v}}
      - {source: b, value: {id: 1, k: x, n: 1}, timestamp: "2026-01-01T00:00:02Z"}
      - {source: b, value: {id: 2, k: x, n: 11}, timestamp: "2026-01-01T00:00:03Z"}
      - {source: b, value: {k: y, n: 2}, timestamp: "2026-01-01T00:00:04Z"}
      - {source: b, value: {id: 3, k: y, n: "text"}, timestamp: "2026-01-01T00:00:04Z"}
      - {source: a, value: {id: 4, k: x, n: 3}, timestamp: "2026-01-01T00:00:09Z"}
      - {source: a, value: {id: 5, k: x, n: 4}, timestamp: "2026-01-01T00:00:17Z"}
      - {source: b, value: {id: 6, k: x, n: 5}, timestamp: "2026-01-01T00:00:18Z"}
      - {source: a, value: {id: 7, k: x, n: 6}, timestamp: "2026-01-01T00:00:08Z"}
      - {source: a, value: {id: 4, k: x, n: 3}, timestamp: "2026-01-01T00:00:40Z"}
      - {source: b, value: null, timestamp: "2026-01-01T00:00:41Z"}
    expect: {}
  - name: tables
    input:
      - {source: users, key: x, value: {name: Ann, age: 17}, timestamp: "2026-01-01T00:00:01Z"}
      - {source: a, value: {id: 1, k: x, n: 1}, timestamp: "2026-01-01T00:00:02Z"}
      - {source: cities, key: x, value: {name: Oslo}, timestamp: "2026-01-01T00:00:03Z"}
      - {source: cities, key: y, value: {name: Bern}, timestamp: "2026-01-01T00:00:04Z"}
      - {source: users, key: x, value: {name: Ann, age: 18}, timestamp: "2026-01-01T00:00:05Z"}
      - {source: a, value: {id: 2, k: x, n: 1}, timestamp: "2026-01-01T00:00:06Z"}
      - {source: users, key: y, value: {name: Bob, age: "old"}, timestamp: "2026-01-01T00:00:07Z"}
      - {source: users, key: y, value: {name: Bob, age: 40}, timestamp: "2026-01-01T00:00:08Z"}
      - {source: cities, key: y, value: null, timestamp: "2026-01-01T00:00:09Z"}
      - {source: users, key: x, value: null, timestamp: "2026-01-01T00:00:10Z"}
      - {source: a, value: {id: 3, k: x, n: 1}, timestamp: "2026-01-01T00:00:11Z"}
    expect: {}
  - name: a gap longer than the retention
    input:
      - {source: b, value: {id: 1, k: x, n: 1}, timestamp: "2026-01-01T00:00:01Z"}
      - {source: a, value: {id: 2, k: x, n: 2}, timestamp: "2026-01-01T00:15:00Z"}
      - {source: a, value: {id: 2, k: x, n: 2}, timestamp: "2026-01-01T00:15:01Z"}
      - {source: a, value: {id: 3, k: x, n: 3}, timestamp: "2026-01-01T00:14:51Z"}
      - {source: b, value: {id: 1, k: x, n: 1}, timestamp: "2026-01-01T00:15:02Z"}
      - {source: b, value: {id: 4, k: x, n: 4}, timestamp: "2026-01-01T00:01:00Z"}
    expect: {}
`
