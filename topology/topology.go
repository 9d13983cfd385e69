package topology

import (
	"fmt"
	"slices"
)

// Topology is what an application computes: a description that any number of apps, tasks and tests
// may use at the same time. Builder.Build makes it.
type Topology struct {
	name  string
	nodes []*node
	subs  []*Subtopology
	parts [][]*node // of each sub-topology

	globals []*global
}

// Name is the application's name.
func (t *Topology) Name() string { return t.name }

// Subtopologies are the parts that run independently, in the order of declaration. Do not change them.
func (t *Topology) Subtopologies() []*Subtopology { return t.subs }

// Operators are all nodes, in the order of declaration.
func (t *Topology) Operators() []OperatorSpec {
	var all []OperatorSpec
	for _, n := range t.nodes {
		all = append(all, n.spec())
	}
	return all
}

// RepartitionTopic is the name of the topic between two sub-topologies: <app>-<name>-repartition.
// name is that of the KeyBy or Dedup, which stands in Source.Topic and Sink.Topic.
func (t *Topology) RepartitionTopic(name string) string {
	return t.name + "-" + name + repartitionSuffix
}

// IDLogTopic is the name of the topic of a sub-topology's processed IDs and commit records:
// <app>-<sub>-ids-changelog.
func (t *Topology) IDLogTopic(s *Subtopology) string { return t.name + "-" + s.Name + "-ids-changelog" }

// StoreTopic is the name of a state store's changelog topic: <app>-<store>-changelog.
func (t *Topology) StoreTopic(store string) string { return t.name + "-" + store + "-changelog" }

// SourceTopic is the full name of a source's topic.
func (t *Topology) SourceTopic(s Source) string { return t.fullName(s.Topic, s.Internal, s.External) }

// SinkTopic is the full name of a sink's topic.
func (t *Topology) SinkTopic(s Sink) string { return t.fullName(s.Topic, s.Internal, s.External) }

// fullName is the name of a topic in the cluster: <app>-<name>-sink in front of a sink outside of Kafka.
func (t *Topology) fullName(topic string, internal, external bool) string {
	if internal {
		return t.name + "-" + shortName(topic, internal, external)
	}
	return topic
}

// CoPartitioned are the input topics of each sub-topology, by their full names, in the order of
// Subtopologies: partition p of all topics of one set is one task's input, so that they must have
// the same number of partitions.
func (t *Topology) CoPartitioned() [][]string {
	sets := make([][]string, len(t.subs))
	for i, s := range t.subs {
		for _, src := range s.Sources {
			sets[i] = append(sets[i], t.SourceTopic(src))
		}
	}
	return sets
}

func (n *node) spec() OperatorSpec {
	return OperatorSpec{Name: n.name, Kind: n.kind, Policy: n.opts.policy}
}

// connected splits the nodes into those that lead to each other. Repartition topics are no connection.
func connected(nodes []*node) [][]*node {
	root := map[*node]*node{}
	var find func(n *node) *node
	find = func(n *node) *node {
		if r, ok := root[n]; ok && r != n {
			root[n] = find(r)
			return root[n]
		}
		return n
	}
	for _, n := range nodes {
		for _, in := range n.inputs {
			root[find(n)] = find(in)
		}
		for _, kept := range n.with {
			root[find(n)] = find(kept)
		}
	}
	var parts [][]*node
	index := map[*node]int{}
	for _, n := range nodes {
		r := find(n)
		i, ok := index[r]
		if !ok {
			i = len(parts)
			index[r] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], n)
	}
	return parts
}

// newSubtopology describes connected nodes. They are in topological order, since an operator is
// declared after its inputs.
func newSubtopology(index int, nodes []*node) *Subtopology {
	s := &Subtopology{Index: index}
	var sources []*node
	sinks := map[*node]int{}
	for _, n := range nodes {
		s.Operators = append(s.Operators, n.spec())
		if n.source != nil {
			sources = append(sources, n)
			s.Sources = append(s.Sources, *n.source)
			s.External = n.external
		}
		if n.sink != nil {
			sinks[n] = len(s.Sinks)
			s.Sinks = append(s.Sinks, *n.sink)
		}
		switch {
		case n.dedup == nil:
		case n.leftOut():
			s.LeftOut = append(s.LeftOut, *n.dedup)
		default:
			s.Dedups = append(s.Dedups, *n.dedup)
		}
		if n.kind == kindEffect {
			s.Effects = append(s.Effects, n.opts.effect)
		}
		for _, h := range n.stores {
			if !slices.Contains(s.Stores, h.spec()) {
				s.Stores = append(s.Stores, h.spec())
			}
		}
	}
	for _, n := range nodes {
		if n.global != nil && !slices.Contains(s.Globals, n.global.Name) {
			s.Globals = append(s.Globals, n.global.Name)
		}
		if len(n.sides) > 0 {
			s.Joins = append(s.Joins, JoinSpec{Operator: n.name, Sources: sourcesOf(n.sides, sources)})
		}
	}
	s.Name = s.Sources[0].Name
	s.newChain = func(rt Runtime) (*Chain, error) { return newChain(rt, sources, sinks) }
	return s
}

// Build returns the topology, or every mistake in it: each a *Problem, joined (see Problems).
// Nothing can be added to the builder afterwards.
func (b *Builder) Build() (*Topology, error) {
	t := &Topology{name: b.app, nodes: b.nodes, parts: connected(b.nodes), globals: b.globals}
	problems := append(slices.Clone(b.problems), check(b, t)...)
	if len(problems) > 0 {
		return nil, joinProblems(problems)
	}
	inheritTime(t.parts)
	markTime(t.parts)
	elide(t.nodes)
	for i, part := range t.parts {
		t.subs = append(t.subs, newSubtopology(i, part))
	}
	if problems := checkTopics(t); len(problems) > 0 {
		return nil, joinProblems(problems)
	}
	b.built = true
	return t, nil
}

