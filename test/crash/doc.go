// Package crash runs real streamd processes and kills them with kill -9.
//
// The parts know nothing of each other's doings, so that a fault of one cannot hide in another: the
// [Workload] says what is sent and what must come of it, the [Loader] sends it, a [Daemon] is one
// streamd process, a [Reader] follows the output under read_committed while the faults happen (with a
// Kafka client that is not streamd's own), and the checkers [Order] and [Totals] judge what it read.
//
// # On a Kafka in memory
//
// A [Fleet] is three processes, each a [Host] with its directory, and the brokers inside the test (kfake). A [Campaign]
// is a workload that flows through it while a schedule of [Fault]s is carried out: kill -9 at a named point (package
// fault), while EndTxn is unanswered, or at any moment; once more in the recovery; SIGSTOP; a directory that is wiped,
// older, damaged or another's; a disk that is full. At the end the raw topics and the files on the disks are judged by
// package proof. These tests stand behind the build tag kills: make kills. The program under test has the race
// detector, the fault points, and group sessions of three seconds instead of 45 and rebalances of nine instead of 60; nothing else of it differs from
// what is shipped. STREAMD_SOAK=1 asks for the large numbers, STREAMD_FAULTS and STREAMD_PAUSES for others.
//
// # On a real Kafka
//
// The tests behind the build tag kafka: make crash. STREAMD_KILLS sets how many kills. Those of streamd run pipeline files;
// package operators is a program of its own, of windows, a join and timers, whose oracle says what must be committed.
//
// STREAMD_SEED repeats the choices of a run, not its timing.
package crash
