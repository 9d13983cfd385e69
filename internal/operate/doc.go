// Package operate is what streamd's commands do to a pipeline from outside while it does not run: find out whether machine and cluster
// can run it (Doctor), forget all that it has done (Reset), give a static member's partitions back at once (Leave); and, while it may run, handle
// what waits in its dead letter topic (Letters), look into transactions (InspectTransactions) and into state (InspectLocal, Changelog).
//
// # Reset
//
// It first makes a plan, changes nothing, and carries it out only when asked to. It may be killed at any instruction: until the state
// topics are gone a start of the pipeline goes on as if nothing had been asked for, and running reset again completes it. The
// order is what holds that:
//
//	the group's offsets   a start ignores offsets of others as long as the ID log holds commit records
//	stores, repartitions  a start stops, since the ID log knows of stores that were made anew
//	ID logs               from here on a start begins anew, at the offsets
//	local state           of this machine
//
// Local state on other machines is of ID logs that are no more: topics have IDs, and a start discards a local store whose ID log has
// another one. So the ID of the new ID log is the epoch of the state.
package operate
