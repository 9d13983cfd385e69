//go:build !bubble

package synctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/test/planted"
)

// The tests of this package are compiled again, with tag bubble and with a lock in sarama that virtual
// time can pass by (see waitableLock), and run in a process of their own.

// TestSeeds: with STREAMD_SOAK=1 5,000 seeds, in as many processes as there are cores: a run of virtual time has one goroutine
// at a time that does something.
func TestSeeds(t *testing.T) {
	if os.Getenv("STREAMD_SOAK") == "" || *seedFlag != 0 || *untilRed {
		inBubble(t)
		return
	}
	bin, shards := compiled(t), runtime.NumCPU()
	per := max(*seedsFlag, 5000+shards-1) / shards
	var wg sync.WaitGroup
	for i := range shards {
		wg.Go(func() { runBubble(t, bin, *firstFlag+uint64(i*per), per) })
	}
	wg.Wait()
}

func TestCodes(t *testing.T) { inBubble(t) }

func TestFrames(t *testing.T) { inBubble(t) }

// inBubble runs the test of the same name in the other binary.
func inBubble(t *testing.T) {
	t.Helper()
	t.Parallel()
	runBubble(t, compiled(t), *firstFlag, *seedsFlag)
}

// runBubble runs it with so many seeds from the first on.
func runBubble(t *testing.T, bin string, first uint64, seeds int) {
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v=" + fmt.Sprint(testing.Verbose()), "-test.short=" + fmt.Sprint(testing.Short())}
	args = append(args, fmt.Sprintf("-seed=%d", *seedFlag), fmt.Sprintf("-seeds=%d", seeds), fmt.Sprintf("-first=%d", first),
		fmt.Sprintf("-until-red=%v", *untilRed), fmt.Sprintf("-hang=%v", *hangLimit))
	if d, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(d.Add(-5*time.Second)).String())
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("in the bubble: %v", err)
	}
}

// compiled builds the other binary. The build cache makes the second time cheap.
func compiled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	lock, err := withWaitableLock(planted.ModuleRoot(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bubble.test")
	args := []string{"test", "-vet=off", "-tags", "bubble", lock, "-c", "-o", bin}
	if raceDetector {
		args = append(args, "-race")
	}
	if out, err := exec.CommandContext(t.Context(), "go", append(args, ".")...).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	return bin
}
