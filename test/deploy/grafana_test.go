package deploy

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

type dashboard struct {
	Panels []struct {
		Type, Title, Description string
		Targets                  []struct{ Expr string }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		GridPos                  struct{ X, Y, W, H int }
	}
	Templating struct{ List []struct{ Name string } }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "deploy/grafana/streamd.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// Counters that move with their tasks: rate() of one process takes a step for records (docs/adr/0003).
var moving = regexp.MustCompile(`(rate|increase)\(streamd_(consumed|produced|operator|dedup_(checked|duplicates|missing|conflicts|bloom_lookups)|dead_letter|changelog)_[a-z_]*total`)

func TestEveryPanelIsExplained(t *testing.T) {
	d := readDashboard(t)
	var rows []string
	titles := map[string]bool{}
	for i, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d, %q: it has no title, description, unit or query", i, p.Title)
		}
		if titles[p.Title] {
			t.Errorf("two panels are called %q", p.Title)
		}
		titles[p.Title] = true
		for _, q := range p.Targets {
			if moving.MatchString(q.Expr) {
				t.Errorf("%q takes a rate of one process's counter: sum first. %s", p.Title, q.Expr)
			}
		}
		for _, o := range d.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if a.X+a.W > 24 || a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q lies over %q", p.Title, o.Title)
			}
		}
	}
	if got := strings.Join(rows, ", "); got != "Is it well?, Flow, Dedup, Transactions, State, Sinks, Process" {
		t.Errorf("rows: %s", got)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if got := strings.Join(variables, " "); got != "datasource pipeline operator instance" {
		t.Errorf("variables: %s", got)
	}
}

// What a query takes from a recording rule is recorded.
func TestRecordedSumsExist(t *testing.T) {
	rules := read(t, "deploy/prometheus/streamd.rules.yaml")
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			for _, name := range regexp.MustCompile(`\b[a-z_]+:streamd_[a-z_]+:[a-z0-9]+`).FindAllString(q.Expr, -1) {
				if !strings.Contains(rules, "record: "+name+"\n") {
					t.Errorf("%q: no rule records %s", p.Title, name)
				}
			}
		}
	}
}
