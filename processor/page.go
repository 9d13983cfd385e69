package processor

import (
	"bytes"
	"sort"
)

// page is a piece of a store's committed content, in order. Each look at what is due reads a few keys behind those of the last
// one, where those of the last one are deleted meanwhile: without it each would cost a read of the disk, and pass over what was
// deleted since the last compaction.
//
// Invariant: it has each key with from <= key < to of the store (a nil to: no bound), and no other. It does not change.
type page struct {
	from, to []byte
	entries  []rawEntry
	bytes    int // of keys and values
}

const (
	pageAhead   = 64 // how many keys are read that nobody has asked for yet, where one page follows another
	pageMost    = 1024
	pageMaxSize = 64 << 10
)

// covers says whether the page knows of a key whether it is there.
func (p *page) covers(key []byte) bool {
	return p != nil && bytes.Compare(p.from, key) <= 0 && (p.to == nil || bytes.Compare(key, p.to) < 0)
}

func (p *page) full() bool { return len(p.entries) >= pageMost || p.bytes >= pageMaxSize }

// add puts an entry behind the others. The page keeps the memory.
func (p *page) add(key, value []byte) {
	p.entries = append(p.entries, rawEntry{key, value})
	p.bytes += len(key) + len(value)
}

// end says that the page ends with its last entry.
func (p *page) end() { p.to = append(bytes.Clone(p.entries[len(p.entries)-1].key), 0) }

// each is ranged for from <= key < to of what the page covers. stopped: fn wants no more.
func (p *page) each(from, to []byte, fn func(key, value []byte) bool) (stopped bool) {
	at := sort.Search(len(p.entries), func(i int) bool { return bytes.Compare(p.entries[i].key, from) >= 0 })
	for _, e := range p.entries[at:] {
		if to != nil && bytes.Compare(e.key, to) >= 0 {
			break
		}
		if !fn(e.key, e.value) {
			return true
		}
	}
	return false
}

// pager reads a store through a page. Whoever writes to the store tells it, by apply or forget.
type pager struct {
	store ranged
	page  *page
}

func (r *pager) forget() { r.page = nil }

// apply takes the changes over that the store was given.
func (r *pager) apply(changes changeList) {
	p := r.page
	if p == nil {
		return
	}
	next := &page{from: p.from, to: p.to, entries: make([]rawEntry, 0, len(p.entries))}
	under := func(from, to []byte, fn func(key, value []byte) bool) error {
		p.each(from, to, fn)
		return nil
	}
	_ = rangeOver(under, p.from, p.to, changes, func(k, v []byte) bool {
		if next.add(k, v); next.full() {
			next.end()
			return false
		}
		return true
	})
	r.page = next
}

// read is ranged for from <= key < to. What is read ahead stays before limit, which is not before to.
func (r *pager) read(from, to, limit []byte, fn func(key, value []byte) bool) error {
	p := r.page
	if !p.covers(from) {
		return r.readOn(&page{from: bytes.Clone(from), to: limit}, from, to, 0, fn)
	}
	if p.each(from, to, fn) || p.to == nil || to != nil && bytes.Compare(p.to, to) >= 0 {
		return nil
	}
	next := &page{from: p.from, to: limit, entries: p.entries, bytes: p.bytes}
	if next.full() {
		next = &page{from: p.to, to: limit}
	}
	return r.readOn(next, p.to, to, pageAhead, fn)
}

// readOn is read for what lies behind the page, and makes next the page: the first of that is put to it, as much as fn asks for,
// and at least ahead entries.
func (r *pager) readOn(next *page, from, to []byte, ahead int, fn func(key, value []byte) bool) error {
	wanted, whole, end := true, true, len(next.entries)+ahead
	next.to = bytes.Clone(next.to) // it outlives the call
	slab := []byte{}               // not nil: an empty key or value is none
	keep := func(b []byte) []byte {
		slab = append(slab, b...)
		return slab[len(slab)-len(b) : len(slab) : len(slab)]
	}
	err := r.store(from, next.to, func(k, v []byte) bool {
		if whole {
			next.add(keep(k), keep(v))
		}
		if wanted {
			wanted = (to == nil || bytes.Compare(k, to) < 0) && fn(k, v)
		}
		if whole && (next.full() || !wanted && len(next.entries) >= end) {
			next.end()
			whole = false
		}
		return whole || wanted
	})
	if err == nil {
		r.page = next
	}
	return err
}
