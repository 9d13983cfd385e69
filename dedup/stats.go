package dedup

import "time"

// Rebuilds counts the filters that were rebuilt at Open, by reason.
type Rebuilds struct {
	Missing uint64 // there was no snapshot
	Corrupt uint64 // its checksum, size or count was wrong
}

// Stats describes an index. IDs that are pending are not in it.
type Stats struct {
	IDs         uint64 // in generations that are not forgotten
	Generations int    // of them, the open one included
	Sealed      int
	// Oldest is the stream time from which on IDs are known, zero if there is none: stream time
	// minus Oldest is the window that is really there.
	Oldest     time.Time
	BloomBytes int
	ExactBytes int // open generation, those that wait to be sealed, and pending
	// WorstFill is the highest share of bits set among the filters.
	WorstFill float64
	// FalsePositives estimates the share of new IDs for which some filter says "maybe".
	FalsePositives float64
	Rebuilds       Rebuilds // since Open
	Expired        uint64   // IDs dropped since Open
}

// Stats returns the figures of now. Like all methods it belongs to the index's goroutine.
func (ix *Index) Stats() Stats {
	s := Stats{Rebuilds: ix.rebuilds, Expired: ix.expired, ExactBytes: ix.pending.bytes()}
	oldest, negative := int64(never), 1.0
	count := func(g *generation) {
		if g == nil {
			return
		}
		if f := g.filter; f != nil {
			s.BloomBytes += f.bytes()
			s.WorstFill = max(s.WorstFill, f.fill)
		} else {
			s.ExactBytes += g.set.bytes()
		}
		if ix.tooOld(g.to) {
			return
		}
		s.IDs += g.ids
		s.Generations++
		if g.filter != nil {
			s.Sealed++
			negative *= 1 - g.filter.falsePositives()
		}
		if oldest == never {
			oldest = g.from
		}
	}
	for _, g := range ix.closed {
		count(g)
	}
	count(ix.open)
	s.FalsePositives, s.Oldest = 1-negative, milli(oldest)
	return s
}
