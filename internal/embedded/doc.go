// Package embedded runs a Kafka broker inside the process, for trying things and for tests: one node
// on the loopback interface that speaks Kafka's protocol, transactions and consumer groups included.
//
//	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "bills", Partitions: 4}}})
//	...
//	defer b.Close()
//	fmt.Println(b.Address())
//
// It keeps everything in memory, or in a directory of its own, and forgets it at Close. It does no replication, no authentication
// and no quotas, and it is no test of how a real broker fails. Never use it for data that matters.
package embedded
