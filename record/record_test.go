package record

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The values of Kafka's own test of its partitioner: a key must go to the partition where a Java producer
// puts it.
func TestPartitionForKeyIsKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
		for _, n := range []int32{1, 2, 7, 1 << 30} {
			if got := PartitionForKey([]byte(key), n); got != Partition((want&0x7fffffff)%n) || got < 0 {
				t.Errorf("%q of %d partitions: %d", key, n, got)
			}
		}
	}
	if p := PartitionForKey(nil, 5); p < 0 || p >= 5 {
		t.Errorf("no key: %d", p)
	}
}

// An ID is 1 to MaxIDBytes bytes, whatever they are; a copy does not follow its bytes.
func TestIDs(t *testing.T) {
	b := []byte("abc")
	id := BytesID(b)
	b[0] = 'x'
	if id != "abc" || id != StringID("abc") {
		t.Errorf("ID %q", id)
	}
	for _, c := range []struct {
		id   ID
		want error
	}{
		{"", ErrNoID},
		{"x", nil},
		{"\x00\xff", nil},
		{ID(strings.Repeat("x", MaxIDBytes)), nil},
		{ID(strings.Repeat("x", MaxIDBytes+1)), ErrIDTooLong},
	} {
		if err := c.id.Check(); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%d bytes: %v, want %v", len(c.id), err, c.want)
		}
		if c.id.Empty() != (c.want == ErrNoID) {
			t.Errorf("%d bytes: empty %v", len(c.id), c.id.Empty())
		}
	}
}

// Composite IDs are equal if and only if all their parts are; a missing part leaves none.
func TestCompositeIDIsUnambiguous(t *testing.T) {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "ab", "aab", "\x01a", "\x02", strings.Repeat("z", 200)}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		a, b := parts.Draw(t, "a"), parts.Draw(t, "b")
		x, y := CompositeID(a...), CompositeID(b...)
		if missing := len(a) == 0 || slices.Contains(a, ""); missing != x.Empty() {
			t.Fatalf("%q: %q", a, x)
		}
		if !x.Empty() && !y.Empty() && (x == y) != slices.Equal(a, b) {
			t.Fatalf("%q and %q: %q, %q", a, b, x, y)
		}
	})
}

// Each part of a position makes another ID.
func TestPositionIDHasFourParts(t *testing.T) {
	ids := map[ID]bool{}
	for _, cluster := range []string{"c", "d"} {
		for _, topic := range []string{"t", "u"} {
			for p := range Partition(2) {
				for o := range Offset(12) {
					ids[PositionID(cluster, topic, p, o)] = true
				}
			}
		}
	}
	if len(ids) != 2*2*2*12 || ids[""] {
		t.Errorf("%d IDs", len(ids))
	}
	if id := PositionID("c", "", 1, 2); !id.Empty() {
		t.Errorf("without the topic's ID: %q", id)
	}
}

// Hashes stand in changelogs: they never change.
func TestHashIsFixed(t *testing.T) {
	for id, want := range map[ID]string{
		"": "e3b0c44298fc1c149afbf4c8996fb924", "abc": "ba7816bf8f01cfea414140de5dae2223",
		ID(strings.Repeat("a", 1_000_000)): "cdc76e5c9914fb9281a1c7e284d73e67",
	} {
		h := id.Hash()
		got := ""
		for _, b := range h {
			const digits = "0123456789abcdef"
			got += string(digits[b>>4]) + string(digits[b&15])
		}
		if got != want {
			t.Errorf("%d bytes: %s, want %s", len(id), got, want)
		}
	}
}

// A child's ID follows from its root and its path alone; other roots, operators, ordinals and orders have
// other ones; without a root there is none.
func TestIdentityOfChildren(t *testing.T) {
	a, b := OperatorHash("a"), OperatorHash("b")
	if a == b || a != OperatorHash("a") {
		t.Error("names of operators")
	}
	root := RootIdentity("bill-1")
	if root.ID() != "bill-1" || root.Root() != "bill-1" {
		t.Errorf("root %q", root.ID())
	}
	ids := map[ID]string{root.ID(): "root"}
	for name, i := range map[string]Identity{
		"a0": root.Child(a, 0), "a1": root.Child(a, 1), "b0": root.Child(b, 0), "a0b0": root.Child(a, 0).Child(b, 0),
		"b0a0": root.Child(b, 0).Child(a, 0), "a0a0": root.Child(a, 0).Child(a, 0), "last": root.Child(a, 1<<32-1),
		"another root": RootIdentity("bill-2").Child(a, 0),
	} {
		id := i.ID()
		if other, ok := ids[id]; ok {
			t.Errorf("%s has the ID of %s", name, other)
		}
		ids[id] = name
		if len(id) != 2*HashBytes || string(i.AppendID([]byte("x"))) != "x"+string(id) {
			t.Errorf("%s: %q", name, id)
		}
	}
	if first, second := root.Child(a, 0), root.Child(a, 0); first.ID() != second.ID() {
		t.Error("the same path, two IDs")
	}
	var none Identity
	if !none.ID().Empty() || !none.Child(a, 0).ID().Empty() || len(none.Child(a, 0).AppendID(nil)) != 0 {
		t.Error("a child of nothing has an ID")
	}
	r := Record[string, int]{Identity: root.Child(a, 0)}
	if r.ID() != root.Child(a, 0).ID() {
		t.Errorf("record %q", r.ID())
	}
}

// The last header of a key counts, and With leaves the headers that it was given alone.
func TestHeaders(t *testing.T) {
	h := Headers{{"a", []byte("1")}, {"b", nil}, {"a", []byte("2")}}
	if v, ok := h.Get("a"); !ok || string(v) != "2" {
		t.Errorf("a: %q, %v", v, ok)
	}
	if v, ok := h.Get("b"); !ok || v != nil {
		t.Errorf("b: %q, %v", v, ok)
	}
	if _, ok := h.Get("c"); ok {
		t.Error("c is there")
	}
	with := h.With("a", []byte("3"))
	if v, _ := with.Get("a"); len(with) != 2 || string(v) != "3" {
		t.Errorf("with: %v", with)
	}
	if v, _ := h.Get("a"); len(h) != 3 || string(v) != "2" {
		t.Errorf("changed: %v", h)
	}
	if one := Headers(nil).With("a", nil); len(one) != 1 {
		t.Errorf("of nothing: %v", one)
	}
}

func TestTexts(t *testing.T) {
	tp := TopicPartition{Topic: "bills", Partition: 3}
	if s := (Position{TopicPartition: tp, Offset: 42}).String(); s != "bills/3@42" || tp.String() != "bills/3" {
		t.Errorf("%s, %s", s, tp)
	}
	if b := (IDBlock{EntryBytes: 24, Entries: make([]byte, 72)}); b.Len() != 3 {
		t.Errorf("%d IDs", b.Len())
	}
}
