package dedup

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/streamd/streamd/record"
)

// ErrCorrupt: the log contradicts itself. Its directory is to be set aside and restored.
var ErrCorrupt = errors.New("dedup: the log of IDs is damaged")

// ErrPrepared: Check was called between Prepare and its Commit or Abort.
var ErrPrepared = errors.New("dedup: the transaction is prepared already")

// ErrTransactionTooLarge: one transaction has 16,777,215 new IDs, which no generation can hold.
var ErrTransactionTooLarge = errors.New("dedup: too many new IDs in one transaction")

// never is before every stream time that a record can have.
const never = math.MinInt64

// Index knows which IDs one operator of one task has processed. It is used by one goroutine;
// only the function that SealJob returns may run on another.
type Index struct {
	cfg Config
	log Log

	retention     int64 // all times are Unix milliseconds, Kafka's resolution
	generationIDs int   // least number of IDs that ends a generation early

	closed []*generation // by rising number
	open   *generation   // nil until there is a first ID, or when the entry size has changed
	last   uint64        // the highest number given so far

	pending *set
	plan    *plan // between Prepare and Commit or Abort

	committedTime int64 // stream time at the last commit
	streamTime    int64 // Invariant: streamTime >= committedTime (INV-8)

	sealing  *generation
	rebuilds Rebuilds
	expired  uint64
}

// generation is a part of the log that is forgotten as a whole.
type generation struct {
	number     uint64
	ids        uint64
	entryBytes int
	from, to   int64 // lowest and highest stream time of its blocks

	// Either set or filter answers for it. (INV-4)
	set    *set
	marks  []mark // of an exact set: when its entries came
	filter *filter
	bits   uint // of a sealed one: 1<<bits runs
}

// mark says that the entries from a position on came at a stream time or later.
type mark struct {
	pos int
	at  int64
}

// Open builds the index from the log. When it returns, the index is complete (INV-4): a filter
// snapshot that is missing or damaged has been rebuilt from the runs. ErrCorrupt if the
// log contradicts itself; then nothing may be processed with it.
//
// Closed generations that were not sealed yet (after a restore: all of them) are held exactly until
// SealJob has dealt with them.
func Open(cfg Config, log Log) (*Index, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ix := &Index{
		cfg: cfg, log: log,
		retention:     cfg.Retention.Milliseconds(),
		generationIDs: cfg.generationIDs(),
		pending:       newSet(cfg.entryBytes(), flatBits, 0),
		committedTime: never, streamTime: never,
	}
	gens, err := log.Generations()
	if err != nil {
		return nil, fmt.Errorf("dedup: listing generations: %w", err)
	}
	for _, g := range gens {
		if g.Number <= ix.last {
			return nil, fmt.Errorf("%w: generation %d is listed after %d", ErrCorrupt, g.Number, ix.last)
		}
		gen, err := ix.load(g)
		if err != nil {
			return nil, err
		}
		ix.last = g.Number
		ix.committedTime = max(ix.committedTime, gen.to)
		ix.closed = append(ix.closed, gen)
	}
	ix.streamTime = ix.committedTime
	// The newest one goes on unless it is sealed or its entries have another size (Config.Payload was changed).
	if n := len(ix.closed) - 1; n >= 0 && ix.closed[n].set != nil && ix.closed[n].entryBytes == cfg.entryBytes() {
		ix.open, ix.closed = ix.closed[n], ix.closed[:n]
	}
	return ix, nil
}

// load builds what answers for one generation.
func (ix *Index) load(g record.Generation) (*generation, error) {
	gen := &generation{number: g.Number, ids: g.IDs, entryBytes: g.EntryBytes, from: g.From.UnixMilli(), to: g.To.UnixMilli()}
	if g.EntryBytes != record.HashBytes && g.EntryBytes != record.HashBytes+payloadBytes {
		return nil, fmt.Errorf("%w: generation %d has entries of %d bytes", ErrCorrupt, g.Number, g.EntryBytes)
	}
	if g.IDs > maxSetIDs {
		return nil, fmt.Errorf("%w: generation %d holds %d IDs, at most %d", ErrCorrupt, g.Number, g.IDs, maxSetIDs)
	}
	if g.Sealed {
		return gen, ix.loadSealed(gen, g)
	}
	return gen, ix.loadBlocks(gen)
}

