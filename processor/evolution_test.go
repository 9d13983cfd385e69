package processor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// names are those of the operators of the topology below; an empty one is left away.
type names struct {
	source, unique, by, totals string
	retention                  time.Duration
	second                     bool // another dedup operator behind the first, with a retention of an hour
	always                     bool
	forward                    bool // the first one lets duplicates pass
	between                    bool // a third dedup operator between the two, with a retention of three hours
	apart                      bool // the second one is in another task, behind a topic
}

var version1 = names{source: "in", unique: "unique", by: "by", totals: "totals", retention: time.Hour}

func (n names) build(t *testing.T) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	s := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"), topology.Name(n.source))
	if n.unique != "" {
		opts := []topology.DedupOption{topology.Retention(n.retention), topology.OnTooLate(topology.Drop)}
		if n.forward {
			opts = append(opts, topology.OnDuplicate(topology.Forward))
		}
		s = topology.Dedup(s, n.unique, opts...)
	}
	if n.between {
		s = topology.Dedup(s, "between", topology.Retention(3*time.Hour), topology.OnTooLate(topology.Drop))
	}
	if n.apart {
		s = topology.KeyBy(s, "apart", serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key, nil })
	}
	if n.second {
		opts := []topology.DedupOption{topology.Retention(time.Hour), topology.OnTooLate(topology.Drop)}
		if n.always {
			opts = append(opts, topology.Always())
		}
		s = topology.Dedup(s, "second", opts...)
	}
	topology.To(s, "echo", serde.String(), serde.Int64())
	if n.totals != "" {
		by := topology.KeyBy(s, n.by, serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key[:1], nil })
		sum := topology.Aggregate(by, n.totals, serde.Int64(), func(a int64, r record.Record[string, int64]) (int64, error) { return a + r.Value, nil })
		topology.To(sum, "out", serde.String(), serde.Int64())
	}
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// start runs the next version of the application, which takes over from the last one. An error is that of its start.
func (w *world) start(topo *topology.Topology, wiped bool, opts ...Option) (*Stepper, error) {
	w.topo, w.opts = topo, opts
	if wiped {
		w.disk = newMemoryLog()
	}
	if _, err := w.newStepper(); err != nil {
		return nil, err
	}
	s := w.live()
	return s, w.stepUntil(s)
}

// TestChangesOfTheTopology: a change that would give up state is refused, with the names, on the machine that has the local store
// and on one that has none. Accepted once, it is settled. Any other change goes.
func TestChangesOfTheTopology(t *testing.T) {
	with := func(change func(*names)) names {
		n := version1
		change(&n)
		return n
	}
	tests := map[string]struct {
		from, to names
		refused  []string // words of the error; nil: it starts
		accept   []string
		// kept are the totals of a and b after one more record of each.
		kept string
	}{
		"nothing":               {from: version1, to: version1, kept: "a=4 b=4"},
		"a dedup more":          {from: version1, to: with(func(n *names) { n.second, n.always = true, true }), kept: "a=4 b=4"},
		"one that needs no log": {from: version1, to: with(func(n *names) { n.second = true }), kept: "a=4 b=4"},
		"dedup renamed": {
			from: version1, to: with(func(n *names) { n.unique = "uniq" }),
			refused: []string{`dedup operator "unique" is no longer there`, "app-in-ids-changelog", "name it back", "--drop-state unique"},
			accept:  []string{"unique"}, kept: "a=4 b=4",
		},
		"dedup removed, others stay": {
			from: with(func(n *names) { n.second, n.always = true, true }), to: with(func(n *names) { n.second, n.always, n.unique = true, true, "" }),
			refused: []string{`dedup operator "unique" is no longer there`}, accept: []string{"unique"}, kept: "a=4 b=4",
		},
		"the last dedup removed": {
			from: version1, to: with(func(n *names) { n.unique = "" }),
			refused: []string{`sub-topology "in" has no state any more`, "app-in-ids-changelog", "--drop-state in"}, accept: []string{"in"}, kept: "a=4 b=4",
		},
		"aggregate renamed": {
			from: version1, to: with(func(n *names) { n.totals = "sums" }),
			refused: []string{`state store "totals" (topic app-totals-changelog) has no operator any more`, "--drop-state totals"}, accept: []string{"totals"}, kept: "a=1 b=1",
		},
		"repartition renamed": {
			from: version1, to: with(func(n *names) { n.by = "per" }),
			refused: []string{"app-totals-changelog", `"totals" holds what an earlier version`, "delete the topic"},
		},
		"source renamed": {
			from: version1, to: with(func(n *names) { n.source = "input" }),
			refused: []string{"If the source was renamed, name it back"},
		},
		"a log that is left out now": {
			from: with(func(n *names) { n.second, n.always = true, true }), to: with(func(n *names) { n.second = true }),
			refused: []string{`the log of dedup operator "second"`, "is left out now", "dedup: always", "--drop-state second"}, accept: []string{"second"}, kept: "a=4 b=4",
		},
	}
	for name, test := range tests {
		for _, wiped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, wiped %v", name, wiped), func(t *testing.T) {
				w := newWorld(t, test.from.build(t))
				s := w.live()
				for i := range 3 {
					w.send(0, "a", fmt.Sprint("a", i), 1)
					w.send(1, "b", fmt.Sprint("b", i), 1)
				}
				w.settle(s)

				s, err := w.start(test.to.build(t), wiped)
				if test.refused != nil {
					kind := ErrOrphaned
					if name == "source renamed" {
						kind = ErrDataLost
					}
					wantError(t, err, kind, test.refused...)
					if test.accept == nil {
						return
					}
					if s, err = w.start(test.to.build(t), false, WithDroppedState(test.accept...)); err != nil {
						t.Fatalf("accepted, and refused: %v", err)
					}
				} else if err != nil {
					t.Fatal(err)
				}
				w.send(0, "a", "a new", 1)
				w.send(1, "b", "b new", 1)
				w.settle(s)
				last := map[string]string{}
				for _, line := range w.read("out") {
					key, _, _ := strings.Cut(line, "=")
					last[key] = line
				}
				if got := last["a"] + " " + last["b"]; got != test.kept {
					t.Errorf("totals %s, want %s", got, test.kept)
				}
				if name == "the last dedup removed" || name == "a log that is left out now" {
					return // accepted as long as the topic is there, or the IDs are young
				}
				if _, err = w.start(test.to.build(t), wiped); err != nil {
					t.Errorf("accepted once, and refused the next time: %v", err)
				}
			})
		}
	}
}

