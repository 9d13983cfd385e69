package topology

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/serde"
)

// GlobalKTable is a table that each process has in full, so that a stream can be joined with it by any key, without being
// repartitioned. It is no KTable, since it promises less: its rows are not part of the transaction's cut. A record finds the row as
// the process has read it at that moment; one that is processed again, since its transaction was not committed, may find a
// newer one. It has no changes to follow, either: JoinGlobal and LeftJoinGlobal are all that can be done with it.
// (Kafka Streams: GlobalKTable.)
type GlobalKTable[K, V any] struct {
	b      *Builder
	table  *global
	keys   serde.Serde[K]
	values serde.Serde[V]
}

// GlobalSpec is a global table as a runtime needs it.
type GlobalSpec struct {
	Name  string
	Topic string
	// Policy is what is done about a record that is no row: PolicyStop or PolicySkip.
	Policy Policy
	// MaxBytes bounds the table in memory, by GlobalRowBytes of its rows.
	MaxBytes int64
	// Row makes a row of a record: the key and the value as the joins look for them, in memory of their own. A nil key: the record
	// belongs to no row. A nil value: the row is deleted. An error means that the record is no row. It is called by one goroutine at
	// a time.
	Row func(in *broker.Record) (key, value []byte, err error)
}

// globalRowOverhead is about what a map takes for a key and a value beside their bytes.
const globalRowOverhead = 64

// GlobalRowBytes is what a row counts for in a global table's MaxBytes: its key, its value and 64 bytes.
func GlobalRowBytes(key, value []byte) int64 {
	return int64(len(key)+len(value)) + globalRowOverhead
}

// DefaultGlobalBytes is the bound of a global table without MaxBytes: 256 MiB.
const DefaultGlobalBytes = 256 << 20

// global is a global table as it is declared.
type global struct {
	GlobalSpec
	opts options
	used bool
}

// GlobalTable reads a topic as a global table: each process reads all partitions of it whole, with read_committed, before any of its
// tasks starts, and goes on reading beside them. A record replaces what its key had, one with a null value (a tombstone)
// deletes it, one with a null key is passed over. The topic should be compacted.
//
// No task starts, here or after it has moved to another process, before the table has been read up to where the topic ended when the
// task was about to start. So what a task has seen of a table is never taken back, by whichever process it goes on. If the brokers
// do not answer while it runs, the table stays as it was: status and metrics say how old it is.
//
// The table is in memory, once for each process; MaxBytes bounds it, and the process stops where that is exceeded. It has no state
// in Kafka or on disk: each start reads the topic anew. Options: Name (default: the topic's and "-table"), OnError (PolicyStop, which
// is the default here whatever the application's is, or PolicySkip: then the row stays as it was), MaxBytes.
func GlobalTable[K, V any](b *Builder, topic string, keys serde.Serde[K], values serde.Serde[V], opts ...GlobalTableOption) *GlobalKTable[K, V] {
	g := &global{opts: collect(opts)}
	g.Name, g.Topic, g.Policy, g.MaxBytes = g.opts.name, topic, g.opts.policy, DefaultGlobalBytes
	if g.Name == "" {
		g.Name = topic + "-table"
	}
	problem := func(ok bool, rule, what string) {
		if !ok {
			b.problems = append(b.problems, &Problem{Operator: g.Name, Rule: rule, What: what})
		}
	}
	problem(keys != nil && values != nil, "serde", "a serde is nil")
	problem(!b.built, "builder", "added after Build")
	problem(g.Policy != PolicyDeadLetter, "option", "a global table has no dead letters: each process would send them, at each start. Use PolicyStop or PolicySkip")
	if g.Policy == PolicyDefault {
		g.Policy = PolicyStop
	}
	if g.opts.maxBytes != nil {
		g.MaxBytes = *g.opts.maxBytes
		problem(g.MaxBytes > 0, "option", "MaxBytes is not positive")
	}
	if what := topicNameProblem(topic); what != "" {
		problem(false, "topic", fmt.Sprintf("the name of topic %q %s", topic, what))
	}
	g.Row = func(in *broker.Record) (key, value []byte, err error) { return globalRow(keys, values, in) }
	b.globals = append(b.globals, g)
	return &GlobalKTable[K, V]{b: b, table: g, keys: keys, values: values}
}

// MaxBytes bounds a global table in memory: the process stops with an error where its rows, by GlobalRowBytes, are more. While a table is
// read anew beside the old one, both count by themselves. Default DefaultGlobalBytes.
func MaxBytes(n int64) GlobalSetting {
	return GlobalSetting{func(o *options) { o.maxBytes = &n }}
}

// globalRow decodes a record and encodes its key again, so that each key has one form whatever wrote the topic.
func globalRow[K, V any](keys serde.Serde[K], values serde.Serde[V], in *broker.Record) (key, value []byte, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case invariant.Violation:
			panic(v)
		default:
			stack := debug.Stack()
			key, value, err = nil, nil, &PanicError{Value: v, Stack: stack[:min(len(stack), maxStack)]}
		}
	}()
	if in.Key == nil {
		return nil, nil, nil
	}
	k, err := keys.Decode(in.Key)
	if err == nil {
		key, err = keys.Append(nil, k)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("key: %w", err)
	}
	if in.Value == nil || key == nil {
		return bytes.Clone(key), nil, nil
	}
	if _, err := values.Decode(in.Value); err != nil {
		return nil, nil, fmt.Errorf("value: %w", err)
	}
	return bytes.Clone(key), bytes.Clone(in.Value), nil
}

