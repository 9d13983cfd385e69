package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"

	"github.com/streamd/streamd/record"
)

// slotIDs is the most that a slot holds on average: 256 entries are 4 KiB, one page to read and to scan.
const slotIDs = 256

// fineBits splits a slot into buckets of about one ID.
const fineBits = 8

// slotBits is the number of hash bits that pick the slot among n IDs.
func slotBits(n uint64) uint {
	if n <= slotIDs {
		return 0
	}
	return uint(bits.Len64((n - 1) / slotIDs))
}

// slotOf is the slot of a key: its top bits. (A shift by 64 gives 0.)
func slotOf(k key, bits uint) uint32 { return uint32(k.hi >> (64 - bits)) }

// SealResult is what came of sealing a generation.
type SealResult struct {
	number uint64
	filter *filter
	bits   uint
	err    error
}

// SealJob returns a function that seals the oldest generation that is closed and not yet sealed; nil
// if there is none or one is being sealed. The function may run on another goroutine: it
// reads what no longer changes, and calls Log.Seal. Its result must be given to Sealed, whatever
// happened in between, and it must have ended before the log is closed.
func (ix *Index) SealJob() func() SealResult {
	if ix.sealing != nil {
		return nil
	}
	for _, g := range ix.closed {
		if g.set != nil && !ix.tooOld(g.to) {
			ix.sealing = g
			log, rate := ix.log, ix.cfg.FalsePositiveRate
			return func() SealResult { return seal(g, log, rate) }
		}
	}
	return nil
}

// Sealed takes over the result of a seal job: from now on the filter answers, and the exact set is
// freed. The error is the log's; the generation stays as it was, and a next job tries again.
func (ix *Index) Sealed(r SealResult) error {
	g := ix.sealing
	if g == nil || g.number != r.number {
		return fmt.Errorf("dedup: result for generation %d, which is not being sealed", r.number)
	}
	ix.sealing = nil
	if r.err != nil {
		return fmt.Errorf("dedup: sealing generation %d: %w", r.number, r.err)
	}
	g.filter, g.bits = r.filter, r.bits
	g.set, g.marks = nil, nil
	return nil
}

// seal sorts the IDs into slots, builds the filter and writes both. The same IDs give the same bytes:
// a seal that a crash cut short is repeated without a trace.
func seal(g *generation, log Log, rate float64) SealResult {
	s, shift := g.set, slotBits(g.ids)
	f := newFilter(g.ids, rate)
	for pos := range s.n {
		f.add(entryKey(s.entry(pos)))
	}
	sorted, ends := sortEntries(s, shift+fineBits)
	run := func(slot uint32) []byte {
		from, to := uint32(0), ends[(slot+1)<<fineBits-1]
		if slot > 0 {
			from = ends[slot<<fineBits-1]
		}
		return sorted[int(from)*s.entryBytes : int(to)*s.entryBytes]
	}
	err := log.Seal(record.Generation{
		Number: g.number, Sealed: true, IDs: g.ids, EntryBytes: g.entryBytes, Slots: 1 << shift,
		From: milli(g.from), To: milli(g.to),
	}, run, f.snapshot())
	return SealResult{number: g.number, filter: f.finish(), bits: shift, err: err}
}

// sortEntries returns the entries of a set in the order of their bytes, and where each bucket of the top
// bits ends. Hashes are uniform: a counting sort by as many bits as make buckets of about one leaves the
// insertion sort behind it next to nothing to do.
func sortEntries(s *set, bits uint) (sorted []byte, ends []uint32) {
	// ends[i] is first the size of bucket i, then where it begins, at last where it ends.
	ends = make([]uint32, 1<<bits)
	for pos := range s.n {
		ends[slotOf(entryKey(s.entry(pos)), bits)]++
	}
	sum := uint32(0)
	for i, n := range ends {
		ends[i] = sum
		sum += n
	}
	size := s.entryBytes
	sorted = make([]byte, s.n*size)
	for pos := range s.n {
		e := s.entry(pos)
		bucket := slotOf(entryKey(e), bits)
		copy(sorted[int(ends[bucket])*size:], e)
		ends[bucket]++
	}
	var moved [record.HashBytes + payloadBytes]byte
	for i := size; i < len(sorted); i += size {
		j := i
		for j > 0 && bytes.Compare(sorted[j-size:j], sorted[i:i+size]) > 0 {
			j -= size
		}
		if j < i {
			e := moved[:copy(moved[:], sorted[i:i+size])]
			copy(sorted[j+size:], sorted[j:i])
			copy(sorted[j:], e)
		}
	}
	return sorted, ends
}

// loadSealed finds the filter of a sealed generation: its snapshot, or one rebuilt from the runs.
func (ix *Index) loadSealed(gen *generation, g record.Generation) error {
	// At most one run for each ID, or a damaged marker makes us read for hours.
	if g.Slots == 0 || g.Slots&(g.Slots-1) != 0 || uint64(g.Slots) > max(g.IDs, 1) {
		return fmt.Errorf("%w: generation %d has %d slots for %d IDs", ErrCorrupt, g.Number, g.Slots, g.IDs)
	}
	gen.bits = uint(bits.TrailingZeros32(g.Slots))
	snapshot, err := ix.log.Filter(g.Number)
	if err == nil {
		if gen.filter, err = decodeFilter(snapshot, g.IDs); err == nil {
			return nil
		}
	}
	// Whatever was wrong with it: the runs hold the truth, and are read with all checks.
	if len(snapshot) == 0 && errors.Is(err, errSnapshot) {
		ix.rebuilds.Missing++
	} else {
		ix.rebuilds.Corrupt++
	}
	gen.filter, err = ix.rebuild(g, gen.bits)
	return err
}

// rebuild makes the filter anew from the runs (0.2 µs an ID) and verifies them on the way.
func (ix *Index) rebuild(g record.Generation, bits uint) (*filter, error) {
	f := newFilter(g.IDs, ix.cfg.FalsePositiveRate)
	for slot := range g.Slots {
		run, err := ix.log.Run(g.Number, slot)
		if err != nil {
			return nil, fmt.Errorf("dedup: reading run %d of generation %d: %w", slot, g.Number, err)
		}
		if len(run)%g.EntryBytes != 0 {
			return nil, fmt.Errorf("%w: run %d of generation %d has %d bytes in entries of %d", ErrCorrupt, slot, g.Number, len(run), g.EntryBytes)
		}
		for e := run; len(e) > 0; e = e[g.EntryBytes:] {
			k := entryKey(e)
			if slotOf(k, bits) != slot {
				return nil, fmt.Errorf("%w: run %d of generation %d holds an ID of run %d", ErrCorrupt, slot, g.Number, slotOf(k, bits))
			}
			f.add(k)
		}
	}
	if f.n != g.IDs {
		return nil, fmt.Errorf("%w: the runs of generation %d hold %d IDs, %d were counted", ErrCorrupt, g.Number, f.n, g.IDs)
	}
	return f.finish(), nil
}
