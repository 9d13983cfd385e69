//go:build kills && planted

package crash

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/test/planted"
)

// plantedKills is within how many kills each bug must be found; a campaign has plantedRound of them before all is judged.
const (
	plantedKills = 500
	plantedRound = 40
)

// TestPlanted builds streamd with each bug and kills it until the harness sees it.
func TestPlanted(t *testing.T) {
	for _, b := range Bugs() {
		t.Run(strings.ReplaceAll(b.Name, " ", "-"), func(t *testing.T) {
			program := buildProgram(t, t.TempDir(), b)
			kills, err := hunt(t, program)
			found, what := "none", ""
			if err != nil {
				found, what = strconv.Itoa(kills), firstLine(err)
			}
			planted.Report(b, found, plantedKills, what)
			if err == nil {
				t.Errorf("%q is not found within %d kills", b.Name, kills)
			}
		})
	}
}

// hunt runs campaigns until one is red.
func hunt(t *testing.T, program string) (kills int, err error) {
	seed := seedOf(t)
	for kills < plantedKills && err == nil {
		m, early := tryCampaign(t, 8*time.Minute, CampaignConfig{Program: program, Seed: seed})
		if early != nil {
			return kills, early // the rebalances of the start were enough
		}
		var n int
		n, err = inflict(m, plantedRound, 0, Kills)
		if err == nil {
			err = m.Finish(time.Minute)
		}
		m.Close()
		kills += n
		seed++
	}
	return kills, err
}

// firstLine is what was wrong first.
func firstLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return line
}