// JoinGlobal makes one record of each record of the stream and the row that the global table has, as this process has read it, for the
// key that by finds. A record without a row is dropped, counted as no_match, and so is one for which by gives a key that is encoded
// as null. The results are children of the stream's records, with their key, time and headers, in the same partition. A change of
// the table makes no record. What the join promises less than JoinTable says GlobalKTable; Explain names it. Options: OnError.
// (Kafka Streams: KStream.join with a GlobalKTable.)
func JoinGlobal[K, V, GK, T, R any](s *Stream[K, V], t *GlobalKTable[GK, T], name string, by func(key K, value V) (GK, error), fn func(key K, value V, row T) (R, error), opts ...JoinOption) *Stream[K, R] {
	pair := func(k K, v V, row *T) (R, error) { return fn(k, v, *row) }
	return joinGlobal(s, t, name, false, by, pair, fn != nil, opts)
}

// LeftJoinGlobal is JoinGlobal that makes a record also where the table has no row: then row is nil. (Kafka Streams: KStream.leftJoin with
// a GlobalKTable.)
func LeftJoinGlobal[K, V, GK, T, R any](s *Stream[K, V], t *GlobalKTable[GK, T], name string, by func(key K, value V) (GK, error), fn func(key K, value V, row *T) (R, error), opts ...JoinOption) *Stream[K, R] {
	return joinGlobal(s, t, name, true, by, fn, fn != nil, opts)
}

func joinGlobal[K, V, GK, T, R any](s *Stream[K, V], t *GlobalKTable[GK, T], name string, left bool, by func(K, V) (GK, error), fn func(K, V, *T) (R, error), usable bool, opts []JoinOption) *Stream[K, R] {
	b := s.b
	n := &node{kind: kindJoin, name: b.stateName(kindJoin, name), opts: collect(opts), global: t.table, globalLeft: left}
	b.add(n, s)
	b.require(usable && by != nil, n, "function", "a function is nil")
	b.require(t.b == b, n, "builder", "its inputs belong to different builders")
	b.require(n.opts.onLate == ActionDefault, n, "option", "OnLate has a meaning for joins of two streams only")
	t.table.used = true
	n.instantiate = func(c *instance, n *node) any {
		op := c.operator(n)
		get := t.look(c, n, op)
		return joinRow(c, n, op, left, func(key K, value V) (row T, found bool, err error) {
			c.user = op
			k, err := by(key, value)
			c.user = nil
			if err != nil {
				return row, false, op.fail(fmt.Errorf("the key of the row: %w", err))
			}
			return get(k)
		}, fn)
	}
	return &Stream[K, R]{b: b, from: n, keys: s.keys, rekeyed: s.rekeyed}
}

// look makes the function by which an operator of a task reads the table.
func (t *GlobalKTable[K, V]) look(c *instance, n *node, op *operator) lookup[K, V] {
	rt, ok := c.rt.(GlobalRuntime)
	if !ok {
		c.refuse(n, fmt.Sprintf("looks into global table %q, and the runtime has none", t.table.Name))
		return nil
	}
	store, encode, decode := rt.Global(t.table.Name), op.during(StageEncode), op.during(StageDecode)
	decode.policy = PolicyStop // as of a state store: no record in hand is to blame for a row
	copied := serde.Aliases(t.values)
	return func(k K) (v V, ok bool, err error) {
		c.user = encode
		key, err := t.keys.Append(c.keyBuf[:0], k)
		c.user = nil
		if err != nil {
			return v, false, encode.fail(fmt.Errorf("the key of the row: %w", err))
		}
		if key == nil {
			return v, false, nil
		}
		c.keyBuf = key
		row := store.Get(key)
		if row == nil {
			return v, false, nil
		}
		if copied { // other tasks read the same bytes
			row = slices.Clip(bytes.Clone(row))
		}
		c.user = decode
		v, err = t.values.Decode(row)
		c.user = nil
		if err != nil {
			return v, false, decode.fail(fmt.Errorf("row of global table %q: %w", t.table.Name, err))
		}
		return v, true, nil
	}
}

// checkGlobals finds mistakes in global tables that show only when all is known.
func checkGlobals(b *Builder, names map[string]*node, note func(name, rule, format string, args ...any)) {
	byName, byTopic := map[string]bool{}, map[string]string{}
	for _, g := range b.globals {
		if what := topicNameProblem(g.Name); what != "" {
			note(g.Name, "name", "the name %s", what)
		}
		if other := names[g.Name]; other != nil {
			note(g.Name, "duplicate-name", "a %s and a global table have the same name", other.kind)
		}
		if byName[g.Name] {
			note(g.Name, "duplicate-name", "two global tables have the same name")
		}
		if other, ok := byTopic[g.Topic]; ok {
			note(g.Name, "duplicate-topic", "topic %q is global table %q already: use that one twice", g.Topic, other)
		}
		if !g.used {
			note(g.Name, "unused", "no join looks into the global table")
		}
		byName[g.Name], byTopic[g.Topic] = true, g.Name
	}
}

// Globals are the global tables, in the order of declaration.
func (t *Topology) Globals() []GlobalSpec {
	var all []GlobalSpec
	for _, g := range t.globals {
		all = append(all, g.GlobalSpec)
	}
	return all
}
