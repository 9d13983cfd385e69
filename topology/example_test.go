package topology_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// RunExample stands for a task that runs the topology: see processor.New, or topologytest.

type pair = record.Record[string, string]

func source(b *topology.Builder) *topology.Stream[string, string] {
	return topology.From(b, "in", serde.String(), serde.String())
}

func ExampleFrom() {
	b := topology.New("app")
	// The ID is a field of the record. One without it goes to the dead letter topic.
	orders := topology.From(b, "orders", serde.String(), serde.String(),
		topology.ID(func(r pair) record.ID { return record.StringID(r.Value) }),
		topology.OnMissingID(topology.DeadLetter))
	topology.To(orders, "copy", serde.String(), serde.String())
	topology.RunExample(b, "a=o1", "b=")
	// Output:
	// operator "orders": id: record: no ID
	// copy: a=o1
}

func ExampleFilter() {
	b := topology.New("app")
	long := topology.Filter(source(b), func(r pair) (bool, error) { return len(r.Value) > 2, nil })
	topology.To(long, "long", serde.String(), serde.String())
	topology.RunExample(b, "a=xx", "b=xxx")
	// Output: long: b=xxx
}

func ExampleMap() {
	b := topology.New("app")
	swapped := topology.Map(source(b), func(r pair) (string, string, error) { return r.Value, r.Key, nil })
	topology.To(swapped, "swapped", serde.String(), serde.String())
	topology.RunExample(b, "a=1")
	// Output: swapped: 1=a
}

func ExampleMapValues() {
	b := topology.New("app")
	numbers := topology.MapValues(source(b), func(r pair) (int, error) { return strconv.Atoi(r.Value) })
	topology.To(numbers, "numbers", serde.String(), serde.JSON[int]())
	topology.RunExample(b, "a=007", "b=x")
	// Output:
	// operator "map_values-1": process: strconv.Atoi: parsing "x": invalid syntax
	// numbers: a=7
}

func ExampleFlatMap() {
	b := topology.New("app")
	words := topology.FlatMap(source(b), func(r pair, emit topology.Emit[string, string]) error {
		for _, w := range strings.Fields(r.Value) {
			emit(pair{Key: w, Value: r.Key})
		}
		return nil
	})
	topology.To(words, "words", serde.String(), serde.String())
	topology.RunExample(b, "line1=to be or", "line2=not")
	// Output:
	// words: to=line1
	// words: be=line1
	// words: or=line1
	// words: not=line2
}

func ExampleBranch() {
	b := topology.New("app")
	bySize := topology.Branch(source(b), "by-size",
		func(r pair) (bool, error) { return len(r.Value) > 3, nil },
		func(r pair) (bool, error) { return len(r.Value) > 1, nil })
	for i, topic := range []string{"large", "medium", "small"} { // the last stream has what no case matched
		topology.To(bySize[i], topic, serde.String(), serde.String())
	}
	topology.RunExample(b, "a=x", "b=xxxx", "c=xx")
	// Output:
	// small: a=x
	// large: b=xxxx
	// medium: c=xx
}

func ExampleMerge() {
	b := topology.New("app")
	in := source(b)
	shout := topology.MapValues(in, func(r pair) (string, error) { return r.Value + "!", nil })
	topology.To(topology.Merge("both", in, shout), "out", serde.String(), serde.String())
	topology.RunExample(b, "a=1")
	// Output:
	// out: a=1!
	// out: a=1
}

func ExampleDedup() {
	b := topology.New("app")
	unique := topology.Dedup(source(b), "unique",
		topology.ID(func(r pair) record.ID { return record.StringID(r.Value) }),
		topology.Retention(7*24*time.Hour))
	topology.To(unique, "out", serde.String(), serde.String())
	topology.RunExample(b, "a=bill1", "a=bill1", "a=bill2")
	// Output:
	// out: a=bill1
	// out: a=bill2
}

// Records with one ID may be in several partitions: bring them together first.
func ExampleScopeStream() {
	b := topology.New("app")
	unique := topology.Dedup(source(b), "unique", topology.Retention(time.Hour), topology.ScopeStream())
	topology.To(unique, "out", serde.String(), serde.String())
	topology.RunExample(b, "a=1#id1", "b=1#id1")
	// Output:
	// app-unique-repartition: id1=1
	// app-unique-repartition: id1=1
	// out: a=1
}

func ExampleKeyBy() {
	b := topology.New("app")
	byValue := topology.KeyBy(source(b), "by-value", serde.String(), func(r pair) (string, error) { return r.Value, nil })
	topology.To(byValue, "out", serde.String(), serde.String())
	topology.RunExample(b, "a=x")
	// Output:
	// app-by-value-repartition: x=x
	// out: x=x
}

type total struct{ Sum, Count int }

func (t total) Add(r pair) (total, error) {
	n, err := strconv.Atoi(r.Value)
	return total{t.Sum + n, t.Count + 1}, err
}

func ExampleAggregate() {
	b := topology.New("app")
	totals := topology.Aggregate(source(b), "totals", serde.JSON[total](), total.Add)
	topology.To(totals, "totals", serde.String(), serde.JSON[total]())
	topology.RunExample(b, "ann=5", "bob=1", "ann=7")
	// Output:
	// totals: ann={"Sum":5,"Count":1}
	// totals: bob={"Sum":1,"Count":1}
	// totals: ann={"Sum":12,"Count":2}
}

