// Command streamdbench is streamd's side of the comparison with Kafka Streams: the workloads of the
// peer program, written with topology and processor, behind the peer's --exec protocol, so that one
// loader, one meter and one checker judge both.
//
//	streamdbench --app=NAME --bootstrap=HOST:PORT --in=TOPIC --out=TOPIC --state=DIR --workload=WORKLOAD [--conf.NAME=VALUE ...]
//
// w1 copies. w2 drops records whose header "id" was seen within an hour. w3 does so and counts per
// key; its value is the count as 8 big-endian bytes. w3-window counts per key and hour, w4-join joins with
// a table of the last value of each key, w5-streamjoin joins the records with an even first byte with
// the others of their key within 2.5 s. The defaults are streamd's own. --conf takes
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
