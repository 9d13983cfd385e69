//go:build faultpoints && unix

package fault

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/streamd/streamd/internal/invariant"
)

// Enabled says whether the program was built with the points in it.
const Enabled = true

// mapped is the table that the environment names, nil if it names none.
var mapped = sync.OnceValue(func() *Table {
	path := os.Getenv(Variable)
	if path == "" {
		return nil
	}
	t, err := OpenTable(path)
	invariant.Check(err == nil, "the table of fault points: %v", err) // a run without its faults would look green
	return t
})

// Point counts a hit of the named point and carries out what it is armed with.
func Point(name string) {
	t := mapped()
	if t == nil {
		return
	}
	row := t.row(name)
	hit := atomic.AddUint64(row.hits, 1)
	if at := atomic.LoadUint64(row.at); at == 0 || hit < at || !atomic.CompareAndSwapUint64(row.at, at, 0) {
		return
	}
	atomic.AddUint64(row.fired, 1)
	if Action(atomic.LoadUint64(row.action)) == Stop {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: not one instruction more
}
