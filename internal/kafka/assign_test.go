package kafka

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// round runs one rebalance: the plan, and what each member owns afterwards.
func round(sets [][]string, members []*member, partitions map[string][]int32) map[string]map[string][]int32 {
	plan, _ := assign(sets, members, partitions)
	for _, m := range members {
		m.owned = plan[m.id]
		m.generation++
	}
	return plan
}

func newMember(id string, sets [][]string) *member {
	m := &member{id: id, topics: map[string]bool{}, generation: -1, owned: map[string][]int32{}}
	for _, s := range sets {
		for _, t := range s {
			m.topics[t] = true
		}
	}
	return m
}

func seq(n int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

func count(m map[string][]int32) (n int) {
	for _, ps := range m {
		n += len(ps)
	}
	return n
}

func TestAssignKeepsSetsTogetherAndSettles(t *testing.T) {
	sets := [][]string{{"a", "b"}, {"c"}}
	partitions := map[string][]int32{"a": seq(8), "b": seq(8), "c": seq(4)}
	one := newMember("1", sets)
	round(sets, []*member{one}, partitions)
	if count(one.owned) != 20 {
		t.Fatalf("one member owns %d of 20", count(one.owned))
	}
	two, three := newMember("2", sets), newMember("3", sets)
	members := []*member{one, two, three}
	before := maps.Clone(one.owned)
	round(sets, members, partitions) // what moves goes to nobody yet
	if count(two.owned)+count(three.owned) != 0 {
		t.Fatalf("partitions moved before their owner let them go: %v %v", two.owned, three.owned)
	}
	for topic, ps := range one.owned {
		for _, p := range ps {
			if !slices.Contains(before[topic], p) {
				t.Fatalf("%s/%d came from nowhere", topic, p)
			}
		}
	}
	round(sets, members, partitions)
	want := map[string]int{"1": 4, "2": 4, "3": 4} // units
	for _, m := range members {
		if got := len(m.owned["a"]) + len(m.owned["c"]); got != want[m.id] {
			t.Errorf("member %s: %d units, want %d (%v)", m.id, got, want[m.id], m.owned)
		}
		if !slices.Equal(m.owned["a"], m.owned["b"]) {
			t.Errorf("member %s: a %v, b %v", m.id, m.owned["a"], m.owned["b"])
		}
	}
	again := map[string]map[string][]int32{}
	for _, m := range members {
		again[m.id] = m.owned
	}
	if got := round(sets, members, partitions); !reflect.DeepEqual(got, again) {
		t.Errorf("a round without a change moved something: %v, then %v", again, got)
	}
}

// TestAssignRandomly checks the invariants over random histories of joining and leaving: nothing is
// owned twice, sets stay together, everything is owned after two quiet rounds, loads differ by one at
// most, and a round moves no more than it must.
func TestAssignRandomly(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var sets [][]string
		partitions := map[string][]int32{}
		for i := range 1 + r.IntN(4) {
			var set []string
			n := int32(1 + r.IntN(9))
			for k := range 1 + r.IntN(3) {
				topic := fmt.Sprintf("t%d-%d", i, k)
				set = append(set, topic)
				partitions[topic] = seq(n)
			}
			sets = append(sets, set)
		}
		units := listUnits(completeSets(sets, partitions), partitions)
		members := []*member{newMember("m0", sets)}
		for step := range 12 {
			switch {
			case r.IntN(3) == 0 && len(members) > 1:
				members = slices.Delete(members, 0, 1)
			case r.IntN(2) == 0:
				members = append(members, newMember(fmt.Sprintf("m%d", step+1), sets))
			}
			r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			_, halfway := assign(sets, members, partitions)
			round(sets, members, partitions)
			checkOnce(t, seed, members)
			if all := owned(sets, members); halfway != (all < len(units)) {
				t.Fatalf("seed %d: %d of %d units have an owner; halfway is %v", seed, all, len(units), halfway)
			}
			if _, halfway := assign(sets, members, partitions); halfway {
				t.Fatalf("seed %d: a third round would be needed", seed)
			}
			round(sets, members, partitions)
			checkOnce(t, seed, members)
			checkSettled(t, seed, sets, members, len(units))
		}
	}
}

// owned is how many units the members own.
func owned(sets [][]string, members []*member) (n int) {
	for _, m := range members {
		for _, set := range sets {
			n += len(m.owned[set[0]])
		}
	}
	return n
}

func checkOnce(t *testing.T, seed uint64, members []*member) {
	t.Helper()
	seen := map[string]string{}
	for _, m := range members {
		for topic, ps := range m.owned {
			for _, p := range ps {
				k := fmt.Sprintf("%s/%d", topic, p)
				if was, ok := seen[k]; ok {
					t.Fatalf("seed %d: %s belongs to %s and %s", seed, k, was, m.id)
				}
				seen[k] = m.id
			}
		}
	}
}

func checkSettled(t *testing.T, seed uint64, sets [][]string, members []*member, units int) {
	t.Helper()
	low, high, all := 1<<30, 0, 0
	for _, m := range members {
		n := 0
		for _, set := range sets {
			n += len(m.owned[set[0]])
			for _, topic := range set {
				if !slices.Equal(m.owned[topic], m.owned[set[0]]) {
					t.Fatalf("seed %d: member %s has %v of %s and %v of %s", seed, m.id, m.owned[topic], topic, m.owned[set[0]], set[0])
				}
			}
		}
		low, high, all = min(low, n), max(high, n), all+n
	}
	if all != units || high-low > 1 {
		t.Fatalf("seed %d: %d of %d units, loads %d to %d", seed, all, units, low, high)
	}
}

func TestAssignBelievesTheLaterGeneration(t *testing.T) {
	sets := [][]string{{"a"}}
	old, now := newMember("1", sets), newMember("2", sets)
	old.owned, old.generation = map[string][]int32{"a": {0, 1}}, 3
	now.owned, now.generation = map[string][]int32{"a": {0, 1}}, 7
	plan, _ := assign(sets, []*member{old, now}, map[string][]int32{"a": seq(2)})
	if count(plan["1"]) != 0 || count(plan["2"]) != 1 {
		t.Fatal(plan)
	}
}

func TestAssignTearsNothingBetweenTwoOwners(t *testing.T) {
	sets := [][]string{{"a", "b"}}
	x, y := newMember("1", sets), newMember("2", sets)
	x.owned, y.owned = map[string][]int32{"a": {0}}, map[string][]int32{"b": {0}}
	members := []*member{x, y}
	partitions := map[string][]int32{"a": seq(1), "b": seq(1)}
	if plan := round(sets, members, partitions); count(plan["1"])+count(plan["2"]) != 0 {
		t.Fatalf("both must let go first: %v", plan)
	}
	if plan := round(sets, members, partitions); count(plan["1"])+count(plan["2"]) != 2 {
		t.Fatal(plan)
	}
}

func TestAssignRespectsSubscriptions(t *testing.T) {
	// A rolling upgrade: the new version reads one topic more.
	sets := [][]string{{"a"}}
	old, now := newMember("1", sets), newMember("2", [][]string{{"a"}, {"b"}})
	partitions := map[string][]int32{"a": seq(4), "b": seq(4)}
	members := []*member{old, now}
	round(sets, members, partitions)
	if plan := round(sets, members, partitions); len(plan["1"]["b"]) != 0 || len(plan["2"]["b"]) != 4 || len(plan["1"]["a"]) == 0 {
		t.Fatal(plan)
	}
}
