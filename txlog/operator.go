package txlog

import (
	"bytes"
	"fmt"
	"hash/crc32"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
)

// Operator is the ID log of one dedup operator of one task. Seal may run in another goroutine
// than the task's; the reads may be made from any.
type Operator struct {
	task *Task
	text string
	name *name
	err  error // the name is not possible
}

// Operator returns the handle of the operator with that name, for the life of the task. Nothing
// is written until the first batch with a block of it.
func (t *Task) Operator(text string) *Operator {
	t.mu.Lock()
	o := t.operators[text]
	t.mu.Unlock()
	if o != nil {
		return o
	}
	n, err := t.log.intern(nameOperator, text)
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.operators[text]; o != nil {
		return o
	}
	o = &Operator{task: t, text: text, name: n, err: err}
	t.operators[text] = o
	return o
}

// wrap adds who is speaking.
func (o *Operator) wrap(err error) error {
	return fmt.Errorf("txlog: task %q operator %q: %w", o.task.text, o.text, err)
}

// Generations returns the operator's generations, oldest first. IDs of an unsealed one counts its
// log, of a sealed one its runs.
func (o *Operator) Generations() ([]record.Generation, error) {
	if o.err != nil {
		return nil, o.err
	}
	var out []record.Generation
	for _, g := range o.task.generations(o.name.number) {
		r := record.Generation{
			Number: g.gen, IDs: g.ids, EntryBytes: g.entryBytes, From: g.from, To: g.to,
		}
		if g.seal != nil {
			r.Sealed, r.IDs, r.Slots = true, g.seal.ids, g.seal.slots
		}
		out = append(out, r)
	}
	return out, nil
}

// Blocks calls fn for the blocks of a generation that is not sealed, in the order in which they
// were applied. A block is valid only during the call. A sealed or unknown generation has none.
func (o *Operator) Blocks(gen uint64, fn func(record.IDBlock) error) error {
	if o.err != nil {
		return o.err
	}
	id := genID{o.name.number, gen}
	g := o.task.generation(id)
	if g == nil || g.seal != nil {
		return nil
	}
	prefix := generationKey(kindBlock, o.task.number(), id.op, id.gen)
	return o.task.log.kv.each(prefix, nil, func(e entry) ([]byte, error) {
		key, err := parseGenerationKey(e.key)
		if err != nil {
			return nil, o.wrap(err)
		}
		if key.n >= g.nextSeq {
			return nil, errStop // of a batch that began meanwhile
		}
		value, err := e.value()
		if err != nil {
			return nil, err
		}
		block, err := decodeBlock(gen, value)
		if err != nil {
			return nil, o.wrap(err)
		}
		return nil, fn(block)
	})
}

// Run returns the entries of a slot of a sealed generation, sorted, nil if the slot is empty. They
// belong to the caller. [ErrUnknownGeneration] if the generation is not sealed or was dropped.
func (o *Operator) Run(gen uint64, slot uint32) ([]byte, error) {
	_, err := o.sealed(gen)
	if err != nil {
		return nil, err
	}
	return o.task.log.kv.get(partKey(kindRun, o.task.number(), o.name.number, gen, slot))
}

// sealed returns the marker of a sealed generation.
func (o *Operator) sealed(gen uint64) (*seal, error) {
	if o.err != nil {
		return nil, o.err
	}
	t := o.task
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.gens[genID{o.name.number, gen}]
	if g == nil || g.seal == nil {
		return nil, o.wrap(fmt.Errorf("generation %d: %w", gen, ErrUnknownGeneration))
	}
	return g.seal, nil
}

