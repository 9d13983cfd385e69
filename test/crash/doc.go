// Package crash runs real streamd processes on a real Apache Kafka and kills them with kill -9.
//
// The parts know nothing of each other's doings, so that a fault of one cannot hide in another: the
// [Workload] says what is sent and what must come of it, the [Loader] sends it, a [Daemon] is one
// streamd process, a [Reader] follows the output under read_committed while the faults happen (with a
// Kafka client that is not streamd's own), and the checkers [Order] and [Totals] judge what it read.
//
// The tests stand behind the build tag kafka: `make crash`. STREAMD_KILLS sets how many kills,
// STREAMD_SEED repeats the choices of a run (not its timing).
package crash
