package proof

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/internal/verify/rawstore"
)

const (
	idLogSuffix     = "-ids-changelog"
	changelogSuffix = "-changelog"
)

// settleLimit is how long the open transactions of a running application may hold up the end of an ID log.
const settleLimit = 2 * time.Minute

// App says whose topics and stores are looked at.
type App struct {
	Name string // the application: consumer group and prefix of its topics
	// Dirs are the state directories of processes that have ended.
	Dirs []string
	// Keys are those that the local stores may be encrypted under.
	Keys [][]byte
	// Running says that commits go on. What is compared then is the state as of the committed offsets.
	Running bool
	// Retention is how long a dedup operator remembers its IDs, where it is known: only then can be
	// said that a local store lacks a whole part of them.
	Retention map[string]time.Duration
}

// Task is what the ID log says of one task.
type Task struct {
	Name     string // sub-topology/partition
	IDLog    rawlog.Partition
	Commits  int64         // commit records that are still in the log
	Last     rawlog.Commit // the newest one
	Counters map[string]uint64
	IDs      int64 // entries of all blocks that are still in the log
}

// Tasks is the outcome of reading all tasks of an application.
type Tasks struct {
	State   *Result // C5
	Offsets *Result // C6
	Tasks   []Task
}

// Counter adds a counter over all tasks.
func (t *Tasks) Counter(name string) uint64 {
	var sum uint64
	for _, x := range t.Tasks {
		sum += x.Counters[name]
	}
	return sum
}

// inspector reads the tasks of one application.
type inspector struct {
	c       *rawlog.Cluster
	app     App
	out     *Tasks
	offsets map[rawlog.Partition]rawlog.Offset
	bounds  map[rawlog.Partition]rawlog.Bounds // of the internal topics
	stores  []*rawstore.Store
	local   map[string][]*local // by task
	topics  map[string]string   // changelog topic by name of the store
}

// local is one copy of a task's state on some disk.
type local struct {
	*rawstore.Task
	dir string
	// met is set when the ID log was found to hold the commit that the copy is at.
	met bool
}

