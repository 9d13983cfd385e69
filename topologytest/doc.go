// Package topologytest runs a topology in a test, with everything that can happen to it: many partitions, several processes, a
// clock that the test moves, crashes at every point of a commit, duplicates, records out of order, fencing and
// rebalances. There is no broker, no network, no goroutine and no sleep: a test takes milliseconds and ends
// the same way each time.
//
//	func TestTotals(t *testing.T) {
//		d := topologytest.New(t, topo, topologytest.Partitions("bills", 4))
//		in := topologytest.Input(d, "bills", serde.String(), serde.JSON[Bill]())
//		out := topologytest.Output(d, "bill-totals", serde.String(), serde.JSON[Total]())
//
//		in.Send("ann", Bill{"b1", 5})
//		in.Send("ann", Bill{"b1", 5}) // the same bill again
//		d.CrashAt(topologytest.AfterCommitBeforeApply)
//		out.ExpectValues(Total{5, 1})
//	}
//
// # What runs
//
// The very engine that processor.New runs, on a model of Kafka with transactions, fencing, consumer groups and
// markers, and on a local store in memory that outlives a process as a disk does. What is not in it: the client library, the
// network, and the state directory on disk.
//
// # When it runs
//
// Send only puts a record into its topic. The application works when something is asked of it: by Run, Advance, an
// Expect, a Store. It then works until nothing is left to do. What an Output shows is what a reader with
// read_committed sees.
//
// # Faults
//
// CrashAt kills a process at a point of its next commit; it is started again and has its disk, but not its memory. Fence and
// Rebalance take a commit or the tasks away from it. Duplicate and Reorder spoil the input. A fault that was asked for and
// never came to pass fails the test: it would prove nothing.
//
// The calls of an effect are made in the test's goroutine, between the steps, and end in any order. Their timeout means nothing there. BeforeCall and AfterCall
// kill a process around one; HoldCalls stands for another system that does not answer.
//
// Fuzz is all of that at random. It runs the same input without any fault and under many schedules of faults, batch sizes and
// commit points, and compares what was committed. A processor that keeps state outside of its stores, looks at the clock, or
// lets the order of a map reach its output is found by that, and the shortest schedule that shows it is
// printed.
//
// # Go memory
//
// A process that dies loses its memory, and a test that goes on in the same Go process does not. Give Rebuild (Fuzz always has
// it), so that each process that starts has a topology of its own; variables of packages are still shared.
package topologytest
