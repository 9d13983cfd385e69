// Package brokertest is one suite of facts about a Kafka cluster as internal/broker shows it. It runs
// on internal/simbroker, and on internal/kafka with kfake and with real Apache Kafka, so that what a
// simulation proves on the model holds for the real one too.
//
// A fact that needs a fault takes it from an optional field of [Env]. Where an implementation cannot
// show a fact, the table in differences.go says which one and why; a fact is skipped for no other
// reason. The suite runs its facts one after the other on one cluster, each with its own topics and
// transactional IDs, and shares one group membership, since a real group takes seconds to form.
package brokertest
