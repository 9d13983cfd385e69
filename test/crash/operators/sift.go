package operators

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// retention is how long the IDs of bills are remembered.
const retention = 10 * time.Second

// The ways that a bill may go.
const (
	unique    = "unique"
	duplicate = "duplicate"
	conflict  = "conflict"
	tooLate   = "too-late"
)

// sift writes which way each bill went: all four in one stream, so that their order is seen as well.
func sift(bills *topology.Stream[string, Event]) {
	real := topology.Filter(bills, func(r event) (bool, error) { return r.Value.ID != "end", nil }, topology.Name("real-bills"))
	s := topology.DedupSplit(real, "sift", topology.ID(func(r event) record.ID { return record.StringID(r.Value.ID) }),
		topology.Retention(retention), topology.ComparePayload())
	all := topology.Merge("sifted-again", went(s.Unique, unique), went(s.Duplicate, duplicate), went(s.Conflict, conflict), went(s.TooLate, tooLate))
	fold(all, Sifted, "")
}

// went says which way bills went. That they have the header of duplicates where they are none, or lack it where they are, is another way.
func went(s *topology.Stream[string, Event], way string) *topology.Stream[string, string] {
	return topology.MapValues(s, func(r event) (string, error) {
		way := way
		seen, marked := r.Headers.Get(topology.DuplicateHeader)
		if _, err := time.Parse(time.RFC3339, string(seen)); marked != (way == duplicate) || marked && err != nil {
			way += fmt.Sprintf(" with header %q", seen)
		}
		return sifted(way, r.Value), nil
	}, topology.Name("went-"+way))
}

func sifted(way string, v Event) string { return fmt.Sprintf("%s %s %d", way, v.ID, v.After) }

// sifting adds what must come of the bills. An ID is remembered for the retention, counted from the newest time that its partition had
// seen when its first record came, and it is forgotten at some later time. A copy that comes in between has the time of its original,
// so that it goes one of two ways, and never that of a new one.
func sifting(out map[string][]string, input []Input) {
	type first struct {
		cents int64
		at    time.Time
	}
	newest, seen := map[int32]time.Time{}, map[string]first{}
	for _, in := range input {
		if in.Topic != Bills || in.Value.ID == "end" {
			continue
		}
		if in.At.After(newest[in.Partition]) {
			newest[in.Partition] = in.At
		}
		now := newest[in.Partition]
		way := unique
		f, known := seen[in.Value.ID]
		switch {
		case known:
			if way = duplicate; f.cents != in.Value.After {
				way = conflict
			}
			if now.After(f.at.Add(retention)) {
				way += "|" + tooLate
			}
		case in.At.Before(now.Add(-retention)):
			way = tooLate
		default:
			seen[in.Value.ID] = first{in.Value.After, now}
		}
		l := line(in.Key, "", sifted(way, in.Value))
		out[l.Key] = append(out[l.Key], lines([]Line{l})...)
	}
}

// eitherWay is got, or want if that leaves open which of two ways the record goes and it went one of them.
func eitherWay(got, want string) string {
	var g, w Line
	if json.Unmarshal([]byte(got), &g) != nil || json.Unmarshal([]byte(want), &w) != nil {
		return got
	}
	way, of, _ := strings.Cut(g.Value, " ")
	ways, what, _ := strings.Cut(w.Value, " ")
	for one := range strings.SplitSeq(ways, "|") {
		if one == way && g.Key == w.Key && of == what {
			return want
		}
	}
	return got
}
