//go:build planted

package sim

import (
	"strconv"
	"testing"

	"github.com/streamd/streamd/test/planted"
)

// plantedSeeds is within how many seeds each bug must be found.
const plantedSeeds = 500

// Each planted bug must be found; how many seeds it takes is the sensitivity of the simulation.
func TestPlanted(t *testing.T) {
	for _, b := range allBugs() {
		t.Run(b.Name, func(t *testing.T) {
			planted.Find(t, b, planted.Search{
				Package: "./test/sim", Limit: plantedSeeds,
				Args: []string{"-test.run=^TestSeeds$", "-seeds=" + strconv.Itoa(plantedSeeds), "-until-red"},
			})
		})
	}
}
