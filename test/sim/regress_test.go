package sim

import (
	"testing"
	"time"
)

// A member stands still while its tasks go to another one and come back: the news of the first generation never
// reach it. It went on from the state that it had in memory, with the newest generation, and everything that the
// other one had committed was there twice.
func TestGenerationMissed(t *testing.T) {
	missed := 0
	for seed := range uint64(40) {
		r := Run(Config{Seed: seed, Partitions: 1, Owners: 2, Bills: 150, MaxFetch: 1600, Schedule: []Fault{
			{At: 500 * time.Millisecond, What: "scale out", Target: 1},
			{At: 1200 * time.Millisecond, What: "zombie", Point: "Fetch", N: 1, Duration: 3200 * time.Millisecond},
		}})
		missed += r.Hits["generation missed"]
		if len(r.Errors) > 0 {
			t.Fatalf("seed %d: %s", seed, r.Errors[0])
		}
	}
	if missed < 10 {
		t.Fatalf("a generation was missed %d times in 40 runs: the test tests nothing", missed)
	}
}
