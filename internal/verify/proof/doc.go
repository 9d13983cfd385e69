// Package proof holds the checks that say whether what stands in Kafka and on disk is what exactly-once
// processing must leave behind. It judges from the raw topics (package rawlog) and the raw files
// (package rawstore): no decoder, no store and no client of the engine is used.
//
//	C1   every accepted ID comes out once, none is missing, none is strange
//	C2   the i-th total of an account is what i of its bills come to
//	C3   the order of a partition is kept
//	C4   totals of regions are the sums over their bills
//	C5   the local store is the fold of the committed changelog
//	C6   committed offset, its metadata, commit record and local store name one commit
//	C7   a reader that ran during the faults saw exactly what stands there at the end
//	C8   no transaction is open: the last stable offset is the end everywhere
//	C9   after the last fault the lag goes to zero within a bound
//	C10  the counted duplicates are those that were sent
//	C11  a database holds each effect once, and its totals are the sums of its ledger
//	C12  the faults were really tried
//
// Each check returns a [Result]: what was compared, the first differences with their place, or why it
// could not be checked. What cannot be checked is never called equal.
//
// # What it does not do
//
// It injects no faults, starts nothing and waits for nothing but C9, so that a fault of the harness
// cannot hide here.
package proof
