package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/streamd/streamd/topology"
)

// Measures of the drawing, in the units of the SVG.
const (
	boxWidth, boxHeight = 168, 46
	columnPitch         = 238
	rowPitch            = 66
	margin              = 12
	labelRunes          = 21 // that fit into a box
	sweeps              = 4
)

// graphView is one sub-topology, drawn from left to right. A topic between two of them stands in both, so
// that no line goes from one drawing to another.
type graphView struct {
	Title         string
	Width, Height int
	Boxes         []box
	Lines         []line
}

// box is a topic or an operator.
type box struct {
	X, Y, W, H   int
	Class        string
	Label, Title string
	Detail       string
	Href         string // of an operator: its panel
	Current      bool

	column int
	order  float64
}

// line is the way from one box to another.
type line struct {
	Path   string
	Class  string // its width, by rate
	Label  string // the rate
	LX, LY int
	Title  string
}

// drawing is a sub-topology while it is laid out.
type drawing struct {
	boxes  []*box
	byID   map[string]*box
	edges  []topology.GraphEdge
	stores map[string][]string // by operator
}

// graphs lays out each sub-topology of a topology.
func graphs(g topology.Graph, live Live, details map[string]string, link func(step string) string, current string) []graphView {
	node := map[string]topology.GraphNode{}
	last := -1
	for _, n := range g.Nodes {
		node[n.ID] = n
		last = max(last, n.Subtopology)
	}
	var out []graphView
	for sub := range last + 1 {
		d := &drawing{byID: map[string]*box{}, stores: map[string][]string{}}
		add := func(n topology.GraphNode) {
			if d.byID[n.ID] != nil {
				return
			}
			b := &box{W: boxWidth, H: boxHeight, Label: shorten(n.Name, labelRunes), Title: n.Name, Class: string(n.Kind), Detail: n.Operator}
			switch {
			case n.Kind == topology.NodeOperator:
				b.Href, b.Current = link(n.Name), n.Name == current
				if n.Operator == "dedup" {
					b.Class += " dedup"
				}
				if t := details[n.Name]; t != "" {
					b.Detail += " · " + t
				}
			case n.Internal:
				b.Class += " internal"
				b.Detail = "repartition topic"
			default:
				b.Detail = "topic"
			}
			d.boxes = append(d.boxes, b)
			d.byID[n.ID] = b
		}
		for _, n := range g.Nodes {
			if n.Subtopology == sub && n.Kind == topology.NodeOperator {
				add(n)
			}
		}
		for _, e := range g.Edges {
			from, to := node[e.From], node[e.To]
			switch {
			case from.Subtopology != sub && to.Subtopology != sub:
			case to.Kind == topology.NodeStore:
				if b := d.byID[e.From]; b != nil {
					d.stores[e.From] = append(d.stores[e.From], to.Name)
				}
			default:
				add(from)
				add(to)
				d.edges = append(d.edges, e)
			}
		}
		for id, names := range d.stores {
			b := d.byID[id]
			b.Class += " stateful"
			b.Title += " with " + strings.Join(names, ", ")
		}
		out = append(out, d.lay(fmt.Sprintf("Sub-topology %d", sub), live, node))
	}
	return out
}

// lay places the boxes: column by the longest way from an input, order by the neighbours.
func (d *drawing) lay(title string, live Live, node map[string]topology.GraphNode) graphView {
	// As many rounds as boxes: enough for any graph without a circle, and an end for one with.
	for range d.boxes {
		moved := false
		for _, e := range d.edges {
			from, to := d.byID[e.From], d.byID[e.To]
			if to.column <= from.column && from.column < len(d.boxes) {
				to.column, moved = from.column+1, true
			}
		}
		if !moved {
			break
		}
	}
	var columns [][]*box
	for _, b := range d.boxes {
		for len(columns) <= b.column {
			columns = append(columns, nil)
		}
		columns[b.column] = append(columns[b.column], b)
	}
	number := func(column []*box) {
		for i, b := range column {
			b.order = float64(i)
		}
	}
	for _, c := range columns {
		number(c)
	}
	for sweep := range sweeps {
		for i := range columns {
			c := columns[i]
			forward := sweep%2 == 0
			if !forward {
				c = columns[len(columns)-1-i]
			}
			d.sort(c, forward)
			number(c)
		}
	}
	g := graphView{Title: title}
	rows := 0
	for _, c := range columns {
		rows = max(rows, len(c))
	}
	for x, c := range columns {
		for y, b := range c {
			b.X = margin + x*columnPitch
			b.Y = margin + (rows-len(c))*rowPitch/2 + y*rowPitch
		}
	}
	g.Width = 2*margin + (len(columns)-1)*columnPitch + boxWidth
	g.Height = 2*margin + max(rows-1, 0)*rowPitch + boxHeight
	for _, b := range d.boxes {
		g.Boxes = append(g.Boxes, *b)
	}
	into := map[string]int{}
	for _, e := range d.edges {
		into[e.To]++
	}
	for _, e := range d.edges {
		g.Lines = append(g.Lines, d.line(e, edgeRate(e, into, live, node), node))
	}
	return g
}

// sort orders a column by the middle of each box's neighbours before it, or behind it.
func (d *drawing) sort(column []*box, before bool) {
	middle := map[*box]float64{}
	for _, b := range column {
		sum, n := 0.0, 0
		for _, e := range d.edges {
			from, to := d.byID[e.From], d.byID[e.To]
			if before && to == b {
				sum, n = sum+from.order, n+1
			} else if !before && from == b {
				sum, n = sum+to.order, n+1
			}
		}
		middle[b] = b.order
		if n > 0 {
			middle[b] = sum / float64(n)
		}
	}
	slices.SortStableFunc(column, func(a, b *box) int { return cmp.Compare(middle[a], middle[b]) })
}

// edgeRate is what goes along an edge: what its reader takes in if that has no other input, else what its
// writer gives out.
func edgeRate(e topology.GraphEdge, into map[string]int, live Live, node map[string]topology.GraphNode) float64 {
	from, to := node[e.From], node[e.To]
	if to.Kind == topology.NodeOperator && (into[e.To] == 1 || from.Kind != topology.NodeOperator) {
		return live.Operators[to.Name].In
	}
	return live.Operators[from.Name].Out
}

func (d *drawing) line(e topology.GraphEdge, rate float64, node map[string]topology.GraphNode) line {
	from, to := d.byID[e.From], d.byID[e.To]
	x1, y1, x2, y2 := from.X+from.W, from.Y+from.H/2, to.X, to.Y+to.H/2
	l := line{
		Path:  fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x1, y1, x1+(x2-x1)/2, y1, x1+(x2-x1)/2, y2, x2, y2),
		Class: "w" + fmt.Sprint(weight(rate)), LX: x2 - 35, LY: y2 - 7,
		Title: node[e.From].Name + " → " + node[e.To].Name,
	}
	if rate > 0 {
		l.Label = Short(rate) + "/s"
	}
	return l
}

// weight is the width of a line, 0 (idle) to 5: one more with each factor of ten.
func weight(rate float64) int {
	if rate <= 0 {
		return 0
	}
	return int(min(max(math.Log10(rate)+1, 1), 5))
}

// shorten cuts a text to so many characters.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}
