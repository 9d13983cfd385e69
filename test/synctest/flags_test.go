package synctest

import (
	"flag"
	"time"
)

// The flags are those of the outer test binary, which hands them on, and of the one with the bubbles.
var (
	seedFlag  = flag.Uint64("seed", 0, "run this seed only, with its trace")
	seedsFlag = flag.Int("seeds", 40, "how many seeds to run")
	firstFlag = flag.Uint64("first", 1, "the first seed")
	untilRed  = flag.Bool("until-red", false, "stop at the first red seed and say how many it took")
	// hangLimit is real time: a run takes about half a second.
	hangLimit = flag.Duration("hang", 2*time.Minute, "real time after which a run counts as hung")
)
