// Package kafkaenv starts a real Apache Kafka for a test: one broker or three, KRaft, on free ports
// of 127.0.0.1, with a small heap and its data in the test's temporary folder.
//
//	c := kafkaenv.Start(t)                              // one broker
//	c := kafkaenv.Start(t, kafkaenv.Brokers(3))         // replication 3, min.insync.replicas 2
//	c := kafkaenv.Start(t, kafkaenv.Secure())           // and a SASL_SSL listener
//	c.Kill(0); c.Restart(0)                             // kill -9 and back, same port, same data
//
// It needs a Java runtime and Kafka's jars, which `make kafka` puts into the user's cache folder. A
// test without them fails, it is not skipped: a chaos run that did not run must not look green. So
// every test that uses the package stands behind the build tag kafka, and `go test ./...` needs
// nothing but Go.
//
// Only processes that this package started are ended, each by its own id. On Linux they also end
// with the test process, should that be killed.
package kafkaenv
