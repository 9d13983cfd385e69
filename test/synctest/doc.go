// Package synctest runs the real application on virtual time: processor.App, sarama, Badger in a
// temporary directory and Kafka in memory (kfake), all in one bubble of testing/synctest, with a dialer
// between client and broker that loses, delays, holds back and refuses requests. Between the simulation
// (which has the engine's core, a model of Kafka and no client library) and the tests on a real Kafka
// (which cannot lose an answer at a given place, and wait for timeouts in real time) it is the layer that
// tests the client library itself.
//
// A run is a seed: it decides the workload, the number of clients and a schedule of faults, which is
// data ([schedule]). A run is not replayed exactly by its seed, since goroutines are scheduled by the
// runtime: a red seed says what to try again, and what happened stands in the trace.
//
//	go test ./test/synctest -seeds 200
//	go test ./test/synctest -run Seeds -seed 17 -v
//
// After the last fault everything must catch up within the transaction timeout, the session timeout and
// 10 s, and then the checks C1 to C10 read the raw topics with another client library, and the local
// stores.
//
// # Rules of the bubble
//
// Virtual time moves when every goroutine of the bubble waits for something of the bubble. One that waits
// for a mutex does not count, and sarama holds one per connection from a request until its answer, so that
// a heartbeat behind a JoinGroup would wait for ever. Therefore the tests are compiled a second time, with
// tag bubble, against a copy of sarama whose locks can be waited for (lock_test.go, docs/adr/0015), and run
// there. Besides: every broker is made inside the bubble, on an in-memory network; sarama's metrics are off
// (their goroutine never ends); a run whose goroutines spin hangs, which a watchdog on real time tells.
package synctest