// check finds the mistakes that only the whole shows.
func check(b *Builder, t *Topology) []*Problem {
	var found []*Problem
	note := func(name, rule, format string, args ...any) {
		found = append(found, &Problem{Operator: name, Rule: rule, What: fmt.Sprintf(format, args...)})
	}
	if what := topicNameProblem(b.app); what != "" {
		note(b.app, "name", "the application's name begins the names of internal topics, and %s", what)
	}
	if len(b.nodes) == 0 {
		note(b.app, "empty", "the topology has no source")
	}
	names, topics := map[string]*node{}, map[string]*node{}
	for _, n := range b.nodes {
		if what := topicNameProblem(n.name); what != "" && n.name != "" && (n.source == nil || n.name != n.source.Topic) {
			note(n.name, "name", "the name %s", what)
		}
		if other := names[n.name]; other != nil {
			note(n.name, "duplicate-name", "a %s and a %s have the same name", other.kind, n.kind)
		}
		names[n.name] = n
		if n.source != nil && !n.source.Internal {
			if other := topics[n.source.Topic]; other != nil {
				note(n.name, "duplicate-topic", "topic %q is read by source %q already: use its stream twice", n.source.Topic, other.name)
			}
			topics[n.source.Topic] = n
		}
		checkUse(n, note)
		if n.check != nil {
			n.check(func(rule, what string) { note(n.name, rule, "%s", what) })
		}
	}
	for _, n := range b.nodes {
		if n.sink == nil || n.sink.Internal || n.opts.feedback {
			continue
		}
		if source := topics[n.sink.Topic]; source != nil {
			note(n.name, "loop", "writes topic %q, which source %q reads: its records would come back without end; if that is meant, say so with Feedback", n.sink.Topic, source.name)
		}
	}
	checkGlobals(b, names, note)
	checkStores(t, note)
	return found
}

// checkUse finds outputs that nothing reads: what was meant to happen with the records does not.
func checkUse(n *node, note func(name, rule, format string, args ...any)) {
	if n.sink != nil || n.external != nil || n.kind == kindAggregate || n.kind == kindProcess || n.kind == kindTable || n.kind == kindEffect || n.looked {
		return // their effect is elsewhere
	}
	if n.kind == kindDedup && len(n.outputs) > 0 {
		return // any of its outputs may be what it is for
	}
	used := make([]bool, n.ports)
	for _, e := range n.outputs {
		used[e.port] = true
	}
	for port, ok := range used {
		switch {
		case ok || n.ports > 1 && port >= n.freePorts:
		case n.kind == kindBranch:
			note(n.name, "unused", "the stream of case %d is not used", port)
		default:
			note(n.name, "unused", "its stream is not used: end it with To")
		}
	}
}

// checkStores finds stores that are not what each of their operators takes them for.
func checkStores(t *Topology, note func(name, rule, format string, args ...any)) {
	type owner struct {
		handle StateStore
		part   int
		node   *node
	}
	owners := map[string]owner{}
	for i, part := range t.parts {
		for _, n := range part {
			for _, h := range n.stores {
				name := h.spec().Name
				o, known := owners[name]
				switch {
				case !known:
					owners[name] = owner{h, i, n}
					if what := topicNameProblem(name); what != "" {
						note(n.name, "store", "the name of store %q %s", name, what)
					}
				case o.handle != h:
					note(n.name, "store", "store %q is another one than that of %q, with the same name", name, o.node.name)
				case o.part != i:
					note(n.name, "store", "store %q is used by %q in another sub-topology, which has other tasks", name, o.node.name)
				}
			}
		}
	}
}

// checkTopics finds names of internal topics that Kafka would refuse, or that another topic has.
func checkTopics(t *Topology) []*Problem {
	var found []*Problem
	taken := map[string]string{}
	take := func(operator, topic, what string) {
		if p := topicNameProblem(topic); p != "" {
			found = append(found, &Problem{Operator: operator, Rule: "topic", What: fmt.Sprintf("the name of its %s, %q, %s", what, topic, p)})
		}
		if other, ok := taken[topic]; ok {
			found = append(found, &Problem{Operator: operator, Rule: "duplicate-topic", What: fmt.Sprintf("its %s %q is also the %s", what, topic, other)})
		}
		taken[topic] = what + " of " + fmt.Sprintf("%q", operator)
	}
	for _, s := range t.subs {
		take(s.Name, t.IDLogTopic(s), "ID log topic")
		for _, st := range s.Stores {
			take(st.Name, t.StoreTopic(st.Name), "changelog topic")
		}
		for _, src := range s.Sources {
			take(src.Name, t.SourceTopic(src), "input topic")
		}
	}
	found = append(found, checkCoPartitions(t)...)
	for _, s := range t.subs {
		for _, k := range s.Sinks {
			// Two sinks may share a topic, and a topic may be written and read. Only internal
			// topics are nobody else's.
			if other, ok := taken[k.Topic]; ok && !k.Internal && !isInput(t, k.Topic) {
				found = append(found, &Problem{Operator: k.Name, Rule: "duplicate-topic", What: fmt.Sprintf("its topic %q is also the %s", k.Topic, other)})
			}
		}
	}
	return found
}

// isInput says whether the topic is one that the user reads.
func isInput(t *Topology, topic string) bool {
	for _, s := range t.subs {
		for _, src := range s.Sources {
			if !src.Internal && src.Topic == topic {
				return true
			}
		}
	}
	return false
}
