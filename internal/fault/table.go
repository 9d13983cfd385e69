//go:build unix

package fault

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/streamd/streamd/internal/invariant"
)

// Action is what happens at a point.
type Action uint64

// The actions. Kill is kill -9; Stop is SIGSTOP, which somebody else has to end by SIGCONT.
const (
	Kill Action = iota
	Stop
)

// String returns the name of the signal.
func (a Action) String() string {
	if a == Stop {
		return "SIGSTOP"
	}
	return "SIGKILL"
}

// Table is a file that is shared by a process and whoever watches it: for each point the number of hits, and
// the hit at which something is to happen. It lives as long as the file, over any number of processes.
type Table struct {
	mem   []byte
	names []string
}

// rowBytes is one point's share of the file: hits, at, action, fired, each a uint64 of the machine.
const rowBytes = 4 * 8

type row struct{ hits, at, action, fired *uint64 }

// OpenTable maps a table's file, which is made if it is missing. The mapping lasts until Close.
func OpenTable(path string) (*Table, error) {
	names := all()
	size := len(names) * rowBytes
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	defer f.Close() // the mapping stays
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	if n := info.Size(); n != 0 && n != int64(size) {
		return nil, fmt.Errorf("fault: %q has %d bytes, a table of %d points has %d", path, n, len(names), size)
	}
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("fault: map %q: %w", path, err)
	}
	return &Table{mem: mem, names: names}, nil
}

// Close ends the mapping. The table must not be used afterwards.
func (t *Table) Close() error {
	if err := syscall.Munmap(t.mem); err != nil {
		return fmt.Errorf("fault: %w", err)
	}
	return nil
}

// row returns the cells of a point. A name that is not listed is a mistake in the program.
func (t *Table) row(name string) row {
	i := slices.Index(t.names, name)
	invariant.Check(i >= 0, "fault point %q is not in the list", name)
	cell := func(n int) *uint64 { return (*uint64)(unsafe.Pointer(&t.mem[i*rowBytes+n*8])) }
	return row{hits: cell(0), at: cell(1), action: cell(2), fired: cell(3)}
}

// Arm makes the action happen at the n-th hit of the point from now on (n from 1), once.
func (t *Table) Arm(name string, n uint64, do Action) {
	r := t.row(name)
	atomic.StoreUint64(r.action, uint64(do))
	atomic.StoreUint64(r.at, atomic.LoadUint64(r.hits)+max(n, 1))
}

// Disarm takes back what has not happened yet.
func (t *Table) Disarm(name string) { atomic.StoreUint64(t.row(name).at, 0) }

// Hits is how often the point was reached, over all processes that had the table.
func (t *Table) Hits(name string) uint64 { return atomic.LoadUint64(t.row(name).hits) }

// Fired is how often something happened at the point.
func (t *Table) Fired(name string) uint64 { return atomic.LoadUint64(t.row(name).fired) }
