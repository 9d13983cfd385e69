package processor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestCountersBalance: what docs/metrics.md says of the counters of a dedup operator holds, also if records
// without an ID pass.
func TestCountersBalance(t *testing.T) {
	w := newWorld(t, policyTopology(t, topology.Forward))
	s := w.live()
	for _, id := range []string{"1", "2", "", "1", "", "", "3", "2", "1"} {
		w.put(id, "v")
		w.settle(s)
	}
	for _, o := range s.Status().Operators {
		if o.Name != "unique" {
			continue
		}
		n := func(k topology.CounterKind) uint64 { return o.Counters[string(k)] }
		duplicates := n(topology.CounterDuplicateCommitted) + n(topology.CounterDuplicateOpen)
		forwarded := n(topology.CounterMissingForward)
		if n(topology.CounterIn) != n(topology.CounterChecked)+forwarded || forwarded != 3 {
			t.Errorf("%d in, %d checked, %d without an ID", n(topology.CounterIn), n(topology.CounterChecked), forwarded)
		}
		if n(topology.CounterChecked)+forwarded != duplicates+n(topology.CounterOut) || duplicates != 3 {
			t.Errorf("%d checked and %d forwarded, %d duplicates, %d out", n(topology.CounterChecked), forwarded, duplicates, n(topology.CounterOut))
		}
		return
	}
	t.Error("no operator \"unique\"")
}

// TestStateDirectoryIsNotTiedToAWrongCluster: a cluster without the topics is often the wrong one. The state
// directory is not made its own.
func TestStateDirectoryIsNotTiedToAWrongCluster(t *testing.T) {
	w := newWorld(t, totals(t))
	w.b.DeleteTopic("out")
	dir := filepath.Join(t.TempDir(), "state")
	app, err := New(w.topo, WithStateDir(dir), optionFunc(func(c *config) { c.cluster = w.b.Client("app") }))
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, app.Run(t.Context()), ErrTopics, `output topic "out" does not exist`, "kafka-topics.sh --create --topic out", "streamd dev", "--topic out:N")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory was touched: %v", err)
	}
}

// TestDefaultStateDirectoriesAreApart: two applications that are started in one place do not meet in one
// directory, nor in that of streamd run.
func TestDefaultStateDirectoriesAreApart(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"one", "two"} {
		b := topology.New(name)
		topology.To(topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id")), "out", serde.String(), serde.Int64())
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, topo)
		app, err := New(topo, optionFunc(func(c *config) { c.cluster = w.b.Client("app") }))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- app.Run(ctx) }()
		for app.Status().Instance == "" { // made with the directory
			select {
			case err := <-ended:
				t.Fatalf("%s: %v", name, err)
			case <-time.After(time.Millisecond):
			}
		}
		defer func() { // both run at once
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		if _, err := os.Stat(filepath.Join(".streamd", name, "STATE")); err != nil {
			t.Error(err)
		}
	}
}
