package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

type (
	textRecord  = record.Record[string, string]
	textBuilder struct {
		*Builder
		in *Stream[string, string]
	}
)

// textSource begins a topology with a source of text.
func textSource(opts ...SourceOption) textBuilder {
	b := New("app")
	return textBuilder{b, From(b, "in", serde.String(), serde.String(), opts...)}
}

func toText(s *Stream[string, string], opts ...SinkOption) {
	To(s, "out", serde.String(), serde.String(), opts...)
}

func TestOperators(t *testing.T) {
	upper := func(r textRecord) (string, error) { return strings.ToUpper(r.Value), nil }
	tests := map[string]struct {
		build    func(in *Stream[string, string])
		in       []string
		want     string
		counters map[CounterID]uint64
	}{
		"pass through": {
			build:    func(in *Stream[string, string]) { toText(in) },
			in:       []string{"a=1", "=", "b="},
			want:     "a=1 = b=",
			counters: map[CounterID]uint64{{CounterIn, "in"}: 3, {CounterOut, "in"}: 3, {CounterIn, "to-out"}: 3, {CounterOut, "to-out"}: 3},
		},
		"filter": {
			build: func(in *Stream[string, string]) {
				toText(Filter(in, func(r textRecord) (bool, error) { return r.Value > "1", nil }, Name("big")))
			},
			in: []string{"a=1", "b=2", "c=3"}, want: "b=2 c=3",
			counters: map[CounterID]uint64{{CounterIn, "big"}: 3, {CounterOut, "big"}: 2, {CounterFiltered, "big"}: 1},
		},
		"map": {
			build: func(in *Stream[string, string]) {
				toText(Map(in, func(r textRecord) (string, string, error) { return r.Value, r.Key, nil }))
			},
			in: []string{"a=1"}, want: "1=a",
			counters: map[CounterID]uint64{{CounterIn, "map-1"}: 1, {CounterOut, "map-1"}: 1},
		},
		"map values": {
			build: func(in *Stream[string, string]) { toText(MapValues(in, upper)) },
			in:    []string{"a=x", "b=y"}, want: "a=X b=Y",
			counters: map[CounterID]uint64{{CounterIn, "map_values-1"}: 2, {CounterOut, "map_values-1"}: 2},
		},
		"flat map": {
			build: func(in *Stream[string, string]) {
				toText(FlatMap(in, func(r textRecord, emit Emit[string, string]) error {
					for i, w := range strings.Fields(r.Value) {
						emit(textRecord{Key: w, Value: strconv.Itoa(i)})
					}
					return nil
				}))
			},
			in: []string{"a=x y", "b=", "c=z"}, want: "x=0 y=1 z=0",
			counters: map[CounterID]uint64{{CounterIn, "flat_map-1"}: 3, {CounterOut, "flat_map-1"}: 3},
		},
		"branch with the rest used": {
			build: func(in *Stream[string, string]) {
				s := Branch(in, "kind", keyIs("a"), keyIs("b"))
				for i, x := range s {
					toText(MapValues(x, func(r textRecord) (string, error) { return r.Value + strconv.Itoa(i), nil }), Name(fmt.Sprint("to", i)))
				}
			},
			in: []string{"b=x", "c=x", "a=x"}, want: "b=x1 c=x2 a=x0",
			counters: map[CounterID]uint64{{CounterIn, "kind"}: 3, {CounterOut, "kind"}: 3, {CounterNoMatch, "kind"}: 0},
		},
		"branch with the rest dropped": {
			build: func(in *Stream[string, string]) { toText(Branch(in, "kind", keyIs("a"))[0]) },
			in:    []string{"b=x", "a=x"}, want: "a=x",
			counters: map[CounterID]uint64{{CounterIn, "kind"}: 2, {CounterOut, "kind"}: 1, {CounterNoMatch, "kind"}: 1},
		},
		"merge after a split": {
			build: func(in *Stream[string, string]) {
				toText(Merge("both", MapValues(in, upper), in))
			},
			in: []string{"a=x"}, want: "a=X a=x",
			counters: map[CounterID]uint64{{CounterIn, "both"}: 2, {CounterOut, "both"}: 2},
		},
		"two sinks in the order of declaration": {
			build: func(in *Stream[string, string]) {
				toText(in, Name("first"))
				toText(MapValues(in, upper), Name("second"))
			},
			in: []string{"a=x", "b=y"}, want: "a=x a=X b=y b=Y",
		},
		"dedup": {
			build: func(in *Stream[string, string]) {
				toText(Dedup(in, "unique", ID(func(r textRecord) record.ID { return record.StringID(r.Value) }), Retention(hour)))
			},
			in: []string{"a=1", "b=1", "c=2", "d=1"}, want: "a=1 c=2",
			counters: map[CounterID]uint64{
				{CounterIn, "unique"}: 4, {CounterOut, "unique"}: 2, {CounterChecked, "unique"}: 4,
				{CounterDuplicateCommitted, "unique"}: 2, {CounterBloomNegative, "unique"}: 2, {CounterBloomTrue, "unique"}: 2,
			},
		},
		"aggregate": {
			build: func(in *Stream[string, string]) {
				sum := func(sum int64, r textRecord) (int64, error) {
					n, err := strconv.ParseInt(r.Value, 10, 64)
					return sum + n, err
				}
				totals := Aggregate(in, "totals", serde.Int64(), sum)
				toText(MapValues(totals, func(r record.Record[string, int64]) (string, error) { return strconv.FormatInt(r.Value, 10), nil }))
			},
			in: []string{"a=1", "b=10", "a=2", "=5", "a=3"}, want: "a=1 b=10 a=3 =5 a=6",
			counters: map[CounterID]uint64{{CounterIn, "totals"}: 5, {CounterOut, "totals"}: 5},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource()
			tt.build(b.in)
			d := drive(t, b.Builder)
			d.sendText(tt.in...)
			d.expect(tt.want)
			for c, want := range tt.counters {
				d.expectCounter(c.Kind, c.Of, want)
			}
		})
	}
}

func keyIs(k string) func(textRecord) (bool, error) {
	return func(r textRecord) (bool, error) { return r.Key == k, nil }
}

const hour = 3_600_000_000_000

var errBad = errors.New("bad")
