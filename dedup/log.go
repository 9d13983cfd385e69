package dedup

import "github.com/streamd/streamd/record"

// Log is the durable side of one operator's IDs in one task. The local log implements it;
// deduptest has one in memory.
//
// Blocks reach it not through this interface but with the state and positions of their
// transaction. Seal may run on another goroutine, at the same time as the other methods.
type Log interface {
	// Generations lists the live generations by rising number, the open one included.
	Generations() ([]record.Generation, error)
	// Blocks calls fn with the blocks of an unsealed generation in the order of their commits. The
	// entries are valid during the call only. It ends at the first error and returns it.
	Blocks(gen uint64, fn func(record.IDBlock) error) error
	// Run returns one run of a sealed generation; empty if no ID falls into the slot. The bytes are
	// only read, and not kept beyond the next call.
	Run(gen uint64, slot uint32) ([]byte, error)
	// Filter returns the filter snapshot of a sealed generation, nil if there is none. After an error, of
	// whatever kind, the filter is rebuilt from the runs.
	Filter(gen uint64) ([]byte, error)
	// Seal replaces the blocks of a generation by runs and a filter snapshot. Until it is complete a
	// reader, also after a crash, finds the blocks: the marker that makes the generation sealed
	// is written last, together with the deletion of the blocks. Sealing a sealed generation changes
	// nothing. run is called for each slot below g.Slots; its bytes are sorted and must not be changed.
	Seal(g record.Generation, run func(slot uint32) []byte, filter []byte) error
}
