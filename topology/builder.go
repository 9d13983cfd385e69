package topology

import (
	"fmt"
	"time"

	"github.com/streamd/streamd/serde"
)

// Builder collects the operators of one application. It is used from one goroutine.
type Builder struct {
	app      string
	nodes    []*node
	kinds    map[string]int // unnamed operators so far, for their names
	problems []*Problem
	timers   map[anyTimers]*node // whose OnTimer they have
	globals  []*global
	built    bool
}

// New starts the topology of an application. Its name is the consumer group, the prefix of the
// transactional IDs and of the internal topics: it must not change while there is state.
func New(app string) *Builder {
	return &Builder{app: app, kinds: map[string]int{}, timers: map[anyTimers]*node{}}
}

// The kinds of operators.
const (
	kindSource    = "source"
	kindMap       = "map"
	kindMapValues = "map_values"
	kindFilter    = "filter"
	kindFlatMap   = "flat_map"
	kindKeyBy     = "key_by"
	kindDedup     = "dedup"
	kindAggregate = "aggregate"
	kindProcess   = "process"
	kindBranch    = "branch"
	kindMerge     = "merge"
	kindSink      = "to"
	kindTable     = "table"
	kindToStream  = "to_stream"
	kindJoin      = "join"
	kindEffect    = "effect"
)

// node is an operator as it is described. It holds no state of any task.
type node struct {
	name   string
	kind   string
	index  int // in the order of declaration, in which an operator comes after its inputs
	opts   options
	inputs []*node
	// outputs are in the order in which records go to them.
	outputs []edge

	source *Source
	sink   *Sink
	dedup  *DedupSpec
	// ends is set where records leave for something that is no Kafka topic: what that promises.
	ends sinkClass
	// elision is the decision about the log of a dedup operator. Build makes it.
	elision *Elision
	stores  []StateStore
	ports   int
	// freePorts is the first port that needs no operator behind it, if ports is greater: what a branch has no case
	// for, side outputs.
	freePorts int
	// lag is how far the records that it hands on may be behind the watermark without being late: the grace of the
	// windows before it, which hold records back.
	lag time.Duration
	// byTime says that it acts when event time passes.
	byTime bool

	// with are the operators that keep what this one looks into: they are in its sub-topology, without an edge.
	with []*node
	// sides are the operators whose records a join brings together: their inputs must be cut into partitions alike.
	sides []*node
	// looked says that others look into what this table makes, so that it needs no operator behind it.
	looked bool
	// wantsOld says that what follows a table must know the value before a change; above are the tables that it is made of.
	wantsOld bool
	above    []*node

	// check finds mistakes that show only when all outputs are known. May be nil.
	check func(note func(rule, what string))

	// instantiate makes the operator for one task: a step[K, V] of its input's types, or the entry
	// of a source.
	instantiate func(c *instance, n *node) any

	// global is the table that a join looks into, which is outside of the tasks; globalLeft says that it hands records on also
	// without a row.
	global     *global
	globalLeft bool

	// external is what a source leads to that reads for a sink outside of Kafka.
	external *External
}

// edge leads to an operator from one of the ports of another.
type edge struct {
	to   *node
	port int // 0 but for a branch
}

// Stream is the output of an operator: records of one key and one value type, in partition order.
// It is a description; several operators may use one, each gets every record.
type Stream[K, V any] struct {
	b    *Builder
	from *node
	port int

	keys   serde.Serde[K] // nil: not known
	values serde.Serde[V] // nil: not known
	// unchanged says that the value is still the one that the source decoded.
	unchanged bool
	policy    Policy // of the operators that follow and have none
	// rekeyed is the operator that may have changed keys since the records were put into partitions
	// by key.
	rekeyed *node
}

// WithKeys returns the stream with a serde for its keys, for operators that must write them. It is
// needed only after an operator that changed the keys' type.
func (s *Stream[K, V]) WithKeys(keys serde.Serde[K]) *Stream[K, V] {
	t := *s
	t.keys = keys
	return &t
}

// WithValues returns the stream with a serde for its values, for operators that must write them
// (KeyBy, Dedup with ScopeStream or ComparePayload). It is needed only after an operator that
// changed their type.
func (s *Stream[K, V]) WithValues(values serde.Serde[V]) *Stream[K, V] {
	t := *s
	t.values = values
	return &t
}

// WithPolicy returns the stream with an error policy for the operators that are put directly behind
// it and are given no OnError of their own. It is the way for Branch and Merge, which take no
// options.
func (s *Stream[K, V]) WithPolicy(p Policy) *Stream[K, V] {
	t := *s
	t.policy = p
	return &t
}

// upstream is what add needs to know of a stream.
type upstream interface{ origin() origin }

type origin struct {
	b      *Builder
	from   *node
	port   int
	policy Policy
}

func (s *Stream[K, V]) origin() origin { return origin{s.b, s.from, s.port, s.policy} }

// add appends an operator behind the given streams. An empty name is replaced by kind and number.
func (b *Builder) add(n *node, inputs ...upstream) *node {
	if n.name == "" {
		n.name = b.invent(n.kind)
	}
	n.ports = max(n.ports, 1)
	if b.built {
		// What is built is shared by tasks and must not change under them.
		b.problem(n, "builder", "added after Build")
		return n
	}
	n.index = len(b.nodes)
	b.nodes = append(b.nodes, n)
	for _, in := range inputs {
		o := in.origin()
		if o.b != b {
			b.problem(n, "builder", "its inputs belong to different builders")
			continue
		}
		if n.opts.policy == PolicyDefault {
			n.opts.policy = o.policy
		}
		for _, e := range o.from.outputs {
			if e.to == n && e.port == o.port {
				b.problem(n, "duplicate-name", fmt.Sprintf("gets the output of %q more than once: every record would count again", o.from.name))
			}
		}
		o.from.outputs = append(o.from.outputs, edge{to: n, port: o.port})
		n.inputs = append(n.inputs, o.from)
		n.lag = max(n.lag, o.from.lag)
	}
	return n
}

// uses says whether anything follows a port.
func (n *node) uses(port int) bool {
	for _, e := range n.outputs {
		if e.port == port {
			return true
		}
	}
	return false
}

func (b *Builder) problem(n *node, rule, what string) {
	b.problems = append(b.problems, &Problem{Operator: n.name, Rule: rule, What: what})
}

// require notes a problem unless ok.
func (b *Builder) require(ok bool, n *node, rule, what string) {
	if !ok {
		b.problem(n, rule, what)
	}
}

// stateName is the name of an operator that must have one. If it has none that is a problem, and it
// gets one by which the problem can be told.
func (b *Builder) stateName(kind, name string) string {
	if name != "" {
		return name
	}
	n := &node{kind: kind, name: b.invent(kind)}
	b.problem(n, "name", "has no name: what is kept under an invented one would be lost when operators are added")
	return n.name
}

func (b *Builder) invent(kind string) string {
	b.kinds[kind]++
	return fmt.Sprintf("%s-%d", kind, b.kinds[kind])
}

// keep returns the serde if it fits the new type too, so that an operator that keeps the type keeps
// the serde.
func keep[T, U any](s serde.Serde[T]) serde.Serde[U] {
	same, _ := any(s).(serde.Serde[U])
	return same
}
