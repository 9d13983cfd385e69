//go:build sinks

package sinks

import (
	"testing"

	"github.com/streamd/streamd/sink/sinktest"
)

// commitPrepared is the second of the two phases on its way to a server.
const commitPrepared = `(?i)(commit prepared|xa commit) `

func TestTwoPhasePostgreSQL(t *testing.T) {
	h := postgresHarness(t)
	h.commit = commitPrepared
	sinktest.RunTwoPhase(t, h)
}

func TestTwoPhaseMariaDB(t *testing.T) {
	h := mariaHarness(t)
	h.commit = commitPrepared
	sinktest.RunTwoPhase(t, h)
}