// Filter returns the snapshot that [Operator.Seal] was given, nil if it was given none. [ErrDamaged] if it is not complete
// or its checksum is wrong: then build the filter again from the runs.
func (o *Operator) Filter(gen uint64) ([]byte, error) {
	s, err := o.sealed(gen)
	if err != nil {
		return nil, err
	}
	// First the lengths of the pieces that are there, so that a wrong length allocates nothing.
	prefix := generationKey(kindFilter, o.task.number(), o.name.number, gen)
	var total, pieces uint64
	err = o.task.log.kv.each(prefix, nil, func(e entry) ([]byte, error) {
		key, err := parseGenerationKey(e.key)
		if err != nil {
			return nil, o.wrap(err)
		}
		if key.n == pieces {
			pieces++
			total += uint64(e.valueBytes())
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	if total != s.filterBytes {
		return nil, o.wrap(fmt.Errorf("generation %d: %w: filter of %d bytes, %d are there",
			gen, ErrDamaged, s.filterBytes, total))
	}
	if total == 0 {
		return nil, nil
	}
	filter := make([]byte, 0, total)
	err = o.task.log.kv.each(prefix, nil, func(e entry) ([]byte, error) {
		value, err := e.value()
		filter = append(filter, value...)
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	if crc32.Checksum(filter, castagnoli) != s.filterCRC {
		return nil, o.wrap(fmt.Errorf("generation %d: %w: checksum of the filter", gen, ErrDamaged))
	}
	return filter, nil
}

// Seal turns a generation from blocks into sorted runs and a filter. run returns the entries of a
// slot, sorted, nil if there are none; it is called once per slot, in order, and neither its bytes nor
// the filter may change until Seal returns. Of g, Number, EntryBytes, Slots (a power of two), IDs (the sum of the runs), From
// and To are used.
//
// It may run in another goroutine while batches are applied. The generation takes no IDs from
// the beginning on ([ErrSealed]). It is sealed when Seal returns nil, in one step; a seal that was
// interrupted is simply done again, and one of a sealed generation does nothing.
// [ErrUnknownGeneration]: it was dropped meanwhile. [ErrDiskFull]: do it again later.
func (o *Operator) Seal(g record.Generation, run func(slot uint32) []byte, filter []byte) error {
	if o.err != nil {
		return o.err
	}
	live, err := o.beginSeal(&g)
	if err != nil || live == nil {
		return err
	}
	s := &sealer{
		o: o, live: live, task: o.task.number(),
		marker: seal{
			entryBytes: g.EntryBytes, slots: g.Slots, ids: g.IDs, logged: live.ids,
			from: g.From.UTC(), to: g.To.UTC(),
			filterBytes: uint64(len(filter)), filterCRC: crc32.Checksum(filter, castagnoli),
		},
	}
	if err := s.do(run, filter); err != nil {
		o.task.mu.Lock()
		live.sealing = false
		o.task.mu.Unlock()
		// What was written may not be what the next try writes.
		o.task.log.trash.add(generationWaste(s.task, live.genID, kindRun, kindFilter))
		return o.wrap(fmt.Errorf("seal generation %d: %w", g.Number, err))
	}
	return nil
}

// beginSeal marks the generation. It returns nil if it is sealed already.
func (o *Operator) beginSeal(g *record.Generation) (*generation, error) {
	if g.Slots == 0 || g.Slots&(g.Slots-1) != 0 {
		return nil, o.wrap(fmt.Errorf("seal generation %d: %d slots are not a power of two", g.Number, g.Slots))
	}
	t := o.task
	t.mu.Lock()
	defer t.mu.Unlock()
	live := t.gens[genID{o.name.number, g.Number}]
	switch {
	case live == nil:
		return nil, o.wrap(fmt.Errorf("seal generation %d: %w", g.Number, ErrUnknownGeneration))
	case live.seal != nil:
		return nil, nil
	case live.sealing:
		return nil, o.wrap(fmt.Errorf("generation %d is being sealed: %w", g.Number, ErrSealed))
	case live.entryBytes != g.EntryBytes || g.IDs > live.ids:
		return nil, o.wrap(fmt.Errorf("seal generation %d: %d IDs of %d bytes, its log has %d of %d",
			g.Number, g.IDs, g.EntryBytes, live.ids, live.entryBytes))
	}
	live.sealing = true
	return live, nil
}

// sealer is one seal at work.
type sealer struct {
	o      *Operator
	live   *generation
	task   uint16
	marker seal
	writes []write
	bytes  int64
	ids    uint64
}

func (s *sealer) do(run func(slot uint32) []byte, filter []byte) error {
	for _, kind := range []byte{kindRun, kindFilter} {
		prefix := generationKey(kind, s.task, s.live.op, s.live.gen)
		if err := s.o.task.log.purge(prefix); err != nil {
			return err
		}
	}
	for slot := range s.marker.slots {
		entries := run(slot)
		if len(entries) == 0 {
			continue
		}
		if err := s.checkRun(slot, entries); err != nil {
			return err
		}
		s.ids += uint64(len(entries) / s.marker.entryBytes)
		s.marker.runs++
		if err := s.add(kindRun, slot, entries); err != nil {
			return err
		}
	}
	if s.ids != s.marker.ids {
		return fmt.Errorf("runs have %d IDs, %d were announced", s.ids, s.marker.ids)
	}
	for chunk := uint32(0); len(filter) > 0; chunk++ {
		n := min(len(filter), maxBlockBytes)
		if err := s.add(kindFilter, chunk, filter[:n]); err != nil {
			return err
		}
		filter = filter[n:]
	}
	if err := s.flush(); err != nil {
		return err
	}
	fault.Point("seal.mid")
	key := generationKey(kindSeal, s.task, s.live.op, s.live.gen)
	return s.step(func() error {
		if err := s.o.task.log.kv.commit([]write{{key, encodeSeal(&s.marker)}}); err != nil {
			return err
		}
		t := s.o.task
		t.mu.Lock()
		s.live.seal, s.live.sealing = &s.marker, false
		s.live.from, s.live.to = s.marker.from, s.marker.to
		t.mu.Unlock()
		t.log.trash.add(generationWaste(s.task, s.live.genID, kindBlock))
		return nil
	})
}

// checkRun checks what a search in the run relies on.
func (s *sealer) checkRun(slot uint32, entries []byte) error {
	n := s.marker.entryBytes
	if len(entries)%n != 0 || len(entries) > MaxValueBytes {
		return fmt.Errorf("slot %d: run of %d bytes", slot, len(entries))
	}
	for i := n; i < len(entries); i += n {
		if bytes.Compare(entries[i-n:i], entries[i:i+n]) > 0 {
			return fmt.Errorf("slot %d: run is not sorted", slot)
		}
	}
	return nil
}

func (s *sealer) add(kind byte, n uint32, value []byte) error {
	w := write{partKey(kind, s.task, s.live.op, s.live.gen, n), value}
	if k := s.o.task.log.kv; int64(len(s.writes))+2 > k.maxCount || s.bytes+w.size() > k.maxBytes {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.writes = append(s.writes, w)
	s.bytes += w.size()
	return nil
}

func (s *sealer) flush() error {
	if len(s.writes) == 0 {
		return nil
	}
	err := s.step(func() error { return s.o.task.log.kv.commit(s.writes) })
	s.writes, s.bytes = s.writes[:0], 0
	return err
}

// step does one commit of the seal while no batch is applied, if the generation is still alive:
// a drop or a reset has its keys deleted, and none may be written behind it.
func (s *sealer) step(commit func() error) error {
	t := s.o.task
	t.applying.Lock()
	defer t.applying.Unlock()
	t.mu.Lock()
	alive := t.gens[s.live.genID] == s.live && t.number() == s.task
	t.mu.Unlock()
	if !alive {
		return ErrUnknownGeneration
	}
	if err := t.log.kv.room(); err != nil {
		return err
	}
	return commit()
}

// Drop forgets a generation: at once for whoever asks, on disk little by little. An unknown one
// is no error. A batch does the same with its Drops, together with its position.
func (o *Operator) Drop(gen uint64) error {
	if o.err != nil {
		return o.err
	}
	t := o.task
	t.applying.Lock()
	defer t.applying.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	position, known := t.Position()
	if !known || t.generation(genID{o.name.number, gen}) == nil {
		return nil
	}
	if err := t.log.kv.room(); err != nil {
		return err
	}
	b := &record.Batch{Position: position, Drops: []record.GenerationDrop{{Operator: o.text, Generation: gen}}}
	p := &plan{task: t.number(), gens: map[genID]*generation{}}
	if err := t.plan(p, b); err != nil {
		return o.wrap(err)
	}
	if err := t.log.kv.commitAll(p.body, p.tail); err != nil {
		return o.wrap(err)
	}
	t.settle(p, b)
	return nil
}