// TestFirstStateOfAPart: a part that had no state has committed offsets and no log, which looks like a log that was lost. The refusal says
// so, and both ways on hold.
func TestFirstStateOfAPart(t *testing.T) {
	without, with := names{source: "in"}, names{source: "in", unique: "unique", retention: time.Hour}
	w := newWorld(t, without.build(t))
	s := w.live()
	w.send(0, "a", "1", 1)
	w.settle(s)
	_, err := w.start(with.build(t), false)
	wantError(t, err, ErrDataLost, `If "in" had no dedup operator and no state so far, nothing was lost`, "kafka-consumer-groups.sh", "--drop-state in")

	_, err = w.start(without.build(t), false)
	wantError(t, err, ErrOrphaned, "app-in-ids-changelog", "--drop-state in")
	if s, err = w.start(without.build(t), false, WithDroppedState("in")); err != nil {
		t.Fatal(err)
	}
	w.send(0, "a", "2", 1)
	w.settle(s)

	in := record.TopicPartition{Topic: "in"}
	at, err := w.b.Client("setup").CommittedOffsets(t.Context(), "app", []record.TopicPartition{in})
	if err != nil {
		t.Fatal(err)
	}
	w.b.Group("app").SetOffsets(broker.OffsetCommit{TopicPartition: in, Next: at[in].Next}) // as the tool does: without metadata
	if s, err = w.start(with.build(t), false); err != nil {
		t.Fatal(err)
	}
	w.send(0, "a", "2", 1) // it begins empty: not known
	w.send(0, "a", "2", 1)
	w.settle(s)
	if _, err = w.start(with.build(t), true); err != nil {
		t.Error(err)
	}
	if got := w.read("echo"); len(got) != 3 {
		t.Errorf("outputs %q, want one of 1, one of 2 from before and one of 2 since", got)
	}
}

// TestRefusalLeavesTheDirectory: going back to the version before, with its local store, needs no restore.
func TestRefusalLeavesTheDirectory(t *testing.T) {
	w := newWorld(t, version1.build(t))
	s := w.live()
	w.send(0, "a", "1", 1)
	w.settle(s)
	next := version1
	next.totals = "sums"
	_, err := w.start(next.build(t), false)
	wantError(t, err, ErrOrphaned)
	if s, err = w.start(version1.build(t), false); err != nil {
		t.Fatal(err)
	}
	for _, task := range s.Status().Tasks {
		if task.RestoreMode == modeFull {
			t.Errorf("%s was restored in full", task.Name)
		}
	}
}

