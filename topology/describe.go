package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Describe returns the topology as text: exactly what Kafka Streams' TopologyDescription prints, so
// that tools which draw that can draw this. Repartition topics stand without the application's
// name, as there.
func (t *Topology) Describe() string {
	var sb strings.Builder
	sb.WriteString("Topologies:\n ")
	for i, part := range t.parts {
		sizes := map[*node]int{}
		order := func(a, b *node) int {
			// Kafka Streams' order: the node with the larger tree behind it first, then by name.
			return cmp.Or(cmp.Compare(treeSize(b, sizes), treeSize(a, sizes)), strings.Compare(a.name, b.name))
		}
		fmt.Fprintf(&sb, "  Sub-topology: %d\n", i)
		nodes := slices.Clone(part)
		slices.SortFunc(nodes, order)
		for _, n := range nodes {
			successors := make([]*node, 0, len(n.outputs))
			for _, e := range n.outputs {
				successors = append(successors, e.to)
			}
			next, before := joinNames(successors, order), joinNames(n.inputs, order)
			switch {
			case n.source != nil:
				fmt.Fprintf(&sb, "    Source: %s (topics: [%s])\n      --> %s\n", n.name, shortName(n.source.Topic, n.source.Internal, n.source.External), next)
			case n.sink != nil:
				fmt.Fprintf(&sb, "    Sink: %s (topic: %s)\n      <-- %s\n", n.name, shortName(n.sink.Topic, n.sink.Internal, n.sink.External), before)
			default:
				fmt.Fprintf(&sb, "    Processor: %s (stores: [%s])\n      --> %s\n      <-- %s\n", n.name, strings.Join(n.storeNames(), ", "), next, before)
			}
		}
		sb.WriteString("\n")
	}
	for i, g := range t.globals {
		fmt.Fprintf(&sb, "  Sub-topology: %d for global store (will not generate tasks)\n    Source: %s-source (topics: [%s])\n      --> %s\n"+
			"    Processor: %s (stores: [%s])\n      --> none\n      <-- %s-source\n\n", len(t.parts)+i, g.Name, g.Topic, g.Name, g.Name, g.Name, g.Name)
	}
	return sb.String()
}

// treeSize is the number of nodes behind a node and itself, a node that is reached in two ways
// counted twice.
func treeSize(n *node, sizes map[*node]int) int {
	if s, ok := sizes[n]; ok {
		return s
	}
	s := 1
	for _, e := range n.outputs {
		s += treeSize(e.to, sizes)
	}
	sizes[n] = s
	return s
}

func joinNames(nodes []*node, order func(a, b *node) int) string {
	if len(nodes) == 0 {
		return "none"
	}
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, order)
	names := make([]string, len(sorted))
	for i, n := range sorted {
		names[i] = n.name
	}
	return strings.Join(names, ", ")
}

func shortName(topic string, internal, external bool) string {
	switch {
	case external:
		return topic + sinkSuffix
	case internal:
		return topic + repartitionSuffix
	}
	return topic
}

// storeNames are the stores and the ID log of an operator.
func (n *node) storeNames() []string {
	var names []string
	if n.dedup != nil && !n.leftOut() {
		names = append(names, n.dedup.Name+"-ids")
	}
	for _, h := range n.stores {
		names = append(names, h.spec().Name)
	}
	if n.global != nil {
		names = append(names, n.global.Name)
	}
	return names
}

// NodeKind says what a node of a Graph stands for.
type NodeKind string

// The kinds of nodes.
const (
	NodeTopic    NodeKind = "topic"
	NodeOperator NodeKind = "operator"
	NodeStore    NodeKind = "store"
)

// GraphNode is a topic, an operator or a store.
type GraphNode struct {
	// ID is unique in the graph: kind and name.
	ID   string   `json:"id"`
	Kind NodeKind `json:"kind"`
	Name string   `json:"name"` // topics: the full name
	// Operator is the operator's kind (source, map, dedup, ...), empty for topics and stores.
	Operator string `json:"operator,omitempty"`
	// Internal is true for repartition topics.
	Internal bool `json:"internal,omitempty"`
	// Subtopology is the index of the sub-topology that it belongs to, -1 for topics and global tables.
	Subtopology int `json:"subtopology"`
}

// GraphEdge is the way of records from one node to another, or between an operator and its store.
type GraphEdge struct {
	From string `json:"from"` // a GraphNode.ID
	To   string `json:"to"`
	// Case is the number of the case of a branch; -1: not from a branch. The last one is what no
	// case matched.
	Case int `json:"case"`
}

// Graph is a topology to be drawn.
type Graph struct {
	Name  string      `json:"name"`
	Nodes []GraphNode `json:"nodes"`
	Edges []GraphEdge `json:"edges"`
}

// Graph returns topics, operators and stores with what leads from one to another, in the order of
// declaration.
func (t *Topology) Graph() Graph {
	g := Graph{Name: t.name}
	seen := map[string]bool{}
	add := func(n GraphNode) string {
		n.ID = string(n.Kind) + ":" + n.Name
		if !seen[n.ID] {
			seen[n.ID] = true
			g.Nodes = append(g.Nodes, n)
		}
		return n.ID
	}
	link := func(from, to string, branch int) { g.Edges = append(g.Edges, GraphEdge{from, to, branch}) }
	topic := func(name string, internal, external bool) string {
		return add(GraphNode{Kind: NodeTopic, Name: t.fullName(name, internal, external), Internal: internal, Subtopology: -1})
	}
	for _, g := range t.globals {
		from := topic(g.Topic, false, false)
		link(from, add(GraphNode{Kind: NodeStore, Name: g.Name, Subtopology: -1}), -1)
	}
	for i, part := range t.parts {
		operator := func(n *node) string {
			return add(GraphNode{Kind: NodeOperator, Name: n.name, Operator: n.kind, Subtopology: i})
		}
		for _, n := range part {
			if n.source != nil {
				link(topic(n.source.Topic, n.source.Internal, n.source.External), operator(n), -1)
			}
			id := operator(n)
			for _, store := range n.storeNames() {
				link(id, add(GraphNode{Kind: NodeStore, Name: store, Subtopology: i}), -1)
			}
			for _, e := range n.outputs {
				branch := -1
				if n.kind == kindBranch {
					branch = e.port
				}
				link(id, operator(e.to), branch)
			}
			if n.sink != nil {
				link(id, topic(n.sink.Topic, n.sink.Internal, n.sink.External), -1)
			}
		}
	}
	return g
}
