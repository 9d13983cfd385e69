package topology_test

import (
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// In these examples there is one input: records with the key "user/..." are rows of users, the others are orders.
func usersAndOrders(b *topology.Builder) (users *topology.KTable[string, string], orders *topology.Stream[string, string]) {
	s := topology.Branch(source(b), "kinds", func(r record.Record[string, string]) (bool, error) { return r.Value[0] == '*', nil })
	names := topology.MapValues(s[0], func(r record.Record[string, string]) (string, error) { return r.Value[1:], nil })
	return topology.ToTable(names, "users", serde.String()), s[1]
}

func orNobody(name *string) string {
	if name == nil {
		return "nobody"
	}
	return *name
}

func ExampleJoinTable() {
	b := topology.New("app")
	users, orders := usersAndOrders(b)
	named := topology.JoinTable(orders, users, "named", func(_ string, order, user string) (string, error) { return order + " for " + user, nil })
	topology.To(named, "out", serde.String(), serde.String())
	topology.RunExample(b, "1=tea", "1=*Ann", "1=milk", "1=*Anne", "1=bread")
	// Output:
	// out: 1=milk for Ann
	// out: 1=bread for Anne
}

func ExampleLeftJoinTable() {
	b := topology.New("app")
	users, orders := usersAndOrders(b)
	named := topology.LeftJoinTable(orders, users, "named", func(_ string, order string, user *string) (string, error) {
		return order + " for " + orNobody(user), nil
	})
	topology.To(named, "out", serde.String(), serde.String())
	topology.RunExample(b, "1=tea", "1=*Ann", "1=milk")
	// Output:
	// out: 1=tea for nobody
	// out: 1=milk for Ann
}

func ExampleTable() {
	b := topology.New("app")
	users := topology.Table(b, "users", serde.String(), serde.String())
	topology.To(topology.ToStream(users), "out", serde.String(), serde.Optional(serde.String()))
	topology.RunExample(b, "1=Ann", "1=Anne")
	// Output:
	// out: 1=Ann
	// out: 1=Anne
}

func ExampleToTable() {
	b := topology.New("app")
	counts := topology.ToTable(topology.Count(source(b), "counts"), "kept", serde.Int64())
	many := topology.FilterTable(counts, func(_ string, n int64) (bool, error) { return n > 1, nil })
	topology.To(topology.ToStream(many), "out", serde.String(), serde.Optional(serde.JSON[int64]()))
	topology.RunExample(b, "a=x", "b=x", "a=x")
	// Output: out: a=2
}

func ExampleToStream() {
	b := topology.New("app")
	left, right := twoTables(b)
	both := topology.JoinTables(left, right, "both", func(_ string, l, r *string) (string, error) { return *l + *r, nil })
	changes := topology.ToStream(both)
	topology.To(topology.MapValues(changes, func(r record.Record[string, *string]) (string, error) {
		if r.Value == nil {
			return "gone", nil
		}
		return "is " + *r.Value, nil
	}), "out", serde.String(), serde.String())
	topology.RunExample(b, "a=l1", "a=r1", "a=l")
	// Output:
	// out: a=is l1r1
	// out: a=gone
}

func ExampleFilterTable() {
	b := topology.New("app")
	users, orders := usersAndOrders(b)
	short := topology.FilterTable(users, func(_, name string) (bool, error) { return len(name) < 4, nil })
	topology.To(topology.ToStream(short), "out", serde.String(), serde.Optional(serde.String()))
	topology.To(orders, "orders", serde.String(), serde.String())
	topology.RunExample(b, "1=*Ann", "1=*Annabel", "1=*Annabelle")
	// A row that no longer passes is deleted, once:

	// Output:
	// out: 1=Ann
	// out: 1=-
}

func ExampleMapTableValues() {
	b := topology.New("app")
	users, orders := usersAndOrders(b)
	initials := topology.MapTableValues(users, func(_, name string) (string, error) { return name[:1], nil })
	topology.To(topology.JoinTable(orders, initials, "named", func(_ string, order, user string) (string, error) { return user + ": " + order, nil }), "out", serde.String(), serde.String())
	topology.RunExample(b, "1=*Ann", "1=tea")
	// Output: out: 1=A: tea
}

// twoTables are rows of the left and of the right table: "a=l1" and "a=r1". "l" and "r" alone delete.
func twoTables(b *topology.Builder) (left, right *topology.KTable[string, *string]) {
	s := topology.Branch(source(b), "sides", func(r record.Record[string, string]) (bool, error) { return r.Value[0] == 'l', nil })
	rows := func(s *topology.Stream[string, string], name string) *topology.KTable[string, *string] {
		values := topology.MapValues(s, func(r record.Record[string, string]) (*string, error) {
			if len(r.Value) == 1 {
				return nil, nil
			}
			return &r.Value, nil
		})
		return topology.ToTable(values, name, serde.Optional(serde.String()))
	}
	return rows(s[0], "left-rows"), rows(s[1], "right-rows")
}

func writeTable(t *topology.KTable[string, string]) {
	topology.To(topology.ToStream(t), "out", serde.String(), serde.Optional(serde.String()))
}

func ExampleJoinTables() {
	b := topology.New("app")
	left, right := twoTables(b)
	writeTable(topology.JoinTables(left, right, "both", func(_ string, l, r *string) (string, error) { return *l + *r, nil }))
	topology.RunExample(b, "a=l1", "a=r1", "a=l2", "a=r")
	// Output:
	// out: a=l1r1
	// out: a=l2r1
	// out: a=-
}

func ExampleLeftJoinTables() {
	b := topology.New("app")
	left, right := twoTables(b)
	writeTable(topology.LeftJoinTables(left, right, "all-left", func(_ string, l *string, r **string) (string, error) {
		if r == nil {
			return *l, nil
		}
		return *l + **r, nil
	}))
	topology.RunExample(b, "a=l1", "a=r1", "a=r", "a=l")
	// Output:
	// out: a=l1
	// out: a=l1r1
	// out: a=l1
	// out: a=-
}

func ExampleOuterJoinTables() {
	b := topology.New("app")
	left, right := twoTables(b)
	writeTable(topology.OuterJoinTables(left, right, "any", func(_ string, l, r **string) (string, error) {
		text := ""
		if l != nil {
			text += **l
		}
		if r != nil {
			text += **r
		}
		return text, nil
	}))
	topology.RunExample(b, "a=r1", "a=l1", "a=r", "a=l")
	// Output:
	// out: a=r1
	// out: a=l1r1
	// out: a=l1
	// out: a=-
}

// impressionsAndClicks splits the input: values that begin with "click" are clicks.
func impressionsAndClicks(b *topology.Builder) (impressions, clicks *topology.Stream[string, string]) {
	s := topology.Branch(source(b), "kinds", func(r record.Record[string, string]) (bool, error) { return r.Value[0] != 'c', nil })
	return s[0], s[1]
}

func ExampleJoin() {
	b := topology.New("app")
	impressions, clicks := impressionsAndClicks(b)
	pairs := topology.Join(impressions, clicks, "clicked", topology.JoinWithin(10*time.Second).Before(0), func(_ string, i, c string) (string, error) { return i + "/" + c, nil })
	topology.To(pairs, "out", serde.String(), serde.String())
	topology.RunExample(b, "ad=i1@1", "ad=c1@9", "ad=c2@12")
	// Output: out: ad=i1/c1
}

func ExampleLeftJoin() {
	b := topology.New("app")
	impressions, clicks := impressionsAndClicks(b)
	w := topology.JoinWithin(10 * time.Second).Before(0).Grace(5 * time.Second)
	all := topology.LeftJoin(impressions, clicks, "seen", w, func(_ string, i string, c *string) (string, error) { return i + "/" + orNobody(c), nil })
	topology.To(all, "out", serde.String(), serde.String())
	topology.RunExample(b, "ad=i1@1", "ad=i2@2", "ad=c1@12", "other=i3@60")
	// Output:
	// out: ad=i2/c1
	// out: ad=i1/nobody
}

func ExampleOuterJoin() {
	b := topology.New("app")
	impressions, clicks := impressionsAndClicks(b)
	w := topology.JoinWithin(10 * time.Second).Grace(0)
	all := topology.OuterJoin(impressions, clicks, "any", w, func(_ string, i, c *string) (string, error) { return orNobody(i) + "/" + orNobody(c), nil })
	topology.To(all, "out", serde.String(), serde.String())
	topology.RunExample(b, "ad=i1@1", "page=c1@2", "z=i9@60")
	// Output:
	// out: ad=i1/nobody
	// out: page=nobody/c1
}
