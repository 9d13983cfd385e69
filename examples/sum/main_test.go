package main

import (
	"testing"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
)

func TestSum(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	d := topologytest.New(t, topo, topologytest.Partitions("numbers", 4))
	numbers := topologytest.Input(d, "numbers", serde.String(), serde.Int64())
	sums := topologytest.Output(d, "sum-of-odd-numbers", serde.String(), serde.Int64())
	for n := range int64(100) {
		if n == 50 {
			d.CrashAt(topologytest.AfterCommitBeforeApply)
			d.Run()
		}
		numbers.Send(string(rune('a'+n%7)), n)
	}
	if got := topologytest.Table(sums); got["sum"] != 2500 || len(got) != 1 {
		t.Errorf("%v, want a sum of 2500", got)
	}
}
