package topology

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

func joinText(_ string, l, r string) (string, error) { return l + "+" + r, nil }

func joinMaybe(_ string, l string, r *string) (string, error) { return l + "+" + maybe(r), nil }

func joinAny(_ string, l, r *string) (string, error) { return maybe(l) + "+" + maybe(r), nil }

func maybe(s *string) string {
	if s == nil {
		return "?"
	}
	return *s
}

func optionalText() serde.Serde[*string] { return serde.Optional(serde.String()) }

// tombstone deletes a key.
func tombstone(key string) broker.Record { return broker.Record{Key: []byte(key)} }

func (d *driver) mustSendTo(source int, in ...broker.Record) {
	d.t.Helper()
	for _, r := range in {
		if err := d.sendTo(source, r); err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestTableKeepsTheNewestRow(t *testing.T) {
	b := New("app")
	table := Table(b, "users", serde.String(), serde.String())
	long := FilterTable(table, func(_, v string) (bool, error) { return len(v) > 1, nil }, Name("long"))
	upper := MapTableValues(long, func(k, v string) (string, error) { return k + strings.ToUpper(v), nil }, Name("upper"))
	To(ToStream(upper), "out", serde.String(), optionalText())
	d := drive(t, b)
	d.sendText("a=x", "a=xy#1", "a=xyz", "a=z", "b=yy")
	d.mustSendTo(0, tombstone("a"), tombstone("b"), tombstone("c"), tombstone("b"))
	d.expect("a=aXY a=aXYZ a=- b=bYY b=-")
	d.expectCounter(CounterFiltered, "users-table", 2) // c and b again: nothing to delete
	if n := len(d.rt.stores["users-table"].content); n != 0 {
		t.Errorf("the store has %d keys after all were deleted", n)
	}
	if id := header(d.rt.out[0], DefaultIDHeader); id == "1" || len(id) != 32 {
		t.Errorf("the ID of a mapped change is %q, want a child's", id)
	}
}

func TestJoinTable(t *testing.T) {
	b := New("app")
	s := From(b, "orders", serde.String(), serde.String())
	table := Table(b, "users", serde.String(), serde.String(), Name("users-by-id"))
	To(JoinTable(s, table, "inner", joinText), "inner-out", serde.String(), serde.String())
	To(LeftJoinTable(s, table, "left", joinMaybe), "left-out", serde.String(), serde.String())
	d := drive(t, b)
	d.mustSendTo(0, text("a=1#i"))
	d.mustSendTo(1, text("a=x"))
	d.mustSendTo(0, text("a=2"))
	d.mustSendTo(1, tombstone("a"))
	d.mustSendTo(0, text("a=4"))
	d.expect("a=1+? a=2+x a=2+x a=4+?")
	d.expectCounter(CounterNoMatch, "inner", 2)
	child := record.RootIdentity("i").Child(record.OperatorHash("left"), 0).ID()
	if id := header(d.rt.out[0], DefaultIDHeader); id != string(child) {
		t.Errorf("ID %q, want %q", id, child)
	}
}

func TestJoinTablesTellDeletions(t *testing.T) {
	for _, c := range []struct {
		name string
		join func(l, r *KTable[string, string]) *KTable[string, string]
		want string
	}{
		{"inner", func(l, r *KTable[string, string]) *KTable[string, string] {
			return JoinTables(l, r, "joined", joinText)
		}, "a=1+x a=2+x a=- a=3+x a=-"},
		{"left", func(l, r *KTable[string, string]) *KTable[string, string] {
			return LeftJoinTables(l, r, "joined", joinMaybe)
		}, "a=1+? a=1+x a=2+x a=- a=3+x a=3+? a=-"},
		{"outer", func(l, r *KTable[string, string]) *KTable[string, string] {
			return OuterJoinTables(l, r, "joined", joinAny)
		}, "a=1+? a=1+x a=2+x a=?+x a=3+x a=3+? a=-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := New("app")
			joined := c.join(Table(b, "l", serde.String(), serde.String()), Table(b, "r", serde.String(), serde.String()))
			To(ToStream(joined), "out", serde.String(), optionalText())
			d := drive(t, b)
			d.mustSendTo(0, text("a=1"))
			d.mustSendTo(1, text("a=x"))
			d.mustSendTo(0, text("a=2"), tombstone("a"), tombstone("a"), text("a=3"))
			d.mustSendTo(1, tombstone("a"), tombstone("a"))
			d.mustSendTo(0, tombstone("a"))
			d.expect(c.want)
		})
	}
}

func windowedJoin(t *testing.T, join func(l, r *Stream[string, string]) *Stream[string, string]) *driver {
	t.Helper()
	b := New("app")
	l, r := From(b, "l", serde.String(), serde.String()), From(b, "r", serde.String(), serde.String())
	To(join(l, r), "out", serde.String(), serde.String())
	return drive(t, b)
}

// TestJoinIDsDoNotDependOnTheOrder: a pair has one ID and one time whichever record of it came last.
func TestJoinIDsDoNotDependOnTheOrder(t *testing.T) {
	var first fakeOutput
	for _, leftFirst := range []bool{true, false} {
		d := windowedJoin(t, func(l, r *Stream[string, string]) *Stream[string, string] {
			return Join(l, r, "joined", JoinWithin(10*time.Second), joinText)
		})
		if leftFirst {
			d.mustSendTo(0, at(1, "a=1#left"))
		}
		d.mustSendTo(1, at(5, "a=x#right"))
		if !leftFirst {
			d.mustSendTo(0, at(1, "a=1#left"))
		}
		d.expect("a=1+x")
		out := d.rt.out[0]
		if first.Key == nil {
			first = out
		}
		if id, want := header(out, DefaultIDHeader), header(first, DefaultIDHeader); id != want || len(id) != 32 || !out.Timestamp.Equal(first.Timestamp) {
			t.Errorf("left first %v: ID %q at %v, want %q at %v", leftFirst, id, out.Timestamp, want, first.Timestamp)
		}
	}
}

// TestJoinWindowEnds: both ends belong to the window, whichever record comes last, and JoinWindows.Matches says the same.
func TestJoinWindowEnds(t *testing.T) {
	w := JoinWithin(0).Before(3 * time.Second).After(7 * time.Second).Grace(time.Hour)
	for right := 10; right <= 32; right++ {
		want := ""
		if right >= 17 && right <= 27 {
			want = "a=1+x"
		}
		if got := w.Matches(time.Unix(20, 0), time.Unix(int64(right), 0)); got != (want != "") {
			t.Errorf("right at %d: Matches says %v", right, got)
		}
		for _, leftFirst := range []bool{true, false} {
			d := windowedJoin(t, func(l, r *Stream[string, string]) *Stream[string, string] { return Join(l, r, "joined", w, joinText) })
			if leftFirst {
				d.mustSendTo(0, at(20, "a=1"))
			}
			d.mustSendTo(1, at(right, "a=x"))
			if !leftFirst {
				d.mustSendTo(0, at(20, "a=1"))
			}
			d.expect(want)
		}
	}
}

// TestNeverMatchedAndUnmatched: a record that is matched after it had to wait, or before, has no second result when it closes.
// Kafka Streams wrote both. (KAFKA-10847)
func TestNeverMatchedAndUnmatched(t *testing.T) {
	d := windowedJoin(t, func(l, r *Stream[string, string]) *Stream[string, string] {
		return OuterJoin(l, r, "joined", JoinWithin(10*time.Second).Grace(5*time.Second), joinAny)
	})
	clock := func(second int) {
		t.Helper()
		if err := d.pass(time.Unix(int64(second), 0), false); err != nil {
			t.Fatal(err)
		}
	}
	d.mustSendTo(0, at(0, "a=1#1"), at(0, "b=2#2"))
	clock(14)
	d.mustSendTo(1, at(9, "a=x#3")) // late by its grace, and the match of the first
	clock(15)
	d.expect("a=1+x") // at 15 s a right record of 10 s could still come
	clock(16)
	d.expect("a=1+x b=2+?")
	d.mustSendTo(1, at(10, "b=y#4")) // too late
	clock(100)
	d.expect("a=1+x b=2+?")
	d.expectCounter(CounterLate, "joined", 1)
	if n := len(d.rt.stores["joined"].content); n != 0 {
		t.Errorf("%d keys are left in the store", n)
	}
}

func TestJoinOfWhatHasNoKeyOrNoValue(t *testing.T) {
	b := New("app")
	l, r := From(b, "l", serde.Bytes(), optionalText()), From(b, "r", serde.Bytes(), optionalText())
	flat := func(_ []byte, l **string, r **string) (string, error) {
		text := func(s **string) string {
			if s == nil {
				return "?"
			}
			return maybe(*s)
		}
		return text(l) + "+" + text(r), nil
	}
	To(OuterJoin(l, r, "outer", JoinWithin(time.Second), flat), "out", serde.Bytes(), serde.String())
	To(Join(l, r, "inner", JoinWithin(time.Second), func(_ []byte, l, r *string) (string, error) { return maybe(l) + maybe(r), nil }), "out-2", serde.Bytes(), serde.String())
	d := drive(t, b)
	d.mustSendTo(0, broker.Record{Value: []byte("v")}, tombstone("a"))
	d.mustSendTo(1, broker.Record{Value: []byte("w")}, broker.Record{Key: []byte{}, Value: []byte("x")})
	d.mustSendTo(0, broker.Record{Key: []byte{}, Value: []byte("y")})
	d.expect("-=v+? -=?+w =y+x =yx")
	d.expectCounter(CounterNullValue, "outer-left", 1)
	d.expectCounter(CounterNullKey, "inner-left", 1)
	d.expectCounter(CounterNullKey, "inner-right", 1)
}

func TestTableOfWhatHasNoKey(t *testing.T) {
	b := New("app")
	l, r := From(b, "l", serde.Bytes(), serde.String()), From(b, "r", serde.Bytes(), serde.String())
	rows := ToTable(r, "rows", serde.String())
	To(LeftJoinTable(l, rows, "left", func(_ []byte, l string, r *string) (string, error) { return l + "+" + maybe(r), nil }), "out", serde.Bytes(), serde.String())
	d := drive(t, b)
	d.mustSendTo(1, broker.Record{Value: []byte("nobody's")}, broker.Record{Key: []byte{}, Value: []byte("row")})
	d.mustSendTo(0, broker.Record{Value: []byte("v")}, broker.Record{Key: []byte{}, Value: []byte("w")})
	d.expect("-=v+? =w+row")
	d.expectCounter(CounterNullKey, "rows", 1)
}

// A key may have as many records as there are: what a record writes grows with their square root at most.
func TestJoinOfAHotKey(t *testing.T) {
	value := strings.Repeat("x", 1000)
	most := map[int]int{}
	for _, n := range []int{1250, 10_000} {
		d := windowedJoin(t, func(l, r *Stream[string, string]) *Stream[string, string] {
			return Join(l, r, "joined", JoinWithin(10*time.Hour).Before(0), joinText)
		})
		for i := range n {
			d.mustSendTo(0, at(i, "a="+value))
		}
		for _, v := range d.rt.stores["joined"].content {
			most[n] = max(most[n], len(v))
		}
		d.mustSendTo(1, at(10, "a=r"))
		if got := len(d.rt.out); got != 11 {
			t.Errorf("%d results, want 11", got)
		}
	}
	if most[10_000] > 4*most[1250] || most[10_000] > 64<<10 {
		t.Errorf("the largest value has %d bytes, with 8 times the records %d", most[1250], most[10_000])
	}
}

func TestJoinRefusesTooManyOfAKey(t *testing.T) {
	d := windowedJoin(t, func(l, r *Stream[string, string]) *Stream[string, string] {
		return Join(l, r, "joined", JoinWithin(time.Hour), joinText, OnError(PolicySkip))
	})
	d.mustSendTo(0, at(0, "a=1"))
	var l joinList
	key := append([]byte{listOf}, "a"...)
	if err := l.decode(d.rt.stores["joined"].content[string(key)]); err != nil || len(l.entries) != 1 {
		t.Fatal(l, err)
	}
	for range maxListBytes {
		l.chunks = append(l.chunks, joinChunk{from: 1 << 40, to: 1 << 40, look: 1 << 50})
	}
	d.rt.stores["joined"].content[string(key)] = l.append(nil)
	failure(t, d.sendTo(0, at(0, "a=2")), "joined", StageProcess, PolicySkip)
}

func TestJoinLatePolicy(t *testing.T) {
	d := windowedJoin(t, func(l, r *Stream[string, string]) *Stream[string, string] {
		return Join(l, r, "joined", JoinWithin(time.Second), joinText, OnLate(DeadLetter))
	})
	if err := d.pass(time.Unix(60, 0), false); err != nil {
		t.Fatal(err)
	}
	err := d.sendTo(1, at(0, "a=x"))
	failure(t, err, "joined-right", StageProcess, PolicyDeadLetter)
	if !errors.Is(err, ErrLate) {
		t.Error(err)
	}
}

func TestJoinListIsDamaged(t *testing.T) {
	l := joinList{due: 7, chunks: []joinChunk{{from: -5, to: 900, look: 1000, tells: true}, {number: 300, from: -700, to: -700, look: -20}, {number: 301, from: 1 << 45, to: 1 << 46, look: 1 << 47}}}
	head := len(l.append(nil))
	l.entries = insertEntry(l.entries, joinEntry{at: 5, id: []byte("id"), value: []byte("value")})
	l.entries = insertEntry(l.entries, joinEntry{at: 3, right: true, matched: true, id: nil, value: []byte{}})
	l.entries = insertEntry(l.entries, joinEntry{at: 5, id: []byte("second"), value: []byte("v")})
	whole := l.append(nil)
	var again joinList
	if err := again.decode(whole); err != nil || len(again.entries) != 3 || string(again.append(nil)) != string(whole) || again.entries[0].at != 3 || string(again.entries[2].id) != "second" {
		t.Errorf("%v: %+v", err, again)
	}
	if !slices.Equal(again.chunks, l.chunks) {
		t.Errorf("%+v", again.chunks)
	}
	ends := map[int]bool{head: true, len(whole): true}
	n := head
	for _, e := range l.entries {
		n += timeBytes + 3 + len(e.id) + len(e.value)
		ends[n] = true
	}
	for i := range whole {
		if err := again.decode(whole[:i:i]); (err == nil) != ends[i] {
			t.Errorf("%d of %d bytes: %v", i, len(whole), err)
		}
	}
	if err := again.decode(append(whole[:listHeader+1:listHeader+1], 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1)); err == nil {
		t.Error("more chunks than bytes")
	}
	if err := again.decode(appendEntries(whole[:listHeader:listHeader], l.entries)); err == nil {
		t.Error("a list of before there were chunks is read")
	}
}

// TestJoinMistakes: Build says each of them.
func TestJoinMistakes(t *testing.T) {
	b := New("app")
	s, other := From(b, "s", serde.String(), serde.String()), From(b, "other", serde.String(), serde.String())
	mapped := Map(s, func(r record.Record[string, string]) (string, string, error) { return r.Value, r.Key, nil }, Name("turned"))
	table := ToTable(other, "rows", serde.String())
	To(JoinTable(mapped, table, "by-other-key", joinText), "o1", serde.String(), serde.String())
	To(JoinTable[string, string, string, string](s, table, "no-function", nil), "o2", serde.String(), serde.String())
	To(JoinTable(s, table, "", joinText), "o3", serde.String(), serde.String())
	To(Join(s, other, "window", JoinWithin(-time.Second).Grace(time.Microsecond), joinText, OnLate(Forward)), "o4", serde.String(), serde.String())
	To(ToStream(JoinTables(table, MapTableValues(table, func(_, v string) (string, error) { return v, nil }), "self", joinText)), "o5", serde.String(), optionalText())
	To(Join(s, MapValues(other, func(r record.Record[string, string]) (int, error) { return 1, nil }), "serde", JoinWithin(time.Second),
		func(string, string, int) (string, error) { return "", nil }), "o6", serde.String(), serde.String())
	ToTable(mapped, "unkeyed", serde.String())
	Table[string, string](b, "nil", serde.String(), nil)
	To(JoinTable(s, table, "late", joinText, OnLate(Drop)), "o7", serde.String(), serde.String())
	FilterTable(table, func(_, v string) (bool, error) { return true, nil }, Name("unused"))
	_, err := b.Build()
	found := map[string]bool{}
	for _, p := range Problems(err) {
		found[p.Operator+" "+p.Rule] = true
	}
	for _, want := range []string{
		"by-other-key unkeyed", "no-function function", "join-1 name", "window window", "window option", "self join",
		"serde-right serde", "unkeyed unkeyed", "nil serde", "late option", "unused unused",
	} {
		if !found[want] {
			t.Errorf("no problem %q in:\n%v", want, err)
		}
	}
}

// TestJoinOfDifferentPartitions: numbers that stand in the topology are compared when it is built.
func TestJoinOfDifferentPartitions(t *testing.T) {
	b := New("app")
	s, other := From(b, "s", serde.String(), serde.String()), From(b, "other", serde.String(), serde.String())
	key := func(r record.Record[string, string]) (string, error) { return r.Key, nil }
	four, six := KeyBy(s, "four", serde.String(), key, Partitions(4)), KeyBy(other, "six", serde.String(), key, Partitions(6))
	To(Join(four, six, "cut", JoinWithin(time.Second), joinText), "out", serde.String(), serde.String())
	_, err := b.Build()
	if p := Problems(err); len(p) != 1 || p[0].Rule != "co-partition" || !strings.Contains(p[0].What, `"four" has 4, "six" has 6`) {
		t.Error(err)
	}
}

// TestDescribeJoins: the form is that of Kafka Streams: a join of a table names its store, one of two streams is made of a processor for each side and one
// behind them.
func TestDescribeJoins(t *testing.T) {
	b := New("app")
	orders, payments := From(b, "orders", serde.String(), serde.String()), From(b, "payments", serde.String(), serde.String())
	users := Table(b, "users", serde.String(), serde.String())
	paid := Join(orders, payments, "paid", JoinWithin(time.Hour), joinText).WithValues(serde.String())
	To(JoinTable(paid, users, "with-user", joinText), "out", serde.String(), serde.String())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	want := `Topologies:
   Sub-topology: 0
    Source: orders (topics: [orders])
      --> paid-left
    Source: payments (topics: [payments])
      --> paid-right
    Processor: paid-left (stores: [paid])
      --> paid
      <-- orders
    Processor: paid-right (stores: [paid])
      --> paid
      <-- payments
    Processor: paid (stores: [])
      --> with-user
      <-- paid-left, paid-right
    Source: users (topics: [users])
      --> users-table
    Processor: with-user (stores: [users-table])
      --> to-out
      <-- paid
    Sink: to-out (topic: out)
      <-- with-user
    Processor: users-table (stores: [users-table])
      --> none
      <-- users

`
	if got := topo.Describe(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if joins := topo.Subtopologies()[0].Joins; len(joins) != 2 || len(joins[0].Sources) != 2 || len(joins[1].Sources) != 3 {
		t.Errorf("joins %+v", joins)
	}
}
