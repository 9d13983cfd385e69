// Package demo is the tour of streamd: bills, some of them sent twice, become totals per account, a
// worker is killed while they do, and the totals are exact all the same.
//
// The parent process holds an embedded broker, a generator of bills, and a reader of the totals. The
// worker is a process of its own, "streamd run" on the pipeline file that the demo wrote, so that it
// can be killed with a real SIGKILL. The verdict does not come from the worker: the reader is another
// Kafka client that reads the output topic with read_committed, and compares what it finds with what
// the generator remembers to have sent.
//
// Duplicates come in the three ways in which they come in practice: twice in one batch (a bug in a
// loop), in the next batch (a producer that got no answer and sent again), and after the kill, of
// bills from before it (an upstream that replays).
//
// Package worker starts and kills it, so that nothing of the demo outlives it.
//
// What it does not do: the broker is an embedded one and the load is small. It shows that the figures are
// right, not how fast or how durable anything is.
package demo
