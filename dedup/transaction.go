package dedup

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
)

// plan is what Prepare decided and Commit carries out.
type plan struct {
	streamTime int64
	rotate     bool // the blocks begin a new generation
	drops      []uint64
}

// Mark is a savepoint: what is pending now. It is valid until the transaction ends or a
// Rollback to an earlier one.
func (ix *Index) Mark() int { return ix.pending.n }

// Rollback makes the IDs unknown again that became pending after the mark, for a record that failed
// half-way or is handled by an error policy.
func (ix *Index) Rollback(mark int) {
	invariant.Check(ix.plan == nil && mark >= 0 && mark <= ix.pending.n, "INV-1 rollback to %d of %d pending IDs, prepared %v", mark, ix.pending.n, ix.plan != nil)
	ix.pending.truncate(mark)
}

// Prepare says what the open transaction adds to the log and which generations it may forget, at the
// task's stream time (to which it advances). Nothing else changes until Commit or Abort, one of
// which must follow; calling it again decides anew.
//
// There is one block for each 512 KiB of entries, all of the same generation. The entries are
// pending's own memory: they stay as they are until Commit or Abort.
//
// The drops concern the local log only. The generation that is being sealed is dropped
// by a later transaction, so that dropping and sealing never meet.
func (ix *Index) Prepare(streamTime time.Time) (blocks []record.IDBlock, drops []uint64) {
	ix.Advance(streamTime)
	now := ix.streamTime
	p := &plan{streamTime: now}
	forgotten := func(g *generation) bool { return g.to < now-ix.retention }
	others := 0 // IDs that stay in the closed generations
	for _, g := range ix.closed {
		switch {
		case !forgotten(g):
			others += int(g.ids)
		case g != ix.sealing && (ix.open != nil || ix.pending.n > 0 || g.number != ix.last):
			// The newest generation is left, whatever its age, unless this transaction makes a newer one.
			p.drops = append(p.drops, g.number)
		}
	}
	if ix.pending.n > 0 {
		number := ix.last
		if p.rotate = ix.open == nil || ix.full(now, others); p.rotate {
			number = ix.last + 1
			if ix.open != nil && forgotten(ix.open) {
				p.drops = append(p.drops, ix.open.number)
			}
		}
		blocks = ix.blocks(number, milli(now))
	}
	ix.plan = p
	return blocks, p.drops
}

// full says whether the open generation ends before this transaction.
func (ix *Index) full(now int64, others int) bool {
	g := ix.open
	n := int(g.ids) + ix.pending.n
	limit := min(max(ix.generationIDs, others/openShare), maxSetIDs)
	return n > limit || now-g.from >= ix.retention/shares
}

func (ix *Index) blocks(number uint64, streamTime time.Time) []record.IDBlock {
	size := ix.pending.entryBytes
	var out []record.IDBlock
	for piece := range slices.Chunk(ix.pending.chunks[0], maxBlockBytes/size*size) {
		out = append(out, record.IDBlock{Generation: number, StreamTime: streamTime, EntryBytes: size, Entries: piece})
	}
	return out
}

// Commit records what Prepare announced: the transaction has committed and the log has its blocks
// and drops.
func (ix *Index) Commit() {
	p := ix.plan
	invariant.Check(p != nil, "INV-1 commit of a transaction that was not prepared")
	if n := ix.pending.n; n > 0 {
		if p.rotate {
			ix.rotate(p.streamTime)
		}
		g := ix.open
		g.mark(p.streamTime, ix.retention)
		for pos := range n {
			e := ix.pending.entry(pos)
			g.set.add(entryKey(e), e)
		}
		g.ids += uint64(n)
		g.from, g.to = min(g.from, p.streamTime), max(g.to, p.streamTime)
	}
	if len(p.drops) > 0 {
		ix.closed = slices.DeleteFunc(ix.closed, func(g *generation) bool {
			gone := slices.Contains(p.drops, g.number)
			if gone {
				ix.expired += g.ids
			}
			return gone
		})
	}
	ix.committedTime = p.streamTime
	ix.plan = nil
	ix.pending.reset()
}

// rotate closes the open generation and begins the next one.
func (ix *Index) rotate(now int64) {
	hint := 0
	if ix.open != nil {
		ix.closed = append(ix.closed, ix.open)
		// A stream is mostly as it was: room for as many IDs spares the new index its growing.
		hint = int(ix.open.ids)
	}
	ix.last++
	ix.open = &generation{
		number: ix.last, entryBytes: ix.pending.entryBytes, from: now, to: now,
		set: newSet(ix.pending.entryBytes, chunkBits, max(hint, ix.pending.n)),
	}
}

// Abort forgets everything of the open transaction, prepared or not. Stream time goes back to
// where the last commit left it: the records come again and must be judged as the first time.
func (ix *Index) Abort() {
	ix.plan = nil
	ix.pending.reset()
	ix.streamTime = ix.committedTime
}

func putPayload(b []byte, payload uint64) { binary.BigEndian.PutUint64(b, payload) }

func payloadOf(entry []byte) uint64 { return binary.BigEndian.Uint64(entry[record.HashBytes:]) }
