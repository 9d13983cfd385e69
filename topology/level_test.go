package topology

import (
	"fmt"
	"testing"
)

// TestLevels derives the level of every combination of source, ID, operator and sink, and compares it with rules that are
// written down another way: by what a crash, a lost answer and a repeated request do to one record.
func TestLevels(t *testing.T) {
	sources := []sourceClass{sourceKafka, sourceClaimed, sourceRepartition, sourceFile, sourceHTTP, sourceLines, sourceSocket}
	ids := []idClass{idProducer, idPosition, idNone}
	operators := []operatorClass{operatorPure, operatorStrong, operatorLookup, operatorDedup, operatorWeak}
	sinks := []sinkClass{sinkTopic, sinkAhead, sinkLedger, sinkIdempotent, sinkWAL, sinkTwoPhase, sinkPlain}
	seen := map[Level]int{}
	for _, s := range sources {
		for _, id := range ids {
			for _, o := range operators {
				for _, k := range sinks {
					f := s.from("source", id)
					f = k.into("sink", o.through("operator", f, f.id))
					got := f.risk.level()
					seen[got]++
					name := fmt.Sprintf("%s with ID %s, %s, %s", s, id, o, k)
					if want := expectedLevel(s, id, o, k); got != want {
						t.Errorf("%s: %s, want %s", name, got, want)
					}
					var explained risks
					for _, c := range f.causes {
						explained |= c.risk
						if c.why == "" || c.remedy == "" || c.part == "" {
							t.Errorf("%s: a cause without reason or remedy: %+v", name, c)
						}
					}
					if explained != f.risk {
						t.Errorf("%s: the causes explain %s, the level is %s", name, explained.level(), got)
					}
				}
			}
		}
	}
	for _, l := range Levels() {
		if seen[l] == 0 {
			t.Errorf("no combination is %s: the table is blind", l)
		}
	}
}

func expectedLevel(s sourceClass, id idClass, o operatorClass, k sinkClass) Level {
	// What the process has read is gone with it if nothing brings it back: neither a position nor a client that waits.
	lost := s == sourceSocket || s == sourceClaimed
	// The same record gets in twice if its client repeats the request; it is dropped if it has the same ID again.
	again := s == sourceHTTP || s == sourceLines
	repeated := again && (o != operatorDedup || id != idProducer)
	// A weak operator hands on twice after a crash.
	repeated = repeated || o == operatorWeak
	switch k {
	case sinkTopic, sinkLedger, sinkTwoPhase: // all or nothing
	case sinkIdempotent: // a second write is the first one again, if it has the same ID
		if s == sourceSocket || id == idNone || again && id == idPosition {
			repeated = true
		}
	case sinkWAL, sinkPlain, sinkAhead:
		repeated = true
	}
	switch {
	case lost && repeated:
		return NoGuarantee
	case lost:
		return AtMostOnce
	case repeated:
		return AtLeastOnce
	}
	return ExactlyOnce
}

func TestLevelsMeet(t *testing.T) {
	want := map[Level][]Level{
		ExactlyOnce: {ExactlyOnce, AtLeastOnce, AtMostOnce, NoGuarantee},
		AtLeastOnce: {AtLeastOnce, NoGuarantee},
		AtMostOnce:  {AtMostOnce, NoGuarantee},
		NoGuarantee: {NoGuarantee},
	}
	for _, l := range Levels() {
		for _, w := range Levels() {
			meets := false
			for _, x := range want[l] {
				meets = meets || x == w
			}
			if l.Meets(w) != meets {
				t.Errorf("%s meets %s: %v", l, w, !meets)
			}
		}
	}
}

// TestRisksOfTwoWays: what comes by two ways has the risks of both, and an ID can be relied on only if it can be on both.
func TestRisksOfTwoWays(t *testing.T) {
	http, socket := sourceHTTP.from("h", idProducer), sourceSocket.from("s", idProducer)
	both := http.join(socket)
	if both.risk.level() != NoGuarantee || both.id != idNone || len(both.causes) != 2 {
		t.Errorf("%+v", both)
	}
	if same := http.join(http); len(same.causes) != 1 || same.id != idProducer {
		t.Errorf("%+v", same)
	}
	if d := operatorDedup.through("d", both, idProducer); d.risk.level() != AtMostOnce || len(d.causes) != 1 || len(both.causes) != 2 {
		t.Errorf("behind a dedup: %+v; before it: %+v", d, both)
	}
	if id := sourceKafka.from("k", idPosition).join(http).id; id != idPosition {
		t.Errorf("ID %s", id)
	}
}
