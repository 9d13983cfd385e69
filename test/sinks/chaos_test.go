//go:build sinks

package sinks

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

// TestBillsChaos runs the chaos of examples/bills on real servers, while the database is killed and the broker restarted,
// and prints its table. STREAMD_SOAK: for ten minutes. (A lone broker that is killed may come back with a transaction that nobody
// ends; brokers with replicas are killed in test/kafka/chaos.)
func TestBillsChaos(t *testing.T) {
	length, each := 20*time.Second, 7*time.Second
	if os.Getenv("STREAMD_SOAK") != "" {
		length, each = 10*time.Minute, 30*time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), length+5*time.Minute)
	defer cancel()
	k := kafkaenv.Start(t)
	if err := crash.CreateTopics(ctx, k.Addresses(), 4, "chaos.raw", "chaos.dlq"); err != nil {
		t.Fatal(err)
	}
	server, _ := started(t, dbenv.PostgreSQL, "pgx", "postgres")
	program, err := crash.BuildProgram(ctx, "../..", "./examples/bills/chaos", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	chaos := exec.CommandContext(ctx, program, "-for", length.String(), "-brokers", strings.Join(k.Addresses(), ","), "-database", "postgres", "-address", server.DSN(database))
	chaos.Dir = "../.."
	var out strings.Builder
	chaos.Stdout, chaos.Stderr = &out, &out
	// By a signal that it can act on: it has streamd processes of its own to end.
	chaos.Cancel = func() error { return chaos.Process.Signal(os.Interrupt) }
	chaos.WaitDelay = time.Minute
	if err := chaos.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- chaos.Wait() }()
	brokers, servers := 0, 0
	disturb := time.NewTicker(each)
	defer disturb.Stop()
	for end := time.Now().Add(length); ; {
		select {
		case err := <-done:
			t.Logf("%d restarts of the broker, %d kills of the database\n%s", brokers, servers, out.String())
			if err != nil {
				t.Error(err)
			}
			if brokers == 0 || servers == 0 {
				t.Error("nothing was killed or restarted")
			}
			return
		case <-disturb.C:
		}
		switch {
		case time.Now().After(end) && brokers > 0:
			continue // it is judged now
		case servers <= brokers: // first, since it is back within a second
			if err := server.Kill(); err != nil {
				t.Error(err)
			}
			if err := server.Start(ctx); err != nil {
				t.Error(err)
			}
			servers++
		default:
			k.Stop(0)
			if err := k.Restart(ctx, 0); err != nil {
				t.Error(err)
			}
			brokers++
		}
	}
}
