// Command evidence runs the layers of the tests with their nightly counts, those that compute beside those that
// wait, and writes what came of it into docs/evidence.md: `make soak`. It needs the tools of `make tools` and Kafka's jars.
//
//	go run ./test/cmd/evidence                    all layers, at most an hour on 2 cores
//	go run ./test/cmd/evidence --only L1,L3       some of them
//	go run ./test/cmd/evidence --planted          the planted bugs as well (`make evidence`)
//	go run ./test/cmd/evidence --read build/soak  only write the file again, from the logs of a run
//
// The figures are read from the tests' own output, never typed: a layer's result is the exit code of its
// command, its figures are the log lines of its tests that begin with a number, a planted bug is the line
// "PLANTED ..." that package planted prints. A layer that is red does not end the run, but its exit code is 1.
package main