// TestALogIsLeftOutOnceItsIDsAreOld: then the operator before it knows all that matters. Accepted once, the change needs no
// acceptance any more when the retention has passed.
func TestALogIsLeftOutOnceItsIDsAreOld(t *testing.T) {
	from, to := version1, version1
	from.second, from.always, to.second = true, true, true
	w := newWorld(t, from.build(t))
	s := w.live()
	w.send(0, "a", "1", 1)
	w.settle(s)
	s, err := w.start(to.build(t), false, WithDroppedState("second"))
	if err != nil {
		t.Fatal(err)
	}
	w.send(0, "a", "2", 1)
	w.settle(s)
	_, err = w.start(to.build(t), false)
	wantError(t, err, ErrOrphaned, `"second"`)
	s, err = w.start(to.build(t), false, WithDroppedState("second"))
	if err != nil {
		t.Fatal(err)
	}
	w.b.Advance(2 * time.Hour)
	w.send(0, "a", "3", 1)
	w.settle(s)
	if _, err = w.start(to.build(t), false); err != nil {
		t.Error(err)
	}
}

// TestALogThatWasLeftOutComesBack: it begins empty, so that the change is refused as soon as the operator that made it superfluous
// no longer keeps all repeats from it for as long as it promises. What the start finds, Orphans finds before.
func TestALogThatWasLeftOutComesBack(t *testing.T) {
	from := version1
	from.retention, from.second = 3*time.Hour, true
	tests := map[string]struct {
		change func(*names)
		lost   []string // names to be accepted; nil: it starts
	}{
		"nothing":                             {func(*names) {}, nil},
		"guard shortened":                     {func(n *names) { n.retention = 10 * time.Minute }, []string{"second"}},
		"guard shortened, and always":         {func(n *names) { n.retention, n.always = 10*time.Minute, true }, []string{"second"}},
		"guard shortened, still long enough":  {func(n *names) { n.retention = 2 * time.Hour }, nil},
		"guard as long":                       {func(n *names) { n.retention, n.always = time.Hour, true }, nil},
		"guard forwards":                      {func(n *names) { n.forward = true }, []string{"second"}},
		"guard removed":                       {func(n *names) { n.unique = "" }, []string{"unique", "second"}},
		"guard renamed":                       {func(n *names) { n.unique = "uniq" }, []string{"unique", "second"}},
		"always":                              {func(n *names) { n.always = true }, nil},
		"another guard":                       {func(n *names) { n.between = true }, nil},
		"another guard, the first shortened":  {func(n *names) { n.between, n.retention = true, 10*time.Minute }, []string{"second"}},
		"in another task":                     {func(n *names) { n.apart = true }, []string{"second"}},
		"second removed, which has no log":    {func(n *names) { n.second = false }, nil},
		"second and then its guard shortened": {func(n *names) { n.second, n.retention = false, 10*time.Minute }, nil},
	}
	for name, test := range tests {
		for _, wiped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, wiped %v", name, wiped), func(t *testing.T) {
				to := from
				test.change(&to)
				var found []string
				for _, f := range from.build(t).Orphans(to.build(t)) {
					found = append(found, f.Operator)
				}
				if slices.Sort(found); !slices.Equal(found, slices.Sorted(slices.Values(test.lost))) {
					t.Errorf("Orphans finds %v, want %v", found, test.lost)
				}
				w := newWorld(t, from.build(t))
				s := w.live()
				w.send(0, "a", "1", 1)
				w.send(1, "b", "2", 1)
				w.settle(s)
				s, err := w.start(to.build(t), wiped)
				if test.lost != nil {
					wantError(t, err, ErrOrphaned, `"second"`, "--drop-state second", "without a log", "for 1h", "dedup: always")
					if s, err = w.start(from.build(t), wiped); err != nil {
						t.Fatalf("taken back, and refused: %v", err)
					}
					w.settle(s)
					if len(test.lost) > 1 {
						_, err = w.start(to.build(t), wiped, WithDroppedState("unique"))
						wantError(t, err, ErrOrphaned, `"second"`)
					}
					s, err = w.start(to.build(t), wiped, WithDroppedState(test.lost...))
				}
				if err != nil {
					t.Fatal(err)
				}
				w.send(0, "a", "3", 1)
				w.send(1, "b", "4", 1)
				w.settle(s)
				if s, err = w.start(to.build(t), wiped); err != nil {
					t.Fatalf("accepted once, and refused the next time: %v", err)
				}
				w.b.Advance(30 * time.Minute)
				before := len(w.read("echo"))
				for i, id := range []string{"1", "3"} { // the one was seen before the change, the other after it
					w.send(0, "a", fmt.Sprint("later ", i), 1) // time passes
					w.settle(s)
					w.send(0, "a", id, 1)
					w.settle(s)
					passed := len(w.read("echo")) - before - 1
					before = len(w.read("echo"))
					// Behind a topic it is still the old guard that drops them, but no longer known to be.
					if want := map[bool]int{true: 1}[id == "1" && test.lost != nil && !to.apart]; passed != want && to.second {
						t.Errorf("ID %s came through %d times, want %d", id, passed, want)
					}
				}
			})
		}
	}
}

