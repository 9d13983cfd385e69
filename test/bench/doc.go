// Command bench compares streamd with Kafka Streams: the same workloads, on one real broker, by one
// loader, one meter and one checker, the two systems taking turns. It prints Markdown tables of
// medians and ratios with the command that made them.
//
//	make bench PEER=FOLDER
//	go run ./test/bench -peer FOLDER -parts throughput,latency,recovery -reps 3
//
// # The peer
//
// PEER is a folder with the Kafka Streams bench program: a run.sh with the subcommands build, broker,
// load, one COMMAND ARGS and stop, whose harness runs another program in place of its own
// application if it is given --exec="PROGRAM ARGS" (the protocol stands at the top of its Bench.java;
// streamdbench speaks it). It is copied into a scratch folder and built there with Maven and a JDK.
//
// # What is measured
//
//	throughput  1,000,000 records of 16 + 100 bytes with an ID header, 5 % of them repeats, 4 partitions:
//	            copy (w1), dedup over one hour (w2), dedup and count per key (w3), dedup and count per key and
//	            hour (w3-window), dedup and join with a table of the last value of each key (w4-join), dedup and
//	            join of the two halves of the stream per key within 2.5 s (w5-streamjoin)
//	latency     dedup, from the planned send to the receipt by a read_committed reader
//	recovery    two million IDs, 5,000 records/s coming in, kill -9 and a start at once
//
// Kafka Streams runs with exactly_once_v2, once with its defaults and once with each tuned setting
// that its run.sh knows; "tuned" in a table is the best of these for each line. A run whose output the
// checker calls wrong ends the program with an error: a figure of a wrong run is no figure.
//
// The last three workloads are not in the peer's program: peer/bench/Operators.java is copied among its classes, takes its
// configuration and its deduplication, and has their topologies. w3-window is wrong if its input crosses a full hour.
//
// For w5-streamjoin peer/bench/StreamJoin.java loads the same records with times of their own, one millisecond apart in a
// partition, so that a record finds one match on average wherever it runs. Its check, which is put into the peer's checker,
// works out every pair from the input: each must come once, with both values, its key and its time, those of a key in
// order, and nothing else.
//
// The machine should do nothing else meanwhile: "others" is the number of cores that something else used.
package main
