package topology

import (
	"errors"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// TestDedupActions gives each verdict under each action.
func TestDedupActions(t *testing.T) {
	answer := func(v dedup.Verdict, b dedup.Bloom) *dedup.Answer {
		return &dedup.Answer{Verdict: v, Bloom: b, SeenAt: testTime}
	}
	counted := func(kinds ...CounterKind) map[CounterKind]uint64 {
		m := map[CounterKind]uint64{}
		for _, k := range kinds {
			m[k]++
		}
		return m
	}
	const (
		passes = "a=v"
		none   = ""
	)
	tests := map[string]struct {
		answer  *dedup.Answer
		opts    []DedupOption
		in      string
		want    string
		fails   Stage // empty: no failure
		policy  Policy
		cause   error
		counted map[CounterKind]uint64
	}{
		"new":               {answer: answer(dedup.New, dedup.Negative), want: passes, counted: counted(CounterChecked, CounterBloomNegative)},
		"new, false maybe":  {answer: answer(dedup.New, dedup.FalsePositive), want: passes, counted: counted(CounterChecked, CounterBloomFalse)},
		"new, not asked":    {answer: answer(dedup.New, dedup.NotAsked), want: passes, counted: counted(CounterChecked)},
		"committed":         {answer: answer(dedup.Duplicate, dedup.TruePositive), counted: counted(CounterChecked, CounterDuplicateCommitted, CounterBloomTrue)},
		"pending":           {answer: answer(dedup.DuplicatePending, dedup.NotAsked), counted: counted(CounterChecked, CounterDuplicateOpen)},
		"duplicate, drop":   {answer: answer(dedup.Duplicate, dedup.NotAsked), opts: []DedupOption{OnDuplicate(Drop)}, counted: counted(CounterChecked, CounterDuplicateCommitted)},
		"duplicate forward": {answer: answer(dedup.Duplicate, dedup.NotAsked), opts: []DedupOption{OnDuplicate(Forward)}, want: passes, counted: counted(CounterChecked, CounterDuplicateCommitted)},

		"conflict":            {answer: answer(dedup.Conflict, dedup.TruePositive), opts: []DedupOption{ComparePayload()}, fails: StageProcess, policy: PolicySkip, cause: ErrConflict, counted: counted(CounterChecked, CounterConflict, CounterBloomTrue)},
		"conflict, stop":      {answer: answer(dedup.Conflict, 0), opts: []DedupOption{ComparePayload(), OnConflict(Stop)}, fails: StageProcess, policy: PolicyStop, cause: ErrConflict, counted: counted(CounterChecked, CounterConflict)},
		"conflict, dead":      {answer: answer(dedup.Conflict, 0), opts: []DedupOption{ComparePayload(), OnConflict(DeadLetter)}, fails: StageProcess, policy: PolicyDeadLetter, cause: ErrConflict, counted: counted(CounterChecked, CounterConflict)},
		"conflict, drop":      {answer: answer(dedup.Conflict, 0), opts: []DedupOption{ComparePayload(), OnConflict(Drop)}, counted: counted(CounterChecked, CounterConflict)},
		"too late":            {answer: answer(dedup.TooLate, dedup.Negative), fails: StageProcess, policy: PolicySkip, cause: ErrTooLate, counted: counted(CounterChecked, CounterTooLate, CounterBloomNegative)},
		"too late, stop":      {answer: answer(dedup.TooLate, 0), opts: []DedupOption{OnTooLate(Stop)}, fails: StageProcess, policy: PolicyStop, cause: ErrTooLate, counted: counted(CounterChecked, CounterTooLate)},
		"too late, dead":      {answer: answer(dedup.TooLate, 0), opts: []DedupOption{OnTooLate(DeadLetter)}, fails: StageProcess, policy: PolicyDeadLetter, cause: ErrTooLate, counted: counted(CounterChecked, CounterTooLate)},
		"too late, drop":      {answer: answer(dedup.TooLate, 0), opts: []DedupOption{OnTooLate(Drop)}, counted: counted(CounterChecked, CounterTooLate)},
		"too late, forward":   {answer: answer(dedup.TooLate, 0), opts: []DedupOption{OnTooLate(Forward)}, want: passes, counted: counted(CounterChecked, CounterTooLate)},
		"missing":             {opts: []DedupOption{IDHeader("x")}, fails: StageID, policy: PolicyStop, cause: record.ErrNoID, counted: counted(CounterMissingStop)},
		"missing, stop":       {opts: []DedupOption{IDHeader("x"), OnMissingID(Stop)}, fails: StageID, policy: PolicyStop, cause: record.ErrNoID, counted: counted(CounterMissingStop)},
		"missing, dead":       {opts: []DedupOption{IDHeader("x"), OnMissingID(DeadLetter)}, fails: StageID, policy: PolicyDeadLetter, cause: record.ErrNoID, counted: counted(CounterMissingDeadLetter)},
		"missing, forward":    {opts: []DedupOption{IDHeader("x"), OnMissingID(Forward)}, want: passes, counted: counted(CounterMissingForward)},
		"too long":            {opts: []DedupOption{ID(func(textRecord) record.ID { return record.BytesID(make([]byte, record.MaxIDBytes+1)) })}, fails: StageID, policy: PolicyStop, cause: record.ErrIDTooLong, counted: counted(CounterMissingStop)},
		"own ID, not missing": {answer: answer(dedup.New, 0), want: passes, counted: counted(CounterChecked)},
	}
	all := []CounterKind{
		CounterChecked, CounterDuplicateCommitted, CounterDuplicateOpen, CounterConflict, CounterTooLate, CounterMissingStop,
		CounterMissingDeadLetter, CounterMissingForward, CounterBloomNegative, CounterBloomTrue, CounterBloomFalse,
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource()
			toText(Dedup(b.in, "u", append([]DedupOption{Retention(hour), OnError(PolicySkip)}, tt.opts...)...))
			d := drive(t, b.Builder)
			d.rt.ids["u"].answer = tt.answer
			err := d.send(text("a=v#id1"))
			if tt.fails != "" {
				if oe := failure(t, err, "u", tt.fails, tt.policy); !errors.Is(oe, tt.cause) {
					t.Errorf("cause %v, want %v", oe.Err, tt.cause)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			d.expect(tt.want)
			for _, k := range all {
				d.expectCounter(k, "u", tt.counted[k])
			}
			d.expectCounter(CounterIn, "u", 1)
			d.expectCounter(CounterOut, "u", uint64(len(d.rt.out)))
			if name == "duplicate forward" && header(d.rt.out[0], DuplicateHeader) != "2026-01-02T03:04:05Z" {
				t.Errorf("headers %q do not mark the duplicate", d.rt.out[0].Headers)
			}
		})
	}
}

// TestUserCodeDoesNotSeeDuplicates is INV-3 from this side.
func TestUserCodeDoesNotSeeDuplicates(t *testing.T) {
	b := textSource()
	calls := 0
	toText(MapValues(dedupText(b.in, "u"), func(r textRecord) (string, error) { calls++; return r.Value, nil }))
	d := drive(t, b.Builder)
	d.sendText("a=1#x", "a=1#x", "b=1#x", "a=1#y")
	if calls != 2 {
		t.Errorf("user code ran %d times, want 2", calls)
	}
}

func TestWhatIsChecked(t *testing.T) {
	b := textSource()
	toText(dedupText(MapValues(b.in, keyOf, Name("m")), "u"))
	d := drive(t, b.Builder)
	d.sendText("a=1#x")
	child := record.RootIdentity("x").Child(record.OperatorHash("m"), 0)
	if got := d.rt.ids["u"]; got.checked[0] != child.ID().Hash() || !got.at.Equal(testTime) {
		t.Errorf("checked %x at %v, want the hash of the child's ID at the record's time", got.checked, got.at)
	}
}

func TestPayload(t *testing.T) {
	hash := func(s string) uint64 { return xxh3.HashString(s) }
	id := ID(func(textRecord) record.ID { return "id" })
	opts := []DedupOption{Retention(hour), ComparePayload(), id}
	tests := map[string]struct {
		build func(in *Stream[string, string]) *Stream[string, string]
		want  uint64
	}{
		// The source's own bytes: what the serde would make of the value is not asked.
		"unchanged": {func(in *Stream[string, string]) *Stream[string, string] {
			return Dedup(Filter(in, keyIs("a")).WithValues(loud{}), "u", opts...)
		}, hash("v")},
		"changed": {func(in *Stream[string, string]) *Stream[string, string] {
			return Dedup(MapValues(in, func(r textRecord) (string, error) { return r.Value + "!", nil }), "u", opts...)
		}, hash("v!")},
		"merged with changed ones": {func(in *Stream[string, string]) *Stream[string, string] {
			louder := MapValues(Filter(in, keyIs("a")), func(r textRecord) (string, error) { return r.Value + "!", nil })
			return Dedup(Merge("m", Filter(in, keyIs("z")), louder), "u", opts...)
		}, hash("v!")},
		"not compared": {func(in *Stream[string, string]) *Stream[string, string] {
			return Dedup(in, "u", Retention(hour), id)
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource()
			toText(tt.build(b.in))
			d := drive(t, b.Builder)
			d.sendText("a=v")
			if got := d.rt.ids["u"].seen[record.StringID("id").Hash()]; got != tt.want {
				t.Errorf("payload %x, want %x", got, tt.want)
			}
		})
	}
}

// loud is a serde that must not be used to encode.
type loud struct{ faultySerde }

func (loud) Append([]byte, string) ([]byte, error) { return nil, errBad }

func TestNullAndEmptyPayloadsDiffer(t *testing.T) {
	for _, changed := range []bool{false, true} {
		b := New("app")
		in := From(b, "in", serde.Bytes(), serde.Bytes(), IDHeader("record-id"))
		if changed {
			in = MapValues(in, func(r bytesRecord) ([]byte, error) { return r.Value, nil }, Name("m"))
		}
		id := ID(func(r bytesRecord) record.ID { return record.BytesID(r.Key) })
		To(Dedup(in, "u", Retention(hour), ComparePayload(), OnConflict(Drop), id), "out", serde.Bytes(), serde.Bytes())
		d := drive(t, b)
		h := record.Headers{{Key: "record-id", Value: []byte("1")}}
		for _, v := range [][]byte{nil, {}, nil} {
			if err := d.send(broker.Record{Key: []byte("k"), Value: v, Headers: h}); err != nil {
				t.Fatal(err)
			}
		}
		d.expectCounter(CounterConflict, "u", 1)
		d.expectCounter(CounterDuplicateCommitted, "u", 1)
		d.expect("k=-")
	}
}

func TestTimestampOption(t *testing.T) {
	at := func(r textRecord) (time.Time, error) { return time.Parse(time.RFC3339, r.Value) }
	b := textSource(Timestamp(at))
	toText(dedupText(b.in, "u"))
	d := drive(t, b.Builder)
	d.sendText("a=2020-05-06T07:08:09Z")
	want := time.Date(2020, 5, 6, 7, 8, 9, 0, time.UTC)
	if got := d.rt.out[0].Timestamp; !got.Equal(want) || !d.rt.ids["u"].at.Equal(want) {
		t.Errorf("the time is %v, dedup's %v, want %v", got, d.rt.ids["u"].at, want)
	}
	// What the runtime asks beforehand gives the same, and never panics.
	in := text("a=2020-05-06T07:08:09Z")
	ask := d.sub.Sources[0].Timestamp
	if got, err := ask(&in); err != nil || !got.Equal(want) {
		t.Errorf("Source.Timestamp: %v, %v", got, err)
	}
	in = text("a=yesterday")
	if _, err := ask(&in); err == nil {
		t.Error("Source.Timestamp took nonsense")
	}
	b = textSource(Timestamp(func(textRecord) (time.Time, error) { panic("x") }))
	toText(b.in)
	if _, err := drive(t, b.Builder).sub.Sources[0].Timestamp(&in); err == nil {
		t.Error("Source.Timestamp swallowed a panic")
	}
}
