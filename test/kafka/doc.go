// Package kafka tests internal/kafka on real Apache Kafka: the suite of internal/brokertest, the
// hazards of late requests, and a benchmark. It needs the build tag kafka. STREAMD_TEST_BROKERS
// (host:port, comma separated) names a cluster to use; without it each run starts its own.
package kafka
