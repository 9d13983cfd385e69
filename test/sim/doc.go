// Package sim runs the real workers of package processor on a simulated Kafka cluster and a simulated
// disk, in one goroutine, from one seed: the same seed on the same commit is the same run.
//
// Several processes live at once. Each is a coroutine that stops before every request, at every point
// of the engine where it may die, around every write to its disk and at every wait; the scheduler picks
// who goes on. So a process can be killed, or left standing as a zombie while others take over,
// between any two of its steps.
//
// The workload is "bills": a dedup whose output is echoed, totals per account in a state store (with
// deletes), and sums per region behind a repartition topic with a dedup of its own. Some runs have more beside it: a join of streams
// and timers, windows behind one or two repartition topics, or a join with a global table. The checks read the
// raw logs of the cluster after the run (see check.go); they know nothing of the faults.
//
//	go test ./test/sim                              the seeds of a normal run, every single crash point
//	go test ./test/sim -run 'Seeds' -seeds 100000   a soak
//	make sim SEED=4711                              one seed again, with its trace
//	go test -tags planted ./test/sim -run Planted   the faults that the simulation must find
package sim