func (ix *Index) loadBlocks(gen *generation) error {
	gen.set = newSet(gen.entryBytes, chunkBits, int(gen.ids))
	err := ix.log.Blocks(gen.number, func(b record.IDBlock) error {
		if b.EntryBytes != gen.entryBytes || len(b.Entries)%gen.entryBytes != 0 {
			return fmt.Errorf("%w: a block of generation %d has %d bytes in entries of %d", ErrCorrupt, gen.number, len(b.Entries), b.EntryBytes)
		}
		if uint64(gen.set.n)+uint64(b.Len()) > gen.ids {
			return fmt.Errorf("%w: generation %d holds more than the %d IDs that were counted", ErrCorrupt, gen.number, gen.ids)
		}
		gen.mark(b.StreamTime.UnixMilli(), ix.retention)
		for e := b.Entries; len(e) > 0; e = e[gen.entryBytes:] {
			gen.set.load(e[:gen.entryBytes])
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("dedup: reading the blocks of generation %d: %w", gen.number, err)
	}
	if uint64(gen.set.n) != gen.ids {
		return fmt.Errorf("%w: generation %d holds %d IDs, %d were counted", ErrCorrupt, gen.number, gen.set.n, gen.ids)
	}
	return nil
}

// mark notes the time of the entries that follow. Times are kept to 1/1000 of the retention: at a low rate
// a block has few entries, and a note for each would be as large as they are.
func (g *generation) mark(at, retention int64) {
	if n := len(g.marks); n == 0 || at-g.marks[n-1].at >= max(retention/1000, 1) {
		g.marks = append(g.marks, mark{pos: g.set.n, at: at})
	}
}

// seenAt is about when the entry at a position of an exact set came.
func (g *generation) seenAt(pos int) time.Time {
	lo, hi := 0, len(g.marks)
	for lo < hi {
		if mid := (lo + hi) / 2; g.marks[mid].pos <= pos {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return milli(g.from)
	}
	return milli(g.marks[lo-1].at)
}

// Verdict is the answer to "is this ID new?".
type Verdict uint8

// The verdicts.
const (
	// New: not processed within the retention. The ID is pending from now on.
	New Verdict = iota
	// Duplicate: processed by a committed transaction.
	Duplicate
	// DuplicatePending: processed by the transaction that is open.
	DuplicatePending
	// Conflict: processed, by either, but with another payload.
	Conflict
	// TooLate: not known, and so old that it may have been forgotten. Nothing is recorded.
	TooLate
)

// String returns the verdict's name.
func (v Verdict) String() string {
	return [...]string{"new", "duplicate", "duplicate pending", "conflict", "too late"}[v]
}

// Bloom is what the filters contributed to an answer.
type Bloom uint8

// The contributions.
const (
	// NotAsked: the answer was found before, or there is no sealed generation.
	NotAsked Bloom = iota
	// Negative: every filter said no; nothing was read.
	Negative
	// TruePositive: a filter said maybe and the ID was there.
	TruePositive
	// FalsePositive: one filter or more said maybe, and the ID was in none of the generations.
	FalsePositive
)

// Answer is the answer of Check.
type Answer struct {
	Verdict Verdict
	// Pending says that the first record with the ID is in the open transaction (DuplicatePending, and
	// Conflict if so).
	Pending bool
	// SeenAt is about the stream time when the first record was processed: exact to 1/1000 of the
	// retention in exact sets, to 1/16 in sealed generations. Zero for New and TooLate.
	SeenAt time.Time
	Bloom  Bloom
}

// Check says whether an ID is new and, if it is, makes it pending. payload is a hash of the
// record's payload, used if Config.Payload is set. at is the record's time: of an unknown ID that is older
// than stream time minus the retention nobody can say that it is new. A later at does not move stream
// time: that is Advance's.
//
// An error comes from the log (the record must not be processed) or is ErrPrepared or ErrTransactionTooLarge.
func (ix *Index) Check(h record.Hash, payload uint64, at time.Time) (Answer, error) {
	if ix.plan != nil {
		return Answer{}, ErrPrepared
	}
	k := keyOf(&h)
	if pos := ix.pending.find(k); pos >= 0 {
		return ix.found(ix.pending.entry(pos), payload, Answer{Verdict: DuplicatePending, Pending: true, SeenAt: milli(ix.streamTime)}), nil
	}
	ans, err := ix.committed(k, payload)
	if err != nil || ans.Verdict != New {
		return ans, err
	}
	if ix.tooOld(at.UnixMilli()) {
		ans.Verdict = TooLate
		return ans, nil
	}
	if ix.pending.n == maxSetIDs {
		return Answer{}, ErrTransactionTooLarge
	}
	var entry [record.HashBytes + payloadBytes]byte
	copy(entry[:], h[:])
	putPayload(entry[record.HashBytes:], payload)
	ix.pending.add(k, entry[:ix.pending.entryBytes])
	return ans, nil
}

// committed looks the ID up among those of committed transactions.
func (ix *Index) committed(k key, payload uint64) (Answer, error) {
	if g := ix.open; g != nil && !ix.tooOld(g.to) {
		if pos := g.set.find(k); pos >= 0 {
			return ix.found(g.set.entry(pos), payload, Answer{Verdict: Duplicate, SeenAt: g.seenAt(pos)}), nil
		}
	}
	var ans Answer
	for i := len(ix.closed) - 1; i >= 0; i-- {
		g := ix.closed[i]
		// Forgotten, though the log may hold it until the next commit.
		if ix.tooOld(g.to) {
			continue
		}
		if g.set != nil {
			if pos := g.set.find(k); pos >= 0 {
				return ix.found(g.set.entry(pos), payload, Answer{Verdict: Duplicate, SeenAt: g.seenAt(pos)}), nil
			}
			continue
		}
		if !g.filter.maybe(k) {
			if ans.Bloom == NotAsked {
				ans.Bloom = Negative
			}
			continue
		}
		entry, err := ix.lookUp(g, k)
		if err != nil {
			return Answer{}, err
		}
		if entry != nil {
			return ix.found(entry, payload, Answer{Verdict: Duplicate, SeenAt: milli(g.from + (g.to-g.from)/2), Bloom: TruePositive}), nil
		}
		ans.Bloom = FalsePositive
	}
	return ans, nil
}

// lookUp reads the run that a key belongs to and returns its entry, nil if it is not there.
func (ix *Index) lookUp(g *generation, k key) ([]byte, error) {
	slot := slotOf(k, g.bits)
	run, err := ix.log.Run(g.number, slot)
	if err != nil {
		return nil, fmt.Errorf("dedup: reading run %d of generation %d: %w", slot, g.number, err)
	}
	if len(run)%g.entryBytes != 0 {
		return nil, fmt.Errorf("%w: run %d of generation %d has %d bytes in entries of %d", ErrCorrupt, slot, g.number, len(run), g.entryBytes)
	}
	for e := run; len(e) > 0; e = e[g.entryBytes:] {
		if entryKey(e) == k {
			return e[:g.entryBytes], nil
		}
	}
	return nil, nil
}

// found turns an answer into a conflict if the payloads differ. An entry that was written without a payload
// hash conflicts with nothing.
func (ix *Index) found(entry []byte, payload uint64, ans Answer) Answer {
	if ix.cfg.Payload && len(entry) > record.HashBytes && payloadOf(entry) != payload {
		ans.Verdict = Conflict
	}
	return ans
}

// tooOld says whether a time lies further back than the retention.
func (ix *Index) tooOld(at int64) bool {
	return ix.streamTime != never && at < ix.streamTime-ix.retention
}

// Advance moves stream time up, to judge late records and what is forgotten. An earlier time
// changes nothing (INV-8). The caller has clamped it, so that one record from the year 3000 makes
// nothing forgotten. A task calls it after Open and after Abort with its committed stream time, which
// may be later than that of the last new ID, and as its stream time advances.
func (ix *Index) Advance(streamTime time.Time) {
	ix.streamTime = max(ix.streamTime, streamTime.UnixMilli())
}

// milli is the time of a stream time, zero if there was none.
func milli(t int64) time.Time {
	if t == never {
		return time.Time{}
	}
	return time.UnixMilli(t).UTC()
}
