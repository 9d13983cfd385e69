package operators

import (
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
)

// run gives the input to the application in a model of Kafka, with a fault after each portion, and returns what was committed.
func run(t *testing.T, input []Input, faults ...func(d *topologytest.Driver)) *Answer {
	t.Helper()
	topo, err := Topology()
	if err != nil {
		t.Fatal(err)
	}
	opts := []topologytest.Option{topologytest.Instances(2), topologytest.StartAt(Begin().Add(24 * time.Hour)), topologytest.Rebuild(Topology)}
	topics := append(Inputs(), Rates)
	for _, topic := range topics {
		opts = append(opts, topologytest.Partitions(topic, Partitions))
	}
	d := topologytest.New(t, topo, opts...)
	in := map[string]*topologytest.InputTopic[string, Event]{}
	for _, topic := range topics {
		in[topic] = topologytest.Input(d, topic, serde.String(), serde.JSON[Event]())
	}
	send := func(x Input) {
		in[x.Topic].Send(x.Key, x.Value, topologytest.At(x.At), topologytest.ToPartition(record.Partition(x.Partition)))
	}
	for _, x := range Prelude() {
		send(x)
	}
	d.Run()
	const portion = 150
	for i, x := range input {
		if len(faults) > 0 && i%portion == portion/2 {
			d.Run()
			faults[i/portion%len(faults)](d)
		}
		send(x)
	}
	a := NewAnswer()
	for _, topic := range Outputs() {
		for _, v := range topologytest.Output(d, topic, serde.String(), serde.Bytes()).Values() {
			a.Add(topic, v)
		}
	}
	return a
}

// TestAgainstTheOracle: windows, sessions, a join and timers come to what the oracle says, with and without crashes at each
// point of a commit, lost disks, fences and rebalances.
func TestAgainstTheOracle(t *testing.T) {
	input := Generate(1, 1500)
	crash := func(p topologytest.CrashPoint) func(d *topologytest.Driver) {
		return func(d *topologytest.Driver) { d.CrashAt(p) }
	}
	faults := []func(d *topologytest.Driver){
		crash(topologytest.BeforeCommit), crash(topologytest.AfterCommitBeforeApply), (*topologytest.Driver).Rebalance,
		(*topologytest.Driver).LoseDisks, (*topologytest.Driver).Fence, (*topologytest.Driver).Crash, (*topologytest.Driver).LoseSessions,
	}
	want := Oracle(input)
	for topic, n := range Total(want) {
		if n < 50 {
			t.Errorf("%s has %d records: too few to prove anything", topic, n)
		}
	}
	for name, a := range map[string]*Answer{"without faults": run(t, input), "with faults": run(t, input, faults...)} {
		for _, err := range a.Verify(want) {
			t.Errorf("%s: %v", name, err)
		}
		if a.Rates() < int64(len(input))/2 {
			t.Errorf("%s: no purchase met a later version than %d of a rate", name, a.Rates())
		}
	}
}

// TestOlderRowsAreRefused: a key that meets an older row of a global table than before, or none where there was one, is an error.
func TestOlderRowsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		values string // of one key
		right  bool
	}{
		"newer ones":         {"1 rate-0 -1,2 rate-0 3,3 rate-1 2,4 rate-0 3,5 rate-0 9", true},
		"an older one":       {"1 rate-0 3,2 rate-0 2", false},
		"none after one":     {"1 rate-0 0,2 rate-0 -1", false},
		"one that is no one": {"1 rate-0 x", false},
	} {
		a, want := NewAnswer(), map[string]map[string][]string{Rated: {}}
		for _, v := range strings.Split(c.values, ",") {
			l := line("k", "rate", v)
			a.Add(Rated, []byte(lines([]Line{l})[0]))
			words := strings.Fields(v)
			l.Value = words[0] + " " + words[1]
			want[Rated][l.Key] = append(want[Rated][l.Key], lines([]Line{l})...)
		}
		if wrong := a.Verify(want); (len(wrong) == 0) != c.right {
			t.Errorf("%s: %v", name, wrong)
		}
	}
}

// TestTheOracleIsStrict: an answer that lacks a record, has one twice, out of order or with another content is refused.
func TestTheOracleIsStrict(t *testing.T) {
	want := Oracle(Generate(2, 1500))
	for _, topic := range Outputs() {
		// A key with two records that may not change places.
		key := ""
		for k, l := range want[topic] {
			if len(l) > 1 && l[0] != l[1] && (key == "" || k < key) {
				key = k
			}
		}
		if key == "" {
			t.Fatalf("%s: no key has two records", topic)
		}
		for name, spoil := range map[string]func(l []string) []string{
			"as it should be": func(l []string) []string { return l },
			"one lost":        func(l []string) []string { return l[1:] },
			"one twice":       func(l []string) []string { return append([]string{l[0]}, l...) },
			"places changed":  func(l []string) []string { return append([]string{l[1], l[0]}, l[2:]...) },
			"another content": func(l []string) []string {
				return append([]string{strings.Replace(l[0], `":"`, `":"x`, 1)}, l[1:]...)
			},
		} {
			a := NewAnswer()
			for _, out := range Outputs() {
				for k, l := range want[out] {
					if out == topic && k == key {
						l = spoil(l)
					}
					for _, line := range l {
						a.Add(out, []byte(line))
					}
				}
			}
			// Which pair of a key comes first is not determined.
			right := name == "as it should be" || name == "places changed" && unordered(topic)
			if wrong := a.Verify(want); (len(wrong) == 0) != right {
				t.Errorf("%s, %s: %v", topic, name, wrong)
			}
		}
	}
}
