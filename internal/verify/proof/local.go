package proof

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

// compareCommit compares a local copy with the commit record that it is at: positions, stream time and
// counters (C6), and the IDs of its live generations (C5). The reader has just passed that record.
func (in *inspector) compareCommit(r *taskReader, l *local, x rawlog.Record) {
	c := r.task.Last
	where := fmt.Sprintf("task %s in %s", l.Name, l.dir)
	in.out.Offsets.Compared++
	if !slices.Equal(l.Inputs, c.Inputs) {
		in.out.Offsets.Differ(where, "commit %d: the local store has inputs %v, the commit record at %s %v", c.Sequence, l.Inputs, x.Where(), c.Inputs)
	}
	if !l.StreamTime.Equal(c.Time) {
		in.out.Offsets.Differ(where, "commit %d: stream time %v, the commit record at %s has %v", c.Sequence, l.StreamTime, x.Where(), c.Time)
	}
	if r.whole {
		for name, v := range r.task.Counters {
			if l.Counters[name] != v {
				in.out.Offsets.Differ(where, "commit %d: counter %q is %d, the commit records come to %d", c.Sequence, name, l.Counters[name], v)
			}
		}
	}
	if !l.Complete {
		return
	}
	live := map[key]bool{}
	oldest := map[string]uint64{}
	for _, g := range l.Generations {
		k := key{g.Operator, g.Number}
		live[k] = true
		if o, ok := oldest[g.Operator]; !ok || g.Number < o {
			oldest[g.Operator] = g.Number
		}
		var have sum
		err := l.IDs(g, func(e []byte) error { have.add(e); return nil })
		in.out.State.Compared += int64(have.count)
		if err != nil {
			in.out.State.Differ(where, "%v", err)
			continue
		}
		want := r.sums[k]
		if want == nil {
			want = &sum{}
		}
		switch {
		case have.equal(want):
		case !r.whole && (want.count == 0 || have.count > want.count):
			in.out.State.Note("%s: generation %d of %q began before the ID log does: not compared", where, g.Number, g.Operator)
		default:
			in.out.State.Differ(where, "commit %d: generation %d of %q holds %d IDs that are not the %d of the ID log", c.Sequence, g.Number, g.Operator, have.count, want.count)
		}
	}
	for k, s := range r.sums {
		retention, known := in.app.Retention[k.operator]
		lives := known && s.newest.After(c.Time.Add(-retention))
		if first, ok := oldest[k.operator]; !live[k] && s.count > 0 && (lives || ok && k.generation > first) {
			in.out.State.Differ(where, "commit %d: generation %d of %q with %d IDs is missing", c.Sequence, k.generation, k.operator, s.count)
		}
	}
}

// compareLocal compares a local copy with what it must be, after the whole ID log was read.
func (in *inspector) compareLocal(ctx context.Context, r *taskReader, l *local) error {
	where := fmt.Sprintf("task %s in %s", l.Name, l.dir)
	last := r.task.Last
	switch {
	case !l.Complete:
		in.out.State.Note("%s: a restore was interrupted, it will be done again: not compared", where)
		return nil
	case l.Incarnation != last.Incarnation:
		in.out.State.Note("%s: of an earlier incarnation, it will be restored: not compared", where)
		return nil
	case l.met && l.Sequence < last.Sequence:
		in.out.State.Note("%s: at commit %d of %d: what it lacks is replayed at its next start", where, l.Sequence, last.Sequence)
	case !l.met && l.Sequence > last.Sequence:
		in.out.Offsets.Differ(where, "the local store is at commit %d, the ID log at %d: committed data was lost", l.Sequence, last.Sequence)
		return nil
	case !l.met && r.whole:
		in.out.Offsets.Differ(where, "the ID log has no commit record %d", l.Sequence)
	case !l.met:
		in.out.Offsets.Note("%s: commit record %d is no longer in the ID log: positions and IDs not compared", where, l.Sequence)
	}
	for _, cl := range l.Changelogs {
		if cl.Partition == r.task.IDLog {
			continue
		}
		// Whatever stands behind the position of a store that is up to date was not written by the task.
		current := !in.app.Running && l.met && l.Sequence == last.Sequence
		if err := in.compareState(ctx, l, cl, where, current); err != nil {
			return err
		}
	}
	return nil
}

