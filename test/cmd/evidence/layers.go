package main

import "time"

// layer is one run of some tests.
type layer struct {
	Name    string
	What    string
	Env     []string
	Args    []string // of go
	Timeout time.Duration
	// Computes: it needs cores and waits for nothing. Such layers run one after the other beside those that mostly wait for
	// processes and brokers to come back, and then at the lowest priority, so that these are not slowed down.
	Computes bool
}

// layers are the nightly counts. Together they are to take less than an hour on 2 cores that have nothing else to do; the file
// says how long they took. The timeouts are there for what hangs, and wide enough for a machine with other work.
func layers() []layer {
	test := func(args ...string) []string { return append([]string{"test", "-count=1", "-v"}, args...) }
	soak := []string{"STREAMD_SOAK=1"}
	return []layer{
		{"L0", "models, exhaustively", nil, test("-timeout", "29m", "-tags", "models", "./test/model"), 30 * time.Minute, true},
		{"L1", "simulation of the pure core: 100,000 seeds", nil, test("-timeout", "60m", "-run", "TestSeeds$", "./test/sim", "-seeds", "100000"), 61 * time.Minute, true},
		{"L2", "the App and the client library in virtual time: 5,000 seeds", soak, test("-timeout", "60m", "-run", "TestSeeds$", "./test/synctest"), 61 * time.Minute, true},
		{"L3", "three processes on a Kafka in memory: 500 kills, 50 SIGSTOP", soak, test("-timeout", "30m", "-tags", "kills", "./test/crash"), 31 * time.Minute, false},
		{"L4", "real Kafka, three brokers: 100 process kills, 20 broker kills", soak, test("-timeout", "30m", "-tags", "kafka", "-run", "TestClusterUnderKills$", "./test/kafka/chaos"), 31 * time.Minute, false},
		{"L4 dedup", "real Kafka: three million records, 100 kill -9", []string{"STREAMD_KILLS=100", "STREAMD_RECORDS=3000000"}, test("-timeout", "15m", "-tags", "kafka", "-run", "TestDedupUnderKills$", "./test/crash"), 16 * time.Minute, false},
		{"operators", "real Kafka: windows, joins and timers, 100 kill -9; 100,000 timers, 20 kill -9", soak, test("-timeout", "30m", "-tags", "kafka", "-run", "TestOperatorsUnderKills$|TestTimersUnderKills$", "./test/crash"), 31 * time.Minute, false},
		{"DB", "databases: 100 kills of streamd and 10 of the server for each; zombies", soak, test("-timeout", "50m", "-tags", "sinks", "-run", "TestBills$|TestZombie$", "./test/sinks"), 51 * time.Minute, false},
		{"bills", "examples/bills on Kafka and PostgreSQL for ten minutes, all of them killed", soak, test("-timeout", "20m", "-tags", "sinks", "-run", "TestBillsChaos$", "./test/sinks"), 21 * time.Minute, false},
		{"soak", "streamd soak on real Kafka", soak, test("-timeout", "10m", "-tags", "kafka", "-run", "Soak", "./test/check"), 11 * time.Minute, false},
		{"timers", "100,000 timers in the simulation, 20 kills", soak, test("-timeout", "60m", "-run", "TestManyTimers$", "./processor"), 61 * time.Minute, true},
		{"import", "10 million IDs from Redis and from CSV, killed meanwhile", soak, test("-timeout", "40m", "-tags", "sinks", "-run", "TestImport$", "./test/sinks"), 41 * time.Minute, true},
	}
}

// plantedLayers look for the bugs that are planted.
func plantedLayers() []layer {
	test := func(args ...string) []string {
		return append([]string{"test", "-count=1", "-v", "-run", "Planted$"}, args...)
	}
	return []layer{
		{"planted L1", "bugs planted for the simulation", nil, test("-timeout", "30m", "-tags", "planted", "./test/sim"), 31 * time.Minute, false},
		{"planted L2", "bugs planted for the client library", nil, test("-timeout", "30m", "-tags", "planted", "./test/synctest"), 31 * time.Minute, false},
		{"planted L3", "bugs planted for real processes", nil, test("-timeout", "30m", "-tags", "planted,kills", "./test/crash"), 31 * time.Minute, false},
	}
}
