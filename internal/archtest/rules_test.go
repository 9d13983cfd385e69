package archtest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// TestRepository holds the rules over this repository.
func TestRepository(t *testing.T) {
	r, err := Load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Go) < 20 {
		t.Fatalf("found %d Go files: this is not the repository", len(r.Go))
	}
	for _, rule := range Rules() {
		t.Run(rule.Name, func(t *testing.T) {
			for _, f := range rule.Check(r) {
				t.Error(f)
			}
		})
	}
}

// tree makes a repository of the files, each "path": text, with the go.mod of this module.
func tree(t *testing.T, files map[string]string) *Repo {
	t.Helper()
	m := fstest.MapFS{"go.mod": {Data: []byte("module example.test/house\n\ngo 1.26\n")}}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	r, err := Load(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const house = `"example.test/house/`

// TestRulesCanFail gives each rule trees that break it and trees that come close and do not.
func TestRulesCanFail(t *testing.T) {
	cases := []struct {
		rule, name string
		files      map[string]string
		want       []string // one piece of each finding, in order; none: the tree is good
	}{
		{"parses", "broken syntax", map[string]string{"record/a.go": "package record\nfunc {"}, []string{"record/a.go: does not parse"}},
		{"parses", "good", map[string]string{"record/a.go": "package record"}, nil},

		{
			"imports go down", "up",
			map[string]string{"dedup/a.go": "package dedup\nimport _ " + house + "processor\""},
			[]string{"dedup/a.go:2: dedup (level 1) imports processor (level 3)"},
		},
		{
			"imports go down", "sideways",
			map[string]string{"changelog/a.go": "package changelog\nimport _ " + house + "topology\""},
			[]string{"changelog (level 2) imports topology (level 2)"},
		},
		{
			"imports go down", "dedup does not know txlog",
			map[string]string{"dedup/a.go": "package dedup\nimport _ " + house + "txlog\""},
			[]string{"dedup (level 1) imports txlog (level 1)"},
		},
		{"imports go down", "changelog does not know txlog: a test may", map[string]string{"changelog/a_test.go": "package changelog\nimport _ " + house + "txlog\""}, nil},
		{"imports go down", "down, deeper and allowed sideways", map[string]string{
			"processor/a.go":    "package processor\nimport _ " + house + "txlog\"",
			"serde/avro/a.go":   "package avro\nimport _ " + house + "serde\"",
			"serde/b.go":        "package serde\nimport _ " + house + "record\"",
			"cmd/streamd/a.go":  "package main\nimport _ " + house + "cmd/streamd/inner\"",
			"examples/pv/a.go":  "package main\nimport _ " + house + "topology\"",
			"internal/web/a.go": "package web\nimport _ " + house + "processor\"",
		}, nil},
		{
			"imports go down", "a package nobody knows, told once",
			map[string]string{"util/a.go": "package util", "util/b.go": "package util"},
			[]string{"util: package without a level"},
		},
		{
			"imports go down", "a name that only begins like a known one",
			map[string]string{"recorder/a.go": "package recorder"},
			[]string{"recorder: package without a level"},
		},
		{
			"imports go down", "an example of what no reader can write",
			map[string]string{"examples/pv/a.go": "package main\nimport _ " + house + "internal/broker\""},
			[]string{"an example imports internal/broker"},
		},

		{
			"libraries have one importer", "sarama",
			map[string]string{"processor/a.go": "package processor\nimport _ \"github.com/IBM/sarama\""},
			[]string{"only internal/kafka may"},
		},
		{
			"libraries have one importer", "badger, by a test, by its major version",
			map[string]string{"dedup/a_test.go": "package dedup\nimport _ \"github.com/dgraph-io/badger/v4\""},
			[]string{"only txlog, internal/verify/rawstore may"},
		},
		{
			"libraries have one importer", "bloom below a package",
			map[string]string{"txlog/a.go": "package txlog\nimport _ \"github.com/bits-and-blooms/bloom/v3\""},
			[]string{"only dedup may"},
		},
		{
			"libraries have one importer", "a second client in the engine",
			map[string]string{"pipeline/a.go": "package pipeline\nimport _ \"github.com/twmb/franz-go/pkg/kgo\""},
			[]string{"only internal/embedded"},
		},
		{
			"libraries have one importer", "nouns with a dependency",
			map[string]string{"record/a.go": "package record\nimport _ \"golang.org/x/sync/errgroup\""},
			[]string{"standard library only"},
		},
		{"libraries have one importer", "good", map[string]string{
			"internal/kafka/a.go":      "package kafka\nimport _ \"github.com/IBM/sarama\"",
			"txlog/a.go":               "package txlog\nimport _ \"github.com/dgraph-io/badger/v4\"",
			"dedup/a.go":               "package dedup\nimport _ \"github.com/bits-and-blooms/bloom/v3\"",
			"test/bench/a.go":          "package bench\nimport _ \"github.com/dgraph-io/badger/v4\"",
			"internal/kafka/b_test.go": "package kafka\nimport _ \"github.com/twmb/franz-go/pkg/kfake\"",
			"record/a.go":              "package record\nimport _ \"encoding/hex\"",
		}, nil},

		{
			"doubles are for tests", "shipped",
			map[string]string{"cmd/streamd/a.go": "package main\nimport _ " + house + "internal/simbroker\""},
			[]string{"internal/simbroker is for tests only"},
		},
		{"doubles are for tests", "used by tests, suites and the driver", map[string]string{
			"processor/a_test.go":      "package processor\nimport _ " + house + "internal/simbroker\"",
			"topologytest/a.go":        "package topologytest\nimport _ " + house + "internal/simbroker\"",
			"test/sim/a.go":            "package sim\nimport _ " + house + "internal/simbroker\"",
			"internal/brokertest/a.go": "package brokertest\nimport _ " + house + "internal/simbroker\"",
		}, nil},

		{"goroutines live in runners", "go and channel in the pure part", map[string]string{
			"processor/task.go": "package processor\nfunc f() { go f(); _ = make(chan int, 1) }",
		}, []string{"go statement", "channel made"}},
		{"goroutines live in runners", "good", map[string]string{
			"processor/runner.go":    "package processor\nfunc f() { go f(); _ = make(chan int) }",
			"processor/task_test.go": "package processor\nfunc f() { go f() }",
			"internal/kafka/a.go":    "package kafka\nfunc f() { go f() }",
			"dedup/a.go":             "package dedup\nfunc f(c chan int) { _ = make([]chan int, 1); f(c) }",
		}, nil},

		{"time is a parameter", "clock, renamed clock, random", map[string]string{
			"dedup/a.go":          "package dedup\nimport \"time\"\nvar a = time.Now()",
			"processor/task_x.go": "package processor\nimport clock \"time\"\nvar a = clock.Since",
			"txlog/a.go":          "package txlog\nimport _ \"math/rand/v2\"",
		}, []string{"dedup/a.go:3: time.Now", "processor/task_x.go:3: time.Since", "txlog/a.go:2: imports math/rand/v2"}},
		{"time is a parameter", "the double may be seeded, but has no clock", map[string]string{
			"internal/simbroker/a.go": "package simbroker\nimport \"math/rand/v2\"\nimport \"time\"\nvar a, b = rand.New, time.NewTimer",
		}, []string{"time.NewTimer"}},
		{"time is a parameter", "good", map[string]string{
			"dedup/a.go":          "package dedup\nimport \"time\"\nvar a = time.Second\nvar b = x{}.Now()",
			"dedup/a_test.go":     "package dedup\nimport \"time\"\nvar c = time.Now()",
			"processor/runner.go": "package processor\nimport \"time\"\nvar c = time.Now()",
		}, nil},

		{
			"no panic, no init", "both",
			map[string]string{"sink/a.go": "package sink\nfunc init() { panic(1) }"},
			[]string{"init function", "panic: return an error"},
		},
		{"no panic, no init", "good", map[string]string{
			"internal/invariant/a.go": "package invariant\nfunc Check() { panic(1) }",
			"internal/simbroker/a.go": "package simbroker\nfunc crash() { panic(1) }",
			"topology/a.go":           "package topology\nfunc f() { if v := recover(); v != 1 { panic(v) } }",
			"sink/a.go":               "package sink\ntype t int\nfunc (t) init() { t(0).panic() }\nfunc (t) panic() {}",
		}, nil},

		{"documented", "no doc.go; a doc.go that says nothing", map[string]string{
			"sink/a.go":    "package sink",
			"serde/doc.go": "package serde",
		}, []string{"serde: package without a doc.go", "sink: package without a doc.go"}},
		{"documented", "bare names", map[string]string{
			"sink/doc.go": "// Package sink is.\npackage sink",
			"sink/a.go":   "package sink\ntype T[K any] struct{}\nfunc (t *T[K]) M() {}\nfunc F() {}\nconst (\n\tA = 1\n)\nvar B int",
		}, []string{"T is exported", "M is exported", "F is exported", "A is exported", "B is exported"}},
		{"documented", "good", map[string]string{
			"sink/doc.go":        "// Package sink is.\npackage sink",
			"sink/a.go":          "package sink\n// T is.\ntype T int\n// M does.\nfunc (T) M() {}\ntype u int\nfunc (u) M() {}\n// All.\nconst (\n\tA = 1\n\tB = 2\n)\nvar C = 1 // is",
			"sink/a_test.go":     "package sink\nfunc TestX() {}",
			"cmd/streamd/doc.go": "// Command streamd is.\npackage main",
			"cmd/streamd/a.go":   "package main\nfunc F() {}",
		}, nil},

		{"file size", "801 lines", map[string]string{"sink/a.go": "package sink\n" + strings.Repeat("\n", 800)}, []string{"801 lines"}},
		{"file size", "800 lines, and a generated file", map[string]string{
			"sink/a.go": "package sink\n" + strings.Repeat("\n", 799),
			"sink/g.go": "// Code generated by x. DO NOT EDIT.\n\npackage sink\n" + strings.Repeat("\n", 800),
		}, nil},

		{"example size", "41 lines", map[string]string{example: "package main\n" + strings.Repeat("var _ = 1\n", 40)}, []string{"41 lines of code"}},
		{"example size", "40 lines and comments", map[string]string{example: "// x\n\npackage main\n" + strings.Repeat("var _ = 1\n", 39)}, nil},

		{"words", "unfinished and of one machine", map[string]string{
			"README.md": "a\n- TO" + "DO: more\n(FIX" + "ME)\n",
			"docs/a.sh": "cd /wo" + "rk/main\ncd /ho" + "me/ann/x\n",
		}, []string{"README.md:2:", "README.md:3:", "docs/a.sh:1:", "docs/a.sh:2:"}},
		{"words", "good", map[string]string{"README.md": "mastodon, docs/wo" + "rk/x, /var/lib/streamd, ~/wo" + "rk\n", "bin": "TO" + "DO\x00"}, nil},
	}
	rules := map[string]Rule{}
	shown := map[string][2]bool{} // a red and a green tree seen
	for _, r := range Rules() {
		rules[r.Name] = r
	}
	for _, c := range cases {
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			rule, ok := rules[c.rule]
			if !ok {
				t.Fatalf("no rule %q", c.rule)
			}
			found := rule.Check(tree(t, c.files))
			for i, f := range found {
				if i >= len(c.want) || !strings.Contains(f.String(), c.want[i]) {
					t.Errorf("finding %d: %v, want %q", i, f, c.want)
				}
			}
			if len(found) != len(c.want) {
				t.Errorf("%d findings, want %d", len(found), len(c.want))
			}
		})
		s := shown[c.rule]
		s[0], s[1] = s[0] || len(c.want) > 0, s[1] || len(c.want) == 0
		shown[c.rule] = s
	}
	for name := range rules {
		if s := shown[name]; !s[0] || !s[1] {
			t.Errorf("rule %q has no red or no green tree", name)
		}
	}
}

// TestLoadNeedsModule: without a module path no import could be told to be ours.
func TestLoadNeedsModule(t *testing.T) {
	for _, m := range []fstest.MapFS{{}, {"go.mod": {Data: []byte("go 1.26\n")}}} {
		if _, err := Load(m); err == nil {
			t.Errorf("loaded %v", m)
		}
	}
}