// A session ends with "end"; what came until then is one record.
func ExampleProcess() {
	b := topology.New("app")
	open := topology.KeyValue("open-sessions", serde.String(), serde.String())
	sessions := topology.Process(source(b), "sessions", func(ctx topology.Context, r pair, emit topology.Emit[string, string]) error {
		soFar, _, err := open.Get(ctx, r.Key)
		if err != nil {
			return err
		}
		if r.Value != "end" {
			return open.Put(ctx, r.Key, soFar+r.Value+" ")
		}
		emit(pair{Key: r.Key, Value: soFar + "until " + ctx.StreamTime().Format("15:04:05")})
		return open.Delete(ctx, r.Key)
	}, topology.WithStore(open))
	topology.To(sessions, "sessions", serde.String(), serde.String())
	topology.RunExample(b, "ann=home", "bob=home", "ann=cart", "ann=end", "bob=end")
	// Output:
	// sessions: ann=home cart until 03:04:08
	// sessions: bob=home until 03:04:09
}

// A store keeps what a key has from one record to the next, and through crashes.
func ExampleKeyValue() {
	b := topology.New("app")
	last := topology.KeyValue("last", serde.String(), serde.String())
	changes := topology.Process(source(b), "changes", func(ctx topology.Context, r pair, emit topology.Emit[string, string]) error {
		before, known, err := last.Get(ctx, r.Key)
		if err != nil || known && before == r.Value {
			return err
		}
		emit(pair{Key: r.Key, Value: before + " -> " + r.Value})
		return last.Put(ctx, r.Key, r.Value)
	}, topology.WithStore(last))
	topology.To(changes, "changes", serde.String(), serde.String())
	topology.RunExample(b, "ann=rome", "bob=oslo", "ann=rome", "ann=bern")
	// Output:
	// changes: ann= -> rome
	// changes: bob= -> oslo
	// changes: ann=rome -> bern
}

// Two operators of one part of the topology may work on one store: here the second reads what the first has noted.
func ExampleWithStore() {
	b := topology.New("app")
	names := topology.KeyValue("names", serde.String(), serde.String())
	type emit = topology.Emit[string, string]
	noted := topology.Process(source(b), "note", func(ctx topology.Context, r pair, emit emit) error {
		if name, ok := strings.CutPrefix(r.Value, "name "); ok {
			return names.Put(ctx, r.Key, name)
		}
		emit(r)
		return nil
	}, topology.WithStore(names))
	greeted := topology.Process(noted, "greet", func(ctx topology.Context, r pair, emit emit) error {
		name, _, err := names.Get(ctx, r.Key)
		emit(pair{Key: r.Key, Value: r.Value + ", " + name})
		return err
	}, topology.WithStore(names))
	topology.To(greeted, "greetings", serde.String(), serde.String())
	topology.RunExample(b, "1=name Ann", "1=hello", "1=name Anna", "1=good bye")
	// Output:
	// greetings: 1=hello, Ann
	// greetings: 1=good bye, Anna
}

func ExampleTo() {
	b := topology.New("app")
	topology.To(source(b), "out", serde.String(), serde.String(),
		topology.IDHeader("message-id"),
		topology.Partition(func(r pair, n int32) record.Partition { return record.Partition(len(r.Key)) % record.Partition(n) }))
	topology.RunExample(b, "a=1")
	// Output: out: a=1
}

func ExampleStream_WithValues() {
	b := topology.New("app")
	type bill struct{ Account string }
	bills := topology.Map(source(b), func(r pair) (string, bill, error) { return r.Key, bill{r.Value}, nil }).
		WithValues(serde.JSON[bill]()) // KeyBy sends them through a topic
	byAccount := topology.KeyBy(bills, "by-account", serde.String(), func(r record.Record[string, bill]) (string, error) { return r.Value.Account, nil })
	topology.To(byAccount, "out", serde.String(), serde.JSON[bill]())
	topology.RunExample(b, "b1=ann")
	// Output:
	// app-by-account-repartition: ann={"Account":"ann"}
	// out: ann={"Account":"ann"}
}

func ExampleBuilder_Build() {
	b := topology.New("app")
	in := source(b)
	topology.To(topology.Dedup(in, "unique"), "out", serde.String(), serde.String())
	swapped := topology.Map(in, func(r pair) (string, string, error) { return r.Value, r.Key, nil }, topology.Name("swap"))
	topology.Aggregate(swapped, "unique", serde.JSON[total](), total.Add)
	_, err := b.Build()
	for _, p := range topology.Problems(err) {
		fmt.Println(p.Operator, p.Rule)
	}
	var first *topology.Problem
	fmt.Println(errors.As(err, &first))
	// Output:
	// unique retention
	// unique unkeyed
	// unique duplicate-name
	// true
}

func ExampleTopology_Describe() {
	b := topology.New("bills-dedup")
	bills := topology.From(b, "bills.raw", serde.String(), serde.String(), topology.Name("bills"))
	unique := topology.Dedup(bills, "unique", topology.Retention(time.Hour))
	topology.To(unique, "bills.unique", serde.String(), serde.String(), topology.Name("publish"))
	topo, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(topo.Describe())
	// Output:
	// Topologies:
	//    Sub-topology: 0
	//     Source: bills (topics: [bills.raw])
	//       --> unique
	//     Processor: unique (stores: [unique-ids])
	//       --> publish
	//       <-- bills
	//     Sink: publish (topic: bills.unique)
	//       <-- unique
}

func ExampleInto() {
	b := topology.New("app")
	totals := topology.Count(source(b), "totals")
	var target sink.Target = nowhere{} // a table of PostgreSQL, for example: see package sink
	topology.Into(totals, "account-totals", serde.String(), serde.Int64(), target, func(r record.Record[string, int64]) (sink.Row, error) {
		return sink.Row{Values: []any{r.Key, r.Value}}, nil
	})
	topo, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, out := range topo.Explain().Outputs {
		fmt.Println(out.Operator, out.Class, out.Level)
	}
	// Output: account-totals-sink plain at_least_once
}
