// Package chaos runs real streamd processes on three real Kafka brokers (replication 3, two in sync) and
// takes both away from each other: kill -9 of processes, of leaders and of both kinds of coordinators, a
// rolling restart, members that sleep longer than their transactions or their sessions, compaction under
// way, topics that are deleted and made again.
//
// What is sent, what must come of it, and who judges it comes from test/crash: the judges read the raw
// topics with a client that is not streamd's own. The tests stand behind the build tag kafka;
// STREAMD_SOAK=1 makes them ten times as long, STREAMD_SEED repeats the choices of a run (not its timing).
package chaos
