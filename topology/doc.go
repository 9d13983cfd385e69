// Package topology says what to compute: typed operators over a builder, and the planner that cuts
// the graph into sub-topologies. It does no I/O, starts no goroutine and reads no clock.
//
//	b := topology.New("billing")
//	bills := topology.From(b, "bills", serde.String(), serde.JSON[Bill]())
//	unique := topology.Dedup(bills, "unique", topology.Retention(7*24*time.Hour))
//	topology.To(unique, "unique-bills", serde.String(), serde.JSON[Bill]())
//	topo, err := b.Build() // all mistakes at once
//
// # Three layers
//
//   - The description: [Builder], [Stream] and the package-level operators make nodes and edges. [Topology] is
//     the result. It holds no state, so that any number of tasks share one.
//   - The plan: nodes that lead to each other are a [Subtopology]; a repartition topic (KeyBy, Dedup with
//     ScopeStream) ends one and begins the next.
//   - The instance: [Subtopology.NewChain] makes a [Chain] for one task: closures of the user's types, with
//     their own scratch memory, that call each other depth first. What a chain needs from its task is a
//     [Runtime]; below it all is bytes.
//
// # A record in a chain
//
// The source decodes it and gives it an identity (see package record). Each operator is called with a pointer to a
// record that belongs to the operator before it, valid for the call, and hands on a pointer to one of
// its own: nothing is allocated on the way. The sink encodes key, value and ID into memory of the Runtime.
//
// An error ends the record: an [*OperatorError] says which operator failed, at what stage, and under which policy. A panic
// of user code becomes one, too. Its effects are undone by the Runtime.
//
// # Invariants
//
//   - INV-3: user code behind a Dedup does not run for an ID that the log knows, unless OnDuplicate(Forward) asks for it.
//   - The same records in the same order give the same outputs with the same IDs, in every task and every process.
//   - Two instances share nothing that changes.
//   - Every record that enters an operator is counted as out, dropped with a reason, or an error.
//
// # What it does not do
//
// It does not run anything: see package processor, and topologytest for tests without a broker. It does not check that the
// topics exist, nor that co-partitioned ones ([Topology.CoPartitioned]) have the same number of partitions.
package topology
