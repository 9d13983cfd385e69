// Package planted puts a mistake into the engine and sees whether a test finds it. A harness that has
// never been red proves nothing: each mistake here is one that somebody could make.
//
// The mistake is planted by an overlay of the source when a test binary is compiled (go test -overlay):
// the shipped code holds no switch for it, and the working copy is not touched.
//
//	bug := planted.Bug{Layer: "L1", Name: "applied on an unknown outcome", Changes: []planted.Change{{
//		File: "processor/commit.go", Old: "if outcome != broker.Committed {", New: "if outcome == broker.NotCommitted {",
//	}}}
//	planted.Find(t, bug, planted.Search{Package: "./test/sim", Args: []string{"-test.run=^TestSeeds$", "-seeds=500", "-until-red"}, Limit: 500})
//
// [Find] compiles the package's tests with the bug in them, runs them and wants them red: the output
// must say "red after N seeds" (use [Red] for the words). It prints one line per bug that a tool can
// read:
//
//	PLANTED layer=L1 seeds=17 limit=500 bug="applied on an unknown outcome" error="C5: ..."
//
// seeds=none says that the bug was not found, and then the test has failed. [Check] tells, in
// milliseconds and without compiling, whether every bug still fits its place in the source: a change of
// the engine that moves such a place must move the bug with it.
package planted
