//go:build planted

package sim

import (
	"slices"
	"strconv"
	"testing"

	"github.com/streamd/streamd/test/planted"
)

// plantedSeeds is within how many seeds each bug must be found.
const plantedSeeds = 500

// Each planted bug must be found; how many seeds it takes is the sensitivity of the simulation.
func TestPlanted(t *testing.T) {
	find := func(bugs []planted.Bug, args ...string) {
		for _, b := range bugs {
			t.Run(b.Name, func(t *testing.T) {
				planted.Find(t, b, planted.Search{
					Package: "./test/sim", Limit: plantedSeeds,
					Args: append([]string{"-test.run=^TestSeeds$", "-seeds=" + strconv.Itoa(plantedSeeds), "-until-red"}, args...),
				})
			})
		}
	}
	// What has nothing to do with marks and global tables is looked for without them, but for what needs much to be read at the same time.
	old := slices.Concat(bugs(), moreBugs())
	busy := func(b planted.Bug) bool { return b.Name == "records of an old position are taken" }
	find(slices.DeleteFunc(slices.Clone(old), busy), "-plain")
	find(append(slices.DeleteFunc(old, func(b planted.Bug) bool { return !busy(b) }), timeBugs()...))
}
