// Command streamdbench is streamd's side of the comparison with Kafka Streams: the workloads of the
// peer program, written with topology and processor, behind the peer's --exec protocol, so that one
// loader, one meter and one checker judge both.
//
//	streamdbench --app=NAME --bootstrap=HOST:PORT --in=TOPIC --out=TOPIC --state=DIR --workload=w1|w2|w3 [--conf.NAME=VALUE ...]
//
// w1 copies. w2 drops records whose header "id" was seen within an hour. w3 does so and counts per
// key; its value is the count as 8 big-endian bytes. The defaults are streamd's own. --conf takes
//
//	workers             number of workers
//	commit.interval.ms  the longest transaction
//	expected.ids        distinct IDs per partition within the hour
//	cpuprofile          file for a CPU profile
//	heapprofile         file for a heap profile, written at each SIGUSR1
//	log                 debug, info, warn or error: log to standard error (default: warn)
//
// Settings of the peer that mean nothing here (profile, leave) are taken and ignored.
package main
