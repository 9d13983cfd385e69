// Command streamd processes records on Kafka exactly once.
//
//	streamd run FILE...        run pipelines
//	streamd validate FILE...   check pipeline files
//	streamd graph FILE         draw what a file computes
//	streamd demo               the tour, without a Kafka cluster
//	streamd dev                a broker for trying things
//	streamd status             ask a running process
//	streamd inspect            look closely: an ID, tasks, state, transactions
//	streamd dlq                dead letters: list, show, send again, drop
//	streamd verify FILE        compare state, offsets and outputs with what they must be
//	streamd soak               prove it on a cluster: workers are killed, every result is checked
//	streamd version
//
// Each command explains itself with --help. Every flag can also be given as an environment variable:
// --data-dir as STREAMD_DATA_DIR. Logs go to standard error, results to standard output.
//
// This package holds flags and words; the work is in internal/daemon, internal/demo, internal/operate, internal/verify and internal/soak.
package main
