// Package files is a target of package sink: a directory that fills with whole files of JSON lines or CSV, each record in
// exactly one of them. The class is ledger.
//
// The open file grows out of sight. Once it is large or old enough it is synced, and one rename of its folder puts it, with the offsets
// that it stands for, at the next place of a small log: that is the commit. A second rename lets readers see it, under
//
//	<name>-<partition>-<first offset>-<next offset>.jsonl (or .csv, and .gz)
//
// Readers may take files away: the log knows what was there.
//
//	<directory>/.streamd/<sink>/<partition>/work/<claim>/<n>/{data, portion.json}   being written; dropped by the next claim
//	<directory>/.streamd/<sink>/<partition>/log/<n>/portion.json                    committed, the newest one is kept
//	<directory>/.streamd/<sink>/<partition>/log/<n>/data                            committed and not shown yet: the next claim shows it
//
// A claim shuts out whoever was before by taking its folder below work away: then neither a file nor a rename of it succeeds any more. The order is what
// makes that safe, and stands at disown.
//
// Invariants: a folder below log is complete, for it is renamed there as a whole. Nothing below log/<n> but the newest holds data.
//
// It does not delete old files, and makes no directory but its own hidden one.
package files
