package archtest

import (
	"fmt"
	"strings"
)

// testLevel is above everything: packages that only tests and examples import.
const testLevel = 6

// levels is the import table. A package has the level of the longest entry that it is or lies
// below; it imports packages of lower levels only, whatever is below its own entry, and the pairs
// of sideways.
var levels = map[string]int{
	"record":              0,
	"serde":               0,
	"internal/invariant":  0,
	"internal/fault":      0,
	"internal/ordered":    0,
	"internal/tlsfile":    0,
	"internal/pgdsn":      0,
	"internal/broker":     1,
	"internal/metric":     1,
	"internal/embedded":   1,
	"window":              1,
	"txlog":               1,
	"dedup":               1,
	"topology":            2,
	"changelog":           2,
	"internal/kafka":      2,
	"internal/simbroker":  2,
	"internal/ingress":    2,
	"processor":           3,
	"sink":                1, // the contract: topology names it
	"sink/internal/sqldb": 2,
	"sink/postgres":       3,
	"sink/mysql":          3,
	"sink/sqlite":         3,
	"sink/redis":          3,
	"sink/files":          3,
	"sink/webhook":        3,
	"sink/sinktest":       4,
	"pipeline":            4,
	"internal/tracing":    4,
	"topologytest":        4,
	"internal/web":        4,
	"page":                5,
	"internal/daemon":     5,
	"internal/demo":       5,
	"internal/worker":     5,
	"internal/verify":     5,
	"internal/soak":       5,
	"internal/operate":    5,
	"internal/ids":        5,
	"cmd":                 5,
	"internal/brokertest": testLevel,
	"internal/archtest":   testLevel,
	"test":                testLevel,
	"examples":            testLevel,
}

// sideways are the imports allowed between two entries of one level.
var sideways = map[[2]string]bool{
	{"serde", "record"}:                      true, // a serde sees the headers of the record
	{"internal/fault", "internal/invariant"}: true,
	// What the commands do stands beside them, so that cmd holds flags and nothing else.
	{"internal/tracing", "pipeline"}:        true, // what an address is
	{"cmd", "internal/daemon"}:              true,
	{"cmd", "internal/demo"}:                true,
	{"internal/demo", "internal/daemon"}:    true,
	{"internal/worker", "internal/daemon"}:  true,
	{"internal/demo", "internal/worker"}:    true,
	{"internal/soak", "internal/worker"}:    true,
	{"cmd", "internal/verify"}:              true,
	{"cmd", "internal/soak"}:                true,
	{"cmd", "internal/operate"}:             true,
	{"cmd", "internal/ids"}:                 true,
	{"internal/ids", "internal/daemon"}:     true,
	{"internal/ids", "internal/verify"}:     true,
	{"internal/operate", "internal/daemon"}: true,
	{"internal/operate", "internal/verify"}: true,
	{"internal/verify", "internal/daemon"}:  true,
	{"internal/soak", "internal/daemon"}:    true,
	{"internal/soak", "internal/verify"}:    true,
}

// stdlibOnly are the packages that everybody shares, so they bring nobody a dependency.
var stdlibOnly = []string{"record", "internal/invariant"}

// soleImporters says which packages may import a library, so that its types and its faults stay
// behind one face. Packages below test/ may compare with the bare library.
var soleImporters = []struct {
	library string
	by      []string
}{
	{"github.com/IBM/sarama", []string{"internal/kafka"}},
	// What checks the store must not share its reader: it would share its mistakes.
	{"github.com/dgraph-io/badger", []string{"txlog", "internal/verify/rawstore"}},
	{"go.opentelemetry.io/otel", []string{"internal/tracing"}},
	{"github.com/bits-and-blooms/bloom", []string{"dedup"}},
	{"github.com/twmb/avro", []string{"serde/registry"}},
	{"github.com/bufbuild/protocompile", []string{"serde/registry"}},
	// The embedded broker of demo and dev is franz-go's kfake; the engine itself has one client only.
	// A check of the engine's outcome uses another client than the engine.
	{"github.com/twmb/franz-go", []string{"internal/embedded", "internal/demo", "internal/verify", "internal/soak", "internal/operate", "internal/brokertest", "internal/kafka/faultnet", "examples/bills"}},
}

