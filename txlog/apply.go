package txlog

import (
	"fmt"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
)

// plan is a batch turned into writes, and what is to be remembered once they are done.
type plan struct {
	task    uint16
	names   []*name // used, and not yet known to the store
	body    []write
	tail    []write               // what must be in one transaction: dropped seal markers and the position
	gens    map[genID]*generation // changed or new
	dropped []genID
}

// Apply makes the changes of a batch durable, in one atomic transaction. A batch over 90 % of
// Badger's limit (2.2 MB or 23,000 keys with the default memtable) goes in several, the position in
// the last one: after a crash the content may then be ahead of the position, and applying the
// batch again heals it.
//
// It is called only when the batch's Kafka transaction is known to be committed (INV-5), or with
// what was read from the changelog. [ErrDiskFull]: nothing happened, call it again later.
// [ErrSealed], [ErrTooLarge]: nothing happened, a mistake of the caller. After any other error
// the log must be closed and opened again. The batch may be changed after the return.
func (t *Task) Apply(b *record.Batch) error {
	t.applying.Lock()
	defer t.applying.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	if err := t.log.kv.room(); err != nil {
		return err
	}
	p := &plan{task: t.number(), gens: map[genID]*generation{}}
	if err := t.plan(p, b); err != nil {
		return fmt.Errorf("txlog: task %q: %w", t.text, err)
	}
	fault.Point("badger.before")
	if err := t.log.kv.commitAll(p.body, p.tail); err != nil {
		return fmt.Errorf("txlog: task %q: %w", t.text, err)
	}
	fault.Point("badger.after")
	t.settle(p, b)
	t.log.sweepSome()
	return nil
}

func (t *Task) plan(p *plan, b *record.Batch) error {
	p.body = make([]write, 0, len(b.Blocks)+len(b.State)+len(b.Drops)+2)
	p.use(t.name.Load())
	for i := range b.Blocks {
		if err := t.planBlock(p, &b.Blocks[i]); err != nil {
			return err
		}
	}
	for _, d := range b.Drops {
		if err := t.planDrop(p, d); err != nil {
			return err
		}
	}
	if err := t.planState(p, b.State); err != nil {
		return err
	}
	return t.planPosition(p, &b.Position)
}

// use adds the name to the batch if the store does not know it.
func (p *plan) use(n *name) {
	if n.durable.Load() {
		return
	}
	for _, o := range p.names {
		if o == n {
			return
		}
	}
	p.names = append(p.names, n)
	p.body = append(p.body, n.writes()...)
}

func (t *Task) planBlock(p *plan, b *record.OperatorBlock) error {
	if len(b.Entries) == 0 {
		return nil
	}
	if !validEntryBytes(b.EntryBytes) || len(b.Entries)%b.EntryBytes != 0 {
		return fmt.Errorf("operator %q: block of %d bytes with entries of %d bytes", b.Operator, len(b.Entries), b.EntryBytes)
	}
	op := t.Operator(b.Operator)
	if op.err != nil {
		return op.err
	}
	p.use(op.name)
	g, err := t.openGeneration(p, genID{op.name.number, b.Generation}, b.EntryBytes)
	if err != nil {
		return fmt.Errorf("operator %q: %w", b.Operator, err)
	}
	per := maxBlockBytes / b.EntryBytes * b.EntryBytes
	for rest := b.Entries; len(rest) > 0; {
		part := rest[:min(per, len(rest))]
		rest = rest[len(part):]
		p.body = append(p.body, write{
			blockKey(p.task, g.op, g.gen, g.nextSeq), encodeBlock(b.StreamTime, b.EntryBytes, part),
		})
		g.nextSeq++
	}
	g.ids += uint64(b.Len())
	g.widen(b.StreamTime)
	return nil
}

// openGeneration returns the plan's own copy of a generation that takes IDs.
func (t *Task) openGeneration(p *plan, id genID, entryBytes int) (*generation, error) {
	g := p.gens[id]
	if g == nil {
		if g = t.generation(id); g == nil {
			// Blocks of a generation with the same number may still wait to be swept away.
			if err := t.log.purge(generationKey(kindBlock, p.task, id.op, id.gen)); err != nil {
				return nil, err
			}
			g = &generation{logged: logged{genID: id, entryBytes: entryBytes}}
		}
		p.gens[id] = g
	}
	if g.seal != nil || g.sealing {
		return nil, fmt.Errorf("generation %d: %w", id.gen, ErrSealed)
	}
	if g.entryBytes != entryBytes {
		return nil, fmt.Errorf("generation %d has entries of %d bytes, the block of %d", id.gen, g.entryBytes, entryBytes)
	}
	return g, nil
}

func (t *Task) planDrop(p *plan, d record.GenerationDrop) error {
	op := t.Operator(d.Operator)
	if op.err != nil {
		return op.err
	}
	id := genID{op.name.number, d.Generation}
	if p.gens[id] == nil && t.generation(id) == nil {
		return nil
	}
	delete(p.gens, id)
	p.dropped = append(p.dropped, id)
	p.tail = append(p.tail, write{key: generationKey(kindSeal, p.task, id.op, id.gen)})
	return nil
}

func (t *Task) planState(p *plan, changes []record.StateChange) error {
	var s *Store // of the change before: they come store by store
	for i := range changes {
		c := &changes[i]
		if s == nil || s.text != c.Store {
			if s = t.Store(c.Store); s.err != nil {
				return s.err
			}
			p.use(s.name)
		}
		if len(c.Key) > MaxKeyBytes || len(c.Value) > MaxValueBytes {
			return fmt.Errorf("store %q: key of %d and value of %d bytes, allowed are %d and %d: %w",
				c.Store, len(c.Key), len(c.Value), MaxKeyBytes, MaxValueBytes, ErrTooLarge)
		}
		key := appendStateKey(make([]byte, 0, 5+len(c.Key)), p.task, s.name.number, c.Key)
		p.body = append(p.body, write{key, c.Value})
	}
	return nil
}

func (t *Task) planPosition(p *plan, position *record.LocalPosition) error {
	t.mu.Lock()
	after := make(map[genID]*generation, len(t.gens)+len(p.gens))
	for id, g := range t.gens {
		after[id] = g
	}
	for id, g := range p.gens {
		after[id] = g
	}
	for _, id := range p.dropped {
		delete(after, id)
	}
	list := loggedList(after)
	t.mu.Unlock()
	value := encodePosition(position, list)
	if len(value) > maxBlockBytes {
		return fmt.Errorf("position record of %d bytes: %w", len(value), ErrTooLarge)
	}
	p.tail = append(p.tail, write{taskKey(kindPosition, p.task), value})
	return nil
}

// settle remembers what the batch changed, now that it is durable.
func (t *Task) settle(p *plan, b *record.Batch) {
	for _, n := range p.names {
		n.durable.Store(true)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, g := range p.gens {
		// Not the whole generation: a seal of an older one changes what belongs to the seal.
		if have := t.gens[id]; have != nil {
			have.logged, have.from, have.to = g.logged, g.from, g.to
		} else {
			t.gens[id] = g
		}
	}
	for _, id := range p.dropped {
		delete(t.gens, id)
		t.log.trash.add(generationWaste(p.task, id, kindRun, kindFilter, kindBlock))
	}
	t.position, t.known = b.Position.Clone(), true
}
