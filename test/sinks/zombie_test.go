//go:build sinks

package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/test/crash"
)

// TestZombie stops a streamd in its tracks (SIGSTOP), takes it out of the group, and lets it go on (SIGCONT) when another one
// has written all its partitions: it still holds batches, connections and transactions of its own, and changes nothing.
func TestZombie(t *testing.T) {
	rounds, limit := 3, 5*time.Minute
	if os.Getenv("STREAMD_SOAK") != "" {
		rounds, limit = 6, 10*time.Minute
	}
	program := build(t)
	for _, x := range targets() {
		if x.name == "SQLite" {
			continue // the lock of a file belongs to the process that stands still: nobody else can write at all
		}
		t.Run(x.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			w := newBillsWorld(ctx, t, x, program)
			w.daemon("two")
			for _, d := range w.daemons {
				w.start(d)
			}
			random := rand.New(rand.NewPCG(3, 4))
			for i := range rounds {
				w.pause(time.Duration(random.IntN(500)) * time.Millisecond)
				w.outlive(w.daemons[i%2], []string{"one", "two"}[i%2])
			}
			w.settle()
			w.compare()
			w.Logf("%d rounds; batches that were refused for their fence: %d", rounds, w.fenced())
		})
	}
}

// outlive stops one streamd until the other one has written all partitions.
func (w *billsWorld) outlive(d *crash.Daemon, instance string) {
	w.until(instance+" is in the group", func() bool { return slices.Contains(w.members(), instance) })
	if err := d.Pause(); err != nil {
		w.Fatal(err)
	}
	resumed := false
	defer func() {
		if !resumed {
			_ = d.Continue() // a failed test must not leave it behind
		}
	}()
	at := w.lookNow()
	cmd := exec.CommandContext(w.ctx, w.program, "leave", w.file, "--instance", instance)
	cmd.Env = append(os.Environ(), w.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("leave: %v\n%s", err, out)
	}
	w.until("the other one has written all partitions", func() bool {
		v := w.lookNow()
		for i, next := range v.next {
			if next <= at.next[i] {
				return false
			}
		}
		return true
	})
	resumed = true
	if err := d.Continue(); err != nil {
		w.Fatal(err)
	}
}

// members are the instances in the group.
func (w *billsWorld) members() []string {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{"bills"}
	resp, err := req.RequestWith(w.ctx, w.client)
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, g := range resp.Groups {
		for _, m := range g.Members {
			if m.InstanceID != nil {
				names = append(names, *m.InstanceID)
			}
		}
	}
	return names
}

// fenced counts the refused batches in the logs.
func (w *billsWorld) fenced() (n int) {
	for _, d := range w.daemons {
		text, err := os.ReadFile(d.Log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.Fatal(err)
		}
		n += strings.Count(string(text), fmt.Sprint(sink.ErrFenced))
	}
	return n
}
