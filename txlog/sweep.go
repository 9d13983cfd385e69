package txlog

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
)

const (
	// sweepPerBatch is how many old keys each batch deletes on its way: about a millisecond.
	sweepPerBatch = 256
	// sweepAll is how many are deleted at once when there is time.
	sweepAll = 4096
)

// waste is a set of keys that nobody needs: a generation that was dropped, the blocks of one that
// was sealed, a task that was forgotten. Deleting few keys often, instead of a prefix at once, is
// what keeps others from being blocked: DropPrefix refuses all writes for seconds.
type waste struct {
	prefixes [][]byte // each is deleted, then taken off
	next     []byte   // where the first of them goes on: what lies before was deleted
	// forgotten is the task number whose 'f' key is deleted at the end.
	forgotten *uint16
}

func taskWaste(number uint16) *waste {
	w := &waste{forgotten: &number}
	for i := range len(taskKinds) {
		w.prefixes = append(w.prefixes, taskKey(taskKinds[i], number))
	}
	return w
}

// generationWaste is all keys of those kinds of a generation.
func generationWaste(task uint16, g genID, kinds ...byte) *waste {
	w := &waste{}
	for _, kind := range kinds {
		w.prefixes = append(w.prefixes, generationKey(kind, task, g.op, g.gen))
	}
	return w
}

// trash is a queue of waste. It lives in memory: at a start it is found again, by the 'f' keys and by
// comparing each task's keys with its position record.
type trash struct {
	mu       sync.Mutex // guards list
	list     []*waste
	sweeping sync.Mutex // one at a time; taken before mu
}

func (t *trash) add(w *waste) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, w)
}

func (t *trash) first() *waste {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.list) == 0 {
		return nil
	}
	return t.list[0]
}

func (t *trash) remove(w *waste) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = slices.DeleteFunc(t.list, func(o *waste) bool { return o == w })
}

// holding returns the waste that has keys with that prefix to delete.
func (t *trash) holding(prefix []byte) *waste {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.list {
		if slices.ContainsFunc(w.prefixes, func(p []byte) bool { return bytes.Equal(p, prefix) }) {
			return w
		}
	}
	return nil
}

// Sweep deletes up to limit keys of dropped generations and forgotten tasks, and says whether
// there may be more. Each batch sweeps a little by itself; call it when idle.
func (l *Log) Sweep(limit int) (left bool, err error) {
	l.trash.sweeping.Lock()
	defer l.trash.sweeping.Unlock()
	w := l.trash.first()
	if w == nil {
		return false, nil
	}
	if err := l.kv.room(); err != nil {
		return true, err
	}
	if err := l.sweep(w, limit); err != nil {
		return true, err
	}
	return l.trash.first() != nil, nil
}

// sweep deletes up to limit keys of w. The caller holds trash.sweeping.
func (l *Log) sweep(w *waste, limit int) error {
	limit = min(limit, int(l.kv.maxCount)-3)
	var writes []write
	prefixes, next := w.prefixes, w.next
	for len(prefixes) > 0 && len(writes) < limit {
		exhausted := true
		err := l.kv.each(prefixes[0], next, func(e entry) ([]byte, error) {
			if len(writes) == limit {
				exhausted, next = false, bytes.Clone(e.key)
				return nil, errStop
			}
			writes = append(writes, write{key: bytes.Clone(e.key)})
			return nil, nil
		})
		if err != nil {
			return err
		}
		if exhausted {
			prefixes, next = prefixes[1:], nil
		}
	}
	if len(prefixes) == 0 && w.forgotten != nil {
		writes = append(writes, write{key: taskKey(kindForgotten, *w.forgotten)})
	}
	if err := l.kv.commit(writes); err != nil {
		return fmt.Errorf("txlog: sweep: %w", err)
	}
	l.kv.deleted.Add(int64(len(writes)))
	l.trash.mu.Lock()
	w.prefixes, w.next = prefixes, next
	l.trash.mu.Unlock()
	if len(prefixes) == 0 {
		l.trash.remove(w)
		if w.forgotten != nil {
			l.freeNumber(nameNumber{nameTask, *w.forgotten})
		}
	}
	return nil
}

// purge makes sure that no keys with the prefix wait to be deleted: somebody is about to write
// such keys, and they must not be swept away.
func (l *Log) purge(prefix []byte) error {
	if l.trash.holding(prefix) == nil {
		return nil
	}
	l.trash.sweeping.Lock()
	defer l.trash.sweeping.Unlock()
	for {
		w := l.trash.holding(prefix)
		if w == nil {
			return nil
		}
		if err := l.sweep(w, sweepAll); err != nil {
			return err
		}
	}
}

// sweepSome is the share of a batch. The batch is applied, so that a fault here is not its fault.
func (l *Log) sweepSome() {
	if l.trash.first() == nil || !l.trash.sweeping.TryLock() {
		return
	}
	defer l.trash.sweeping.Unlock()
	if w := l.trash.first(); w != nil {
		if err := l.sweep(w, sweepPerBatch); err != nil {
			l.o.Logger.Warn("deleting old keys failed, will be tried again", "err", err)
		}
	}
}
