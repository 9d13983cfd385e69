// Package daemon is what the commands of streamd do: it loads pipeline files, runs them in one
// process with their HTTP face, checks and draws them, and asks a running process for its status.
// cmd/streamd holds the flags and the words of the commands, this package their work.
//
// A process runs one or more pipelines. They share the HTTP address, the log and the metrics registry
// (told apart by a label), not the state: each has a directory of its own below the data directory.
// If one of them fails, all are stopped with a last commit, and the process ends with an exit code
// that says whether starting it again can help (see ExitCode).
//
// What it does not do: it handles no signals and never ends the process.
package daemon
