// Package worker runs "streamd run" as a child process that can be killed, and asks it how it does: what
// the demo and the soak have in common.
//
// A worker ends with its parent, however that one ends: by the end of its standard input (so it is
// started with --stop-on-eof), and on Linux by a signal of the kernel too. Ctrl-C reaches the parent
// alone, which then stops its workers in order.
package worker
