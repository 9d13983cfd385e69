package topology

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs:\n%s\nwant\n%s", name, got, want)
	}
}

// billing is the topology of the example: dedup, then totals per account through a repartition topic.
func billing() *Builder {
	b := New("billing")
	bills := From(b, "bills.raw", serde.String(), serde.String(), Name("bills"))
	unique := Dedup(bills, "unique", Retention(7*24*time.Hour))
	valid := Filter(unique, keyIs("a"), Name("valid"))
	To(unique, "bills.unique", serde.String(), serde.String(), Name("publish"))
	byAccount := KeyBy(valid, "by-account", serde.String(), keyOf)
	totals := Aggregate(byAccount, "totals", serde.Int64(), count)
	To(totals, "bill-totals", serde.String(), serde.Int64())
	branches := Branch(totals, "size", func(r record.Record[string, int64]) (bool, error) { return r.Value > 9, nil })
	To(branches[0], "big", serde.String(), serde.Int64())
	return b
}

func TestDescribe(t *testing.T) {
	topo, err := billing().Build()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "billing.txt", topo.Describe())
	j, err := json.MarshalIndent(topo.Graph(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "billing.json", string(j)+"\n")
}

func TestDescribeSimple(t *testing.T) {
	b := New("bills-dedup")
	in := From(b, "bills.raw", serde.String(), serde.String(), Name("bills"))
	To(Dedup(in, "unique", Retention(time.Hour)), "bills.unique", serde.String(), serde.String(), Name("publish"))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	const want = `Topologies:
   Sub-topology: 0
    Source: bills (topics: [bills.raw])
      --> unique
    Processor: unique (stores: [unique-ids])
      --> publish
      <-- bills
    Sink: publish (topic: bills.unique)
      <-- unique

`
	if got := topo.Describe(); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

// TestDescribeIsReadByVisualisers reads the text with the expressions that kafka-streams-viz uses, line by line as it does,
// and compares what it sees with the graph.
func TestDescribeIsReadByVisualisers(t *testing.T) {
	topo, err := billing().Build()
	if err != nil {
		t.Fatal(err)
	}
	sub := regexp.MustCompile(`Sub-topology: ([0-9]*)`)
	entity := regexp.MustCompile(`(Source:|Processor:|Sink:)\s+(\S+)\s+\((topics|topic|stores):(.*)\)`)
	arrow := regexp.MustCompile(`-->\s+(.*)$`)
	strip := regexp.MustCompile(`\[|\]`)
	edges, subs, name := map[string]bool{}, 0, ""
	for _, line := range strings.Split(topo.Describe(), "\n") {
		if sub.MatchString(line) {
			subs++
		} else if m := entity.FindStringSubmatch(line); m != nil {
			name = m[2]
			for _, linked := range strings.Split(strip.ReplaceAllString(m[4], ""), ",") {
				switch linked = strings.TrimSpace(linked); {
				case linked == "":
				case m[3] == "topics":
					edges[linked+" > "+name] = true
				default:
					edges[name+" > "+linked] = true
				}
			}
		} else if m := arrow.FindStringSubmatch(line); m != nil {
			for _, target := range strings.Split(m[1], ",") {
				if target = strings.TrimSpace(target); target != "none" {
					edges[name+" > "+target] = true
				}
			}
		}
	}
	if subs != len(topo.Subtopologies()) {
		t.Errorf("%d sub-topologies were seen", subs)
	}
	g := topo.Graph()
	byID := map[string]string{}
	for _, n := range g.Nodes {
		byID[n.ID] = strings.TrimPrefix(n.Name, "billing-") // repartition topics stand without the application's name
	}
	for _, e := range g.Edges {
		if k := byID[e.From] + " > " + byID[e.To]; !edges[k] {
			t.Errorf("the edge %s was not seen", k)
		} else {
			delete(edges, k)
		}
	}
	if len(edges) > 0 {
		t.Errorf("seen beyond the graph: %v", edges)
	}
}

func TestOperatorSpecs(t *testing.T) {
	topo, err := billing().Build()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, o := range topo.Operators() {
		kinds = append(kinds, o.Name+":"+o.Kind)
	}
	const want = "bills:source unique:dedup valid:filter publish:to by-account:key_by by-account-repartition:source totals:aggregate to-bill-totals:to size:branch to-big:to"
	if got := strings.Join(kinds, " "); got != want {
		t.Errorf("operators are %s, want %s", got, want)
	}
}