// testOnly are packages that no shipped code may reach.
var testOnly = []string{"internal/simbroker", "internal/brokertest", "internal/archtest", "internal/kafka/faultnet", "dedup/deduptest", "internal/ordered", "topologytest", "serde/registry/registrytest"}

// testOnlyImporters may import the packages of testOnly also from files that are no tests.
var testOnlyImporters = []string{"internal/brokertest", "test", "topologytest"}

// levelOf returns the entry of the table that holds for a folder.
func levelOf(dir string) (entry string, level int, ok bool) {
	for e := range levels {
		if within(dir, e) && len(e) > len(entry) {
			entry = e
		}
	}
	level, ok = levels[entry]
	return entry, level, ok
}

// checkLevels holds the import table. Test files may import upwards: Go itself refuses cycles.
func checkLevels(r *Repo) []Finding {
	var found []Finding
	unknown := map[string]bool{}
	for _, f := range r.Go {
		from, level, ok := levelOf(f.Dir)
		if !ok {
			if !unknown[f.Dir] {
				found = append(found, Finding{f.Dir, 0, "package without a level: add it to the table in internal/archtest/levels.go"})
			}
			unknown[f.Dir] = true
			continue
		}
		if f.Test {
			continue
		}
		for _, spec := range f.Syntax.Imports {
			dir, ok := r.own(importPath(spec))
			if !ok {
				continue
			}
			to, toLevel, ok := levelOf(dir)
			if !ok || to == from || toLevel < level || sideways[[2]string{from, to}] {
				continue // a package without a level is reported once, at its own files
			}
			found = append(found, Finding{
				f.Path, r.line(spec),
				fmt.Sprintf("%s (level %d) imports %s (level %d): imports go down only", from, level, to, toLevel),
			})
		}
		if within(f.Dir, "examples") {
			found = append(found, publicOnly(r, f)...)
		}
	}
	return found
}

// publicOnly holds an example to what its reader could write: he cannot import internal packages.
func publicOnly(r *Repo, f *GoFile) []Finding {
	var found []Finding
	for _, spec := range f.Syntax.Imports {
		if dir, ok := r.own(importPath(spec)); ok && within(dir, "internal") {
			found = append(found, Finding{f.Path, r.line(spec), "an example imports " + dir + ", which its reader cannot"})
		}
	}
	return found
}

// checkLibraries holds soleImporters and stdlibOnly, in test files too.
func checkLibraries(r *Repo) []Finding {
	var found []Finding
	for _, f := range r.Go {
		for _, spec := range f.Syntax.Imports {
			p := importPath(spec)
			for _, sole := range soleImporters {
				if !within(p, sole.library) || withinAny(f.Dir, sole.by) || within(f.Dir, "test") {
					continue
				}
				// Tests anywhere may talk to the broker double with a client that is not ours.
				if f.Test && sole.library == "github.com/twmb/franz-go" {
					continue
				}
				found = append(found, Finding{
					f.Path, r.line(spec),
					fmt.Sprintf("imports %s: only %s may", p, strings.Join(sole.by, ", ")),
				})
			}
			host, _, _ := strings.Cut(p, "/")
			if !f.Test && withinAny(f.Dir, stdlibOnly) && strings.Contains(host, ".") {
				found = append(found, Finding{f.Path, r.line(spec), "imports " + p + ": standard library only"})
			}
		}
	}
	return found
}

// checkTestOnly keeps doubles and suites out of shipped code.
func checkTestOnly(r *Repo) []Finding {
	var found []Finding
	for _, f := range r.Go {
		if f.Test || withinAny(f.Dir, testOnlyImporters) {
			continue
		}
		for _, spec := range f.Syntax.Imports {
			dir, ok := r.own(importPath(spec))
			if ok && withinAny(dir, testOnly) && !within(f.Dir, dir) {
				found = append(found, Finding{f.Path, r.line(spec), dir + " is for tests only"})
			}
		}
	}
	return found
}
