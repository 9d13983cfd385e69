package daemon

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/streamd/streamd/topology"
)

// Draw writes a topology as text (what Kafka Streams prints), mermaid, dot or json. Without internal,
// mermaid and dot leave out the stores, and draw a repartition topic as an arrow from the operator
// that writes it to those that read it. Text and json are always whole.
func Draw(t *topology.Topology, format string, internal bool) (string, error) {
	switch format {
	case "text":
		return t.Describe(), nil
	case "json":
		out, err := json.MarshalIndent(t.Graph(), "", "  ")
		return string(out) + "\n", err
	case "mermaid":
		return draw(t.Graph(), mermaid{}, internal), nil
	case "dot":
		return draw(t.Graph(), dot{}, internal), nil
	}
	return "", Usagef("format %q is not one of text, mermaid, dot, json", format)
}

// withoutInternal takes stores and repartition topics out of a graph.
func withoutInternal(g topology.Graph) topology.Graph {
	hidden, readers := map[string]bool{}, map[string][]string{}
	for _, n := range g.Nodes {
		hidden[n.ID] = n.Kind == topology.NodeStore || n.Internal
	}
	for _, e := range g.Edges {
		readers[e.From] = append(readers[e.From], e.To)
	}
	out := topology.Graph{Name: g.Name}
	for _, n := range g.Nodes {
		if !hidden[n.ID] {
			out.Nodes = append(out.Nodes, n)
		}
	}
	for _, e := range g.Edges {
		switch {
		case hidden[e.From]:
		case !hidden[e.To]:
			out.Edges = append(out.Edges, e)
		default:
			for _, reader := range readers[e.To] {
				out.Edges = append(out.Edges, topology.GraphEdge{From: e.From, To: reader, Case: e.Case})
			}
		}
	}
	return out
}

// pen writes one drawing language. Identifiers are made by draw and safe; labels are quoted by the pen.
type pen interface {
	begin() string
	cluster(id, label string) string
	clusterEnd() string
	node(id, label string, kind topology.NodeKind) string
	edge(from, to, label string) string
	end() string
}

func draw(g topology.Graph, p pen, internal bool) string {
	if !internal {
		g = withoutInternal(g)
	}
	ids := map[string]string{}
	last := -1
	for i, n := range g.Nodes {
		ids[n.ID] = "n" + strconv.Itoa(i)
		last = max(last, n.Subtopology)
	}
	var b strings.Builder
	write := func(n topology.GraphNode) {
		label := n.Name
		if n.Operator != "" && n.Operator != n.Name {
			label += " (" + n.Operator + ")"
		}
		b.WriteString(p.node(ids[n.ID], label, n.Kind))
	}
	b.WriteString(p.begin())
	for sub := range last + 1 {
		in := func(n topology.GraphNode) bool { return n.Subtopology == sub }
		if !slices.ContainsFunc(g.Nodes, in) {
			continue
		}
		b.WriteString(p.cluster("s"+strconv.Itoa(sub), "Sub-topology "+strconv.Itoa(sub)))
		for _, n := range g.Nodes {
			if in(n) {
				write(n)
			}
		}
		b.WriteString(p.clusterEnd())
	}
	for _, n := range g.Nodes {
		if n.Subtopology < 0 {
			write(n)
		}
	}
	for _, e := range g.Edges {
		label := ""
		if e.Case >= 0 {
			label = "case " + strconv.Itoa(e.Case)
		}
		b.WriteString(p.edge(ids[e.From], ids[e.To], label))
	}
	b.WriteString(p.end())
	return b.String()
}

type mermaid struct{}

func (mermaid) begin() string { return "flowchart LR\n" }
func (mermaid) cluster(id, label string) string {
	return fmt.Sprintf("  subgraph %s [%s]\n", id, mermaidText(label))
}
func (mermaid) clusterEnd() string { return "  end\n" }
func (mermaid) node(id, label string, kind topology.NodeKind) string {
	box := map[topology.NodeKind][2]string{
		topology.NodeOperator: {"(", ")"}, topology.NodeTopic: {"[[", "]]"}, topology.NodeStore: {"[(", ")]"},
	}[kind]
	return fmt.Sprintf("    %s%s%s%s\n", id, box[0], mermaidText(label), box[1])
}

func (mermaid) edge(from, to, label string) string {
	if label != "" {
		return fmt.Sprintf("  %s -->|%s| %s\n", from, mermaidText(label), to)
	}
	return fmt.Sprintf("  %s --> %s\n", from, to)
}
func (mermaid) end() string { return "" }

// mermaidText quotes a label: in quotes only the quote itself and what begins an entity mean something.
func mermaidText(s string) string {
	return `"` + strings.NewReplacer("#", "#35;", `"`, "#quot;").Replace(s) + `"`
}

type dot struct{}

func (dot) begin() string { return "digraph topology {\n  rankdir=LR;\n" }
func (dot) cluster(id, label string) string {
	return fmt.Sprintf("  subgraph cluster_%s {\n    label=%s;\n", id, dotText(label))
}
func (dot) clusterEnd() string { return "  }\n" }
func (dot) node(id, label string, kind topology.NodeKind) string {
	shape := map[topology.NodeKind]string{
		topology.NodeOperator: "box", topology.NodeTopic: "cds", topology.NodeStore: "cylinder",
	}[kind]
	return fmt.Sprintf("    %s [label=%s, shape=%s];\n", id, dotText(label), shape)
}

func (dot) edge(from, to, label string) string {
	if label != "" {
		return fmt.Sprintf("  %s -> %s [label=%s];\n", from, to, dotText(label))
	}
	return fmt.Sprintf("  %s -> %s;\n", from, to)
}
func (dot) end() string { return "}\n" }

func dotText(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