// version is what a changelog says of a key.
type version struct {
	at    int64 // of the last record before the local position; -1: none
	value digest
	later []digest // of the records behind it
}

// digest stands for a value: zero for none.
type digest [16]byte

func digestOf(v []byte) digest {
	if v == nil {
		return digest{}
	}
	s := sha256.Sum256(v)
	return digest(s[:16])
}

// compareState compares a state store with the fold of its changelog up to the local position. The
// changelog may have been compacted: a key with later records may lack the one that counts. And the
// content may be ahead of the position, when a process was killed within a large commit.
func (in *inspector) compareState(ctx context.Context, l *local, cl rawlog.Input, where string, current bool) error {
	store := in.storeOf(cl.Topic)
	b, ok := in.bounds[cl.Partition]
	switch {
	case !ok:
		in.out.State.Differ(where, "its changelog %s is gone", cl.Partition)
		return nil
	case cl.Next > b.End:
		in.out.State.Differ(rawlog.At(cl.Partition, b.End), "the changelog ends at %d, the local store in %s has read to %d: committed data was lost", b.End, l.dir, cl.Next)
		return nil
	}
	fold := map[string]*version{}
	err := in.c.Read(ctx, map[rawlog.Partition]rawlog.Span{cl.Partition: {From: b.Start, To: b.Stable}}, func(r rawlog.Record) error {
		v := fold[string(r.Key)]
		if v == nil {
			v = &version{at: -1}
			fold[string(r.Key)] = v
		}
		if r.Offset < cl.Next {
			v.at, v.value = r.Offset, digestOf(r.Value)
			return nil
		}
		if v.later = append(v.later, digestOf(r.Value)); current {
			in.out.State.Differ(r.Where(), "the changelog has a record for key %s behind the last commit of its task", show(r.Key))
		}
		return nil
	})
	if err != nil {
		return err
	}
	ahead := 0
	err = l.State(store, func(k, value []byte) error {
		in.out.State.Compared++
		v := fold[string(k)]
		delete(fold, string(k))
		switch have := digestOf(value); {
		case v == nil:
			in.out.State.Differ(where, "store %q: key %s is %s, the changelog %s does not have it", store, show(k), show(value), cl.Partition)
		case have == v.value:
		case slices.Contains(v.later, have):
			ahead++
		case v.at < 0 && b.Start+1 < cl.Next && len(v.later) > 0:
			// Compaction has taken the record that counts, a later one is there.
		default:
			in.out.State.Differ(rawlog.At(cl.Partition, v.at), "store %q in %s: key %s is %s, which is not what the changelog says here", store, l.dir, show(k), show(value))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range sortedKeys(fold) {
		if v := fold[k]; v.value != (digest{}) && !slices.Contains(v.later, digest{}) {
			in.out.State.Compared++
			in.out.State.Differ(rawlog.At(cl.Partition, v.at), "store %q in %s: key %s of the changelog is missing", store, l.dir, show([]byte(k)))
		}
	}
	if ahead > 0 {
		in.out.State.Note("%s: %d keys of store %q are ahead of its position: a commit was cut off and is replayed", where, ahead, store)
	}
	return nil
}

// storeOf is the name of the store whose changelog a topic is.
func (in *inspector) storeOf(topic string) string {
	for name, t := range in.topics {
		if t == topic {
			return name
		}
	}
	return topic[len(in.app.Name)+1 : len(topic)-len(changelogSuffix)]
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// show writes bytes so that a line stays a line: text as text, the rest as hexadecimal digits.
func show(b []byte) string {
	const most = 80
	cut := ""
	if len(b) > most {
		b, cut = b[:most], "..."
	}
	if bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' || r == 0xfffd || r == 0x7f }) {
		return fmt.Sprintf("%x%s", b, cut)
	}
	return fmt.Sprintf("%q%s", b, cut)
}