// CheckTasks reads the ID logs, the changelogs, the committed offsets and the local stores of an
// application and compares them with each other: C5 and C6. The error is a fault of the reading.
func CheckTasks(ctx context.Context, c *rawlog.Cluster, app App) (_ *Tasks, err error) {
	in := &inspector{c: c, app: app, local: map[string][]*local{}, topics: map[string]string{}, out: &Tasks{
		State:   NewResult("C5", "local store = fold of the committed changelog"),
		Offsets: NewResult("C6", "offsets = commit records = local store"),
	}}
	defer func() {
		for _, s := range in.stores {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := in.openStores(); err != nil {
		return nil, err
	}
	// The offsets first: whatever they say is decided, so that the ID logs hold it once their own
	// markers have followed.
	if in.offsets, err = c.Committed(ctx, app.Name); err != nil {
		return nil, err
	}
	if err := in.findTopics(ctx); err != nil {
		return nil, err
	}
	for _, p := range rawlog.Sorted(in.bounds) {
		if !strings.HasSuffix(p.Topic, idLogSuffix) {
			continue
		}
		if err := in.task(ctx, p); err != nil {
			return nil, err
		}
	}
	in.strays()
	if len(in.out.Tasks) == 0 {
		in.out.State.Skipped, in.out.Offsets.Skipped = "no task of the application has state", "no task of the application has state"
	} else if len(app.Dirs) == 0 && in.out.State.Skipped == "" {
		in.out.State.Skipped = "no local store was given, or a process runs on it"
	}
	return in.out, nil
}

func (in *inspector) openStores() error {
	for _, dir := range in.app.Dirs {
		s, err := rawstore.Open(dir, in.app.Keys...)
		if err != nil {
			return err
		}
		in.stores = append(in.stores, s)
		if s.App != in.app.Name {
			in.out.State.Differ(dir, "the state directory belongs to application %q", s.App)
			continue
		}
		for _, t := range s.Tasks() {
			in.local[t.Name] = append(in.local[t.Name], &local{Task: t, dir: dir})
		}
	}
	return nil
}

// findTopics lists the application's changelogs and waits until what the offsets prove can be read.
func (in *inspector) findTopics(ctx context.Context) error {
	topics, err := in.c.Topics(ctx, in.app.Name+"-")
	if err != nil {
		return err
	}
	topics = slices.DeleteFunc(topics, func(t string) bool { return !strings.HasSuffix(t, changelogSuffix) })
	first, err := in.c.Bounds(ctx, topics...)
	if err != nil {
		return err
	}
	in.bounds = first
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for {
		behind := ""
		for _, p := range rawlog.Sorted(first) {
			if in.bounds[p].Stable < first[p].End {
				behind = fmt.Sprintf("%s: a transaction is open at %d since before %d", p, in.bounds[p].Stable, first[p].End)
			}
		}
		if behind == "" {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%w: %s", err, behind)
		}
		if in.bounds, err = in.c.Bounds(ctx, topics...); err != nil {
			return err
		}
	}
}

// key names the IDs of one generation of one operator.
type key struct {
	operator   string
	generation uint64
}

// sum is a fingerprint of a set of IDs that does not depend on their order: the sums of their words.
// Entries are SHA-256, so that two different sets do not have the same sums by chance.
type sum struct {
	count  uint64
	words  [3]uint64
	newest time.Time
}

func (s *sum) add(entry []byte) {
	s.count++
	for i := 0; i < len(entry); i += 8 {
		s.words[i/8] += binary.BigEndian.Uint64(entry[i:])
	}
}

func (s *sum) equal(o *sum) bool { return s.count == o.count && s.words == o.words }

// task reads one partition of an ID log.
func (in *inspector) task(ctx context.Context, p rawlog.Partition) error {
	sub := strings.TrimSuffix(strings.TrimPrefix(p.Topic, in.app.Name+"-"), idLogSuffix)
	name := sub + "/" + strconv.Itoa(int(p.Number))
	b := in.bounds[p]
	r := &taskReader{
		in: in, task: Task{Name: name, IDLog: p, Counters: map[string]uint64{}}, whole: b.Start == 0,
		sums: map[key]*sum{}, group: in.proved(name),
	}
	if err := in.c.Read(ctx, map[rawlog.Partition]rawlog.Span{p: {From: b.Start, To: b.Stable}}, r.add); err != nil {
		return err
	}
	if r.pending > 0 {
		in.out.Offsets.Differ(rawlog.At(p, r.pendingAt), "the ID log ends with %d blocks that no commit record follows", r.pending)
	}
	if r.task.Commits == 0 {
		return nil // strays has a look at its local stores
	}
	in.out.Tasks = append(in.out.Tasks, r.task)
	in.compareOffsets(r)
	for _, l := range in.local[name] {
		if err := in.compareLocal(ctx, r, l); err != nil {
			return err
		}
	}
	return nil
}

// proved are the offsets of the group that a commit record of the task must explain: its input
// partitions are known from the commit records, so that all with the task's number are kept.
func (in *inspector) proved(name string) map[rawlog.Partition]rawlog.Offset {
	_, number, _ := strings.Cut(name, "/")
	out := map[rawlog.Partition]rawlog.Offset{}
	for p, o := range in.offsets {
		if strconv.Itoa(int(p.Number)) == number {
			out[p] = o
		}
	}
	return out
}

// taskReader follows the ID log of a task.
type taskReader struct {
	in        *inspector
	task      Task
	whole     bool // the log still has its first record
	sums      map[key]*sum
	pending   int // blocks since the last commit record
	pendingAt int64
	lastAt    int64 // offset of the last commit record
	group     map[rawlog.Partition]rawlog.Offset
	// explained are the inputs whose committed offset was found in the commit record that its metadata name.
	explained map[rawlog.Partition]bool
}

func (r *taskReader) add(x rawlog.Record) error {
	block, commit, err := rawlog.DecodeIDLog(x.Key, x.Value)
	if err != nil {
		r.in.out.Offsets.Differ(x.Where(), "%v", err)
		return nil
	}
	if block != nil {
		if r.pending++; r.pending == 1 {
			r.pendingAt = x.Offset
		}
		k := key{block.Operator, block.Generation}
		s := r.sums[k]
		if s == nil {
			s = &sum{}
			r.sums[k] = s
		}
		s.newest = block.Time
		for e := block.Entries; len(e) > 0; e = e[block.EntryBytes:] {
			s.add(e[:block.EntryBytes])
			r.task.IDs++
		}
		return nil
	}
	r.commit(x, *commit)
	return nil
}

func (r *taskReader) commit(x rawlog.Record, c rawlog.Commit) {
	r.pending = 0
	last := r.task.Last
	r.in.out.Offsets.Compared++
	switch {
	case r.task.Commits == 0:
		if r.whole && c.Sequence != 1 {
			r.in.out.Offsets.Differ(x.Where(), "the first commit record has sequence %d, want 1", c.Sequence)
		}
	case c.Incarnation != last.Incarnation:
		if c.Sequence != 1 {
			r.in.out.Offsets.Differ(x.Where(), "a new incarnation %x begins with sequence %d, want 1", c.Incarnation, c.Sequence)
		}
		clear(r.sums) // it makes all IDs before it void
		clear(r.task.Counters)
	case c.Sequence != last.Sequence+1:
		r.in.out.Offsets.Differ(x.Where(), "commit record %d of incarnation %x after %d", c.Sequence, c.Incarnation, last.Sequence)
	default:
		r.compareInputs(x, c, last)
	}
	if c.Time.Before(last.Time) && c.Incarnation == last.Incarnation {
		r.in.out.Offsets.Differ(x.Where(), "stream time went back from %v to %v", last.Time, c.Time)
	}
	maps.Copy(r.task.Counters, c.Counters)
	for _, s := range c.Stores {
		r.in.topics[s.Name] = r.in.app.Name + "-" + s.Name + changelogSuffix
	}
	r.task.Commits++
	r.task.Last, r.lastAt = c, x.Offset
	r.explain(c)
	for _, l := range r.in.local[r.task.Name] {
		if c.Same(l.Sequence, l.Incarnation) {
			l.met = true
			r.in.compareCommit(r, l, x)
		}
	}
}

// compareInputs: positions only go forward.
func (r *taskReader) compareInputs(x rawlog.Record, c, last rawlog.Commit) {
	for _, old := range last.Inputs {
		i := slices.IndexFunc(c.Inputs, func(n rawlog.Input) bool { return n.Partition == old.Partition })
		switch {
		case i < 0:
			r.in.out.Offsets.Differ(x.Where(), "commit record %d lacks input %s", c.Sequence, old.Partition)
		case c.Inputs[i].Next < old.Next:
			r.in.out.Offsets.Differ(x.Where(), "input %s went back from %d to %d", old.Partition, old.Next, c.Inputs[i].Next)
		}
	}
}

// explain compares the group's offsets with the commit record that their metadata name.
func (r *taskReader) explain(c rawlog.Commit) {
	for _, input := range c.Inputs {
		o, ok := r.group[input.Partition]
		if !ok {
			continue
		}
		m, ours, err := rawlog.DecodeMetadata(o.Metadata)
		if err != nil || !ours || !c.Same(m.Sequence, m.Incarnation) {
			continue
		}
		if r.explained == nil {
			r.explained = map[rawlog.Partition]bool{}
		}
		r.explained[input.Partition] = true
		r.in.out.Offsets.Compared++
		if o.Next != input.Next {
			r.in.out.Offsets.Differ(rawlog.At(input.Partition, o.Next), "group %s has committed %d with the metadata of commit %d, whose commit record says %d",
				r.in.app.Name, o.Next, c.Sequence, input.Next)
		}
	}
}

// compareOffsets looks at what explain did not find.
func (in *inspector) compareOffsets(r *taskReader) {
	last := r.task.Last
	for _, input := range last.Inputs {
		o, ok := in.offsets[input.Partition]
		where := rawlog.At(input.Partition, input.Next)
		switch {
		case !ok:
			if input.Next > 0 {
				in.out.Offsets.Differ(where, "group %s has no committed offset, commit record %d says %d", in.app.Name, last.Sequence, input.Next)
			}
			continue
		case !r.explained[input.Partition]:
			// An input without new records is not committed again: its offset is right all the same.
			m, ours, err := rawlog.DecodeMetadata(o.Metadata)
			switch {
			case err != nil:
				in.out.Offsets.Differ(rawlog.At(input.Partition, o.Next), "%v", err)
			case !ours:
				in.out.Offsets.Differ(rawlog.At(input.Partition, o.Next), "the offset was committed by another program (metadata %q), commit record %d says %d", o.Metadata, last.Sequence, input.Next)
			case r.whole || m.Sequence > last.Sequence || m.Incarnation != last.Incarnation:
				in.out.Offsets.Differ(rawlog.At(input.Partition, o.Next), "the offset names commit %d of incarnation %x, which is not in the ID log (last: %d of %x)",
					m.Sequence, m.Incarnation, last.Sequence, last.Incarnation)
			}
		}
		if !in.app.Running && o.Next != input.Next {
			in.out.Offsets.Differ(rawlog.At(input.Partition, o.Next), "group %s has committed %d, the last commit record %d says %d", in.app.Name, o.Next, last.Sequence, input.Next)
		}
	}
}

// strays are local tasks that no ID log knows. One that has never committed is none: a task that is
// restored from nothing has a position, too.
func (in *inspector) strays() {
	known := map[string]bool{}
	for _, t := range in.out.Tasks {
		known[t.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(in.local)) {
		for _, l := range in.local[name] {
			if !known[name] && l.Sequence > 0 {
				in.out.State.Differ("task "+name+" in "+l.dir, "the local store is at commit %d, its ID log has no commit record", l.Sequence)
			}
		}
	}
}
