package deduptest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/streamd/streamd/record"
)

// Log is a dedup.Log that keeps everything in memory, with the atomicity of the real one: Apply is
// all or nothing, and a generation is sealed by the last step of Seal, before which only its blocks
// count. It is safe for concurrent use. The zero value is an empty log.
type Log struct {
	// SealStep, if set, is called before each write of a seal (each run, the filter, the marker) and
	// ends it with its error: a crash or a full disk in the middle. Set it before Seal runs.
	SealStep func() error

	mu   sync.Mutex // guards gens and reads
	gens map[uint64]*generation
	runs int
}

type generation struct {
	blocks []record.IDBlock
	sealed *record.Generation
	run    map[uint32][]byte
	filter []byte
}

// Apply does what a committed transaction does to the log.
func (l *Log) Apply(blocks []record.IDBlock, drops []uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range blocks {
		if g := l.gens[b.Generation]; g != nil && g.sealed != nil {
			return fmt.Errorf("deduptest: block for the sealed generation %d", b.Generation)
		}
	}
	for _, b := range blocks {
		if l.gens == nil {
			l.gens = map[uint64]*generation{}
		}
		g := l.gens[b.Generation]
		if g == nil {
			g = &generation{}
			l.gens[b.Generation] = g
		}
		b.Entries = bytes.Clone(b.Entries)
		g.blocks = append(g.blocks, b)
	}
	for _, d := range drops {
		delete(l.gens, d)
	}
	return nil
}

// Clone is a copy of the log, as of a disk.
func (l *Log) Clone() *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &Log{gens: map[uint64]*generation{}}
	for n, g := range l.gens {
		c.gens[n] = &generation{blocks: slices.Clone(g.blocks), sealed: g.sealed, run: maps.Clone(g.run), filter: g.filter}
	}
	return c
}

// Generations implements dedup.Log.
func (l *Log) Generations() ([]record.Generation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []record.Generation
	for _, n := range slices.Sorted(maps.Keys(l.gens)) {
		g := l.gens[n]
		if g.sealed != nil {
			out = append(out, *g.sealed)
			continue
		}
		d := record.Generation{Number: n}
		for i, b := range g.blocks {
			if i == 0 || b.StreamTime.Before(d.From) {
				d.From = b.StreamTime
			}
			if i == 0 || b.StreamTime.After(d.To) {
				d.To = b.StreamTime
			}
			d.EntryBytes = b.EntryBytes
			d.IDs += uint64(b.Len())
		}
		out = append(out, d)
	}
	return out, nil
}

// Blocks implements dedup.Log.
func (l *Log) Blocks(gen uint64, fn func(record.IDBlock) error) error {
	l.mu.Lock()
	var blocks []record.IDBlock
	if g := l.gens[gen]; g != nil {
		blocks = slices.Clone(g.blocks)
	}
	l.mu.Unlock()
	for _, b := range blocks {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// Run implements dedup.Log.
func (l *Log) Run(gen uint64, slot uint32) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs++
	g := l.gens[gen]
	if g == nil || g.sealed == nil {
		return nil, fmt.Errorf("deduptest: generation %d is not sealed", gen)
	}
	return g.run[slot], nil
}

// Filter implements dedup.Log.
func (l *Log) Filter(gen uint64) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gens[gen]; g != nil {
		return g.filter, nil
	}
	return nil, nil
}

// Seal implements dedup.Log.
func (l *Log) Seal(d record.Generation, run func(slot uint32) []byte, filter []byte) error {
	l.mu.Lock()
	g := l.gens[d.Number]
	switch {
	case g == nil:
		l.mu.Unlock()
		return fmt.Errorf("deduptest: sealing generation %d, which is not there", d.Number)
	case g.sealed != nil:
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	for slot := range d.Slots {
		if err := l.step(func() {
			if g.run == nil {
				g.run = map[uint32][]byte{}
			}
			if r := run(slot); len(r) > 0 {
				g.run[slot] = bytes.Clone(r)
			}
		}); err != nil {
			return err
		}
		if err := checkRun(g.run[slot], d.EntryBytes); err != nil {
			return fmt.Errorf("deduptest: run %d of generation %d: %w", slot, d.Number, err)
		}
	}
	if err := l.step(func() { g.filter = bytes.Clone(filter) }); err != nil {
		return err
	}
	return l.step(func() { g.sealed, g.blocks = &d, nil })
}

// checkRun holds a run to what the local log asks of it.
func checkRun(run []byte, entryBytes int) error {
	for i := entryBytes; i < len(run); i += entryBytes {
		if i+entryBytes > len(run) || bytes.Compare(run[i-entryBytes:i], run[i:i+entryBytes]) > 0 {
			return fmt.Errorf("%d bytes are not sorted entries of %d", len(run), entryBytes)
		}
	}
	return nil
}

// step is one write of a seal.
func (l *Log) step(write func()) error {
	if l.SealStep != nil {
		if err := l.SealStep(); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	write()
	return nil
}

// Runs is how many runs have been read.
func (l *Log) Runs() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs
}

// SetFilter replaces a generation's filter snapshot, as damage does. nil removes it.
func (l *Log) SetFilter(gen uint64, snapshot []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gens[gen]; g != nil {
		g.filter = snapshot
	}
}

// SetRun replaces a run of a generation, as damage does.
func (l *Log) SetRun(gen uint64, slot uint32, run []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gens[gen]; g != nil {
		g.run[slot] = run
	}
}