// TestALogComesBackOnceItIsFull: with always it has grown beside its guard for a retention, and then needs it no more.
func TestALogComesBackOnceItIsFull(t *testing.T) {
	from := version1
	from.retention, from.second = 3*time.Hour, true
	both, to := from, from
	both.always, to.retention = true, 10*time.Minute
	w := newWorld(t, from.build(t))
	s := w.live()
	w.send(0, "a", "1", 1)
	w.settle(s)
	s, err := w.start(both.build(t), false)
	if err != nil {
		t.Fatal(err)
	}
	for i, after := range []time.Duration{30 * time.Minute, 40 * time.Minute} {
		w.b.Advance(after)
		w.send(0, "a", fmt.Sprint("more ", i), 1)
		w.settle(s)
		next, err := w.start(to.build(t), false)
		if i == 0 {
			wantError(t, err, ErrOrphaned, `"second"`)
			next, err = w.start(both.build(t), false)
		}
		if s = next; err != nil {
			t.Fatal(err)
		}
	}
}

// TestAcceptedBeforeItIsLost: a name that is still accepted, from an earlier change, hides nothing once it is no longer.
func TestAcceptedBeforeItIsLost(t *testing.T) {
	from := version1
	from.retention, from.second = 3*time.Hour, true
	w := newWorld(t, from.build(t))
	s := w.live()
	w.send(0, "a", "1", 1)
	w.settle(s)
	s, err := w.start(from.build(t), false, WithDroppedState("second"))
	if err != nil {
		t.Fatal(err)
	}
	w.send(0, "a", "1", 1) // a repeat: it does not get to the second one
	w.settle(s)
	to := from
	to.forward = true
	_, err = w.start(to.build(t), false)
	wantError(t, err, ErrOrphaned, `"second"`)
}

// TestReadded: a store that comes back is not what it would be if it had never gone.
func TestReadded(t *testing.T) {
	w := newWorld(t, version1.build(t))
	s := w.live()
	w.send(0, "a", "1", 1)
	w.settle(s)
	other := version1
	other.totals = "sums"
	s, err := w.start(other.build(t), false, WithDroppedState("totals"))
	if err != nil {
		t.Fatal(err)
	}
	w.send(0, "a", "2", 1)
	w.settle(s)
	_, err = w.start(version1.build(t), false, WithDroppedState("sums"))
	wantError(t, err, ErrOrphaned, `new state store "totals" holds what an earlier version`, "without what was processed since")
	// Begin empty: the topic is deleted.
	w.b.DeleteTopic("app-totals-changelog")
	if _, err = w.start(version1.build(t), false, WithDroppedState("sums")); err != nil {
		t.Error(err)
	}
}

// TestRetentionChanges: a dedup window may become longer and shorter, and what is remembered stays remembered, with the local
// store and without it.
func TestRetentionChanges(t *testing.T) {
	for _, wiped := range []bool{false, true} {
		for _, change := range []struct {
			to      time.Duration
			after   time.Duration // of stream time, from the first record to its repeat
			repeats bool          // the repeat is found
		}{
			{3 * time.Hour, 50 * time.Minute, true},
			{3 * time.Hour, 150 * time.Minute, true}, // longer than the old one: the ID is still there
			{3 * time.Hour, 4 * time.Hour, false},
			{10 * time.Minute, 5 * time.Minute, true},
			{10 * time.Minute, 30 * time.Minute, false}, // within the old one
		} {
			t.Run(fmt.Sprintf("to %v, repeat after %v, wiped %v", change.to, change.after, wiped), func(t *testing.T) {
				w := newWorld(t, version1.build(t))
				s := w.live()
				w.send(0, "a", "1", 1)
				w.settle(s)
				next := version1
				next.retention = change.to
				s, err := w.start(next.build(t), wiped)
				if err != nil {
					t.Fatal(err)
				}
				w.b.Advance(change.after - 2*time.Second)
				w.send(0, "a", "other", 1)
				w.settle(s)
				w.send(0, "a", "1", 1)
				w.settle(s)
				want := 3
				if change.repeats {
					want = 2
				}
				if got := w.read("echo"); len(got) != want {
					t.Errorf("%d records came through, want %d: %v", len(got), want, got)
				}
			})
		}
	}
}

// TestLongerRetentionNeedsItsTopic: an ID log topic that forgets earlier than the operator would lose IDs in the next full restore.
func TestLongerRetentionNeedsItsTopic(t *testing.T) {
	w := newWorld(t, version1.build(t))
	w.settle(w.live())
	next := version1
	next.retention = 30 * 24 * time.Hour
	_, err := w.start(next.build(t), false)
	wantError(t, err, ErrTopics, "app-in-ids-changelog", "the dedup window needs", "kafka-configs.sh --alter")
	if !slices.Contains(strings.Fields(err.Error()), "raise") {
		t.Errorf("no remedy: %v", err)
	}
}
