package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// The errors of queries. None of them harms the application: it goes on as if nothing had been asked.
var (
	// ErrNoStore: the topology has no state store of that name.
	ErrNoStore = errors.New("processor: no such state store")
	// ErrNotHere: the partition that holds the key belongs to another instance, or to none. StoreQuery.Owner says to which.
	ErrNotHere = errors.New("processor: this instance does not own the partition")
	// ErrNotReady: the task restores its state, or recovers from a failed commit. Ask again soon.
	ErrNotReady = errors.New("processor: the state is not ready to be read")
	// ErrStale: another instance has gone on with the partition, or it cannot be found out whether one has.
	ErrStale = errors.New("processor: the state may not be the newest")
)

const (
	// defaultStaleness is how old the proof that an answer is the newest may be by default.
	defaultStaleness = time.Second
	// MaxPage is the most entries of one page of a Range.
	MaxPage = 10_000
	// pageBytes is where a page ends, whatever its limit: values may be large.
	pageBytes = 16 << 20
	// A commit of our own that is under way makes Kafka newer than the local store: it is waited for.
	proofAttempts = 40
	proofPause    = 5 * time.Millisecond
)

// Queryable is what can be asked for its state: an *App, or a *Stepper.
type Queryable interface {
	queryable() (*stats, *topology.Topology)
}

func (a *App) queryable() (*stats, *topology.Topology)     { return a.stats, a.topo }
func (s *Stepper) queryable() (*stats, *topology.Topology) { return s.engine.stats, s.engine.topo }

// StoreQuery reads one state store of the tasks that this process owns. It is safe for concurrent use, beside the workers. What it shows is
// committed: never the changes of a transaction that is still open.
//
// # Stale answers
//
// A process that stood still, or was cut off from the network, may have lost its partitions without knowing it, and another
// one may have gone on. So an answer needs a proof that it is the newest: a commit of its own, or else the offsets
// committed in Kafka, whose metadata names the last commit of the task. The proof may be a second old (MaxStaleness).
// Without one the answer is ErrStale. AllowStale gives whatever is there.
type StoreQuery[K, V any] struct {
	stats     *stats
	store     string
	sub       *topology.Subtopology
	keys      serde.Serde[K]
	values    serde.Serde[V]
	staleness time.Duration
	any       bool
	err       error
}

// QueryOption changes how a StoreQuery answers.
type QueryOption func(*queryOptions)

type queryOptions struct {
	staleness time.Duration
	any       bool
}

// MaxStaleness sets how old the proof that an answer is the newest may be; beyond it Kafka is asked. Default 1 s. 0 asks each
// time, a millisecond or so. Negative is taken for 0.
func MaxStaleness(d time.Duration) QueryOption {
	return func(o *queryOptions) { o.staleness = max(d, 0) }
}

// AllowStale answers without a proof. Answer.AsOf says when the state was known to be the newest, and is zero if it never was.
func AllowStale() QueryOption { return func(o *queryOptions) { o.any = true } }

// Query makes a reader of a state store, by its name: that of the aggregate, or that given to topology.KeyValue. Keys and values are
// decoded by the given serdes, which must be those of the store. A store that does not exist is found out by each
// question: ErrNoStore. (Kafka Streams: KafkaStreams.store and IQv2.)
//
// The keys of windows' stores have another form than those of the stream (docs/format.md).
func Query[K, V any](from Queryable, store string, keys serde.Serde[K], values serde.Serde[V], opts ...QueryOption) *StoreQuery[K, V] {
	o := queryOptions{staleness: defaultStaleness}
	for _, x := range opts {
		x(&o)
	}
	s, topo := from.queryable()
	q := &StoreQuery[K, V]{stats: s, store: store, keys: keys, values: values, staleness: o.staleness, any: o.any}
	for _, sub := range topo.Subtopologies() {
		for _, x := range sub.Stores {
			if x.Name == store {
				q.sub = sub
			}
		}
	}
	switch {
	case q.sub == nil:
		q.err = fmt.Errorf("%w: %q", ErrNoStore, store)
	case keys == nil || values == nil:
		q.err = fmt.Errorf("processor: query of store %q: a serde is nil", store)
	}
	return q
}

// Source says where an answer comes from.
type Source struct {
	Partition record.Partition
	// Sequence is the task's commit that the answer is of. It grows by one with each commit of the task, on whatever instance.
	Sequence uint64
	// AsOf is when the answer was last known to be the newest, by this host's clock.
	AsOf time.Time
}

// Answer is the value of a key.
type Answer[V any] struct {
	Value V
	Found bool // false: there is no such key
	Source
}

// Entry is a key of a page.
type Entry[K, V any] struct {
	Key   K
	Value V
}

// Page is a part of a range. All of it is of one commit.
type Page[K, V any] struct {
	Entries []Entry[K, V]
	More    bool // there are more keys behind the last one
	Source
}

// Get returns the value of a key. It looks in the partition to which the key's bytes belong by Kafka's own partitioner, as is right for
// the store of an aggregate. Errors: ErrNotHere, ErrNotReady, ErrStale, ErrNoStore, those of the serdes and of the local store.
func (q *StoreQuery[K, V]) Get(ctx context.Context, key K) (Answer[V], error) {
	k, err := q.encode(key)
	if err != nil {
		return Answer[V]{}, err
	}
	n, err := q.stats.served.tasksOf(q.sub)
	if err != nil {
		return Answer[V]{}, err
	}
	return q.get(ctx, record.PartitionForKey(k, n), k)
}

// GetFrom is Get in a partition of the caller's choice, for stores whose keys do not follow the partitioner.
func (q *StoreQuery[K, V]) GetFrom(ctx context.Context, p record.Partition, key K) (Answer[V], error) {
	k, err := q.encode(key)
	if err != nil {
		return Answer[V]{}, err
	}
	return q.get(ctx, p, k)
}

func (q *StoreQuery[K, V]) get(ctx context.Context, p record.Partition, key []byte) (a Answer[V], err error) {
	var b []byte
	a.Source, err = q.read(ctx, p, func(l *lagging) (at record.LocalPosition, ok bool, err error) {
		b, at, ok, err = l.getAt(q.store, key)
		return at, ok, err
	})
	if err != nil || b == nil {
		return a, err
	}
	if a.Value, err = q.values.Decode(b); err != nil {
		return Answer[V]{}, fmt.Errorf("processor: query of store %q: value: %w", q.store, err)
	}
	a.Found = true
	return a, nil
}

// Range returns the entries of a partition for from <= key < to, in the order of the encoded keys; to nil: no end. At most limit of them, 1 to
// MaxPage, and about 16 MiB. To go on, ask again from the last key: it comes once more, and the next page may be of a later
// commit. Errors: as Get.
func (q *StoreQuery[K, V]) Range(ctx context.Context, p record.Partition, from K, to *K, limit int) (page Page[K, V], err error) {
	low, err := q.encode(from)
	if err != nil {
		return page, err
	}
	var high []byte
	if to != nil {
		if high, err = q.encode(*to); err != nil {
			return page, err
		}
	}
	return q.page(ctx, p, low, high, limit)
}

// All returns the first entries of a partition, as Range does without bounds.
func (q *StoreQuery[K, V]) All(ctx context.Context, p record.Partition, limit int) (Page[K, V], error) {
	if q.err != nil {
		return Page[K, V]{}, q.err
	}
	return q.page(ctx, p, nil, nil, limit)
}

func (q *StoreQuery[K, V]) page(ctx context.Context, p record.Partition, from, to []byte, limit int) (page Page[K, V], err error) {
	if limit < 1 || limit > MaxPage {
		return page, fmt.Errorf("processor: query of store %q: a limit of %d, want 1 to %d", q.store, limit, MaxPage)
	}
	var raw []rawEntry
	page.Source, err = q.read(ctx, p, func(l *lagging) (at record.LocalPosition, ok bool, err error) {
		raw, page.More, at, ok, err = l.pageAt(q.store, from, to, limit)
		return at, ok, err
	})
	if err != nil {
		return Page[K, V]{}, err
	}
	for _, x := range raw {
		var e Entry[K, V]
		if e.Key, err = q.keys.Decode(x.key); err == nil {
			e.Value, err = q.values.Decode(x.value)
		}
		if err != nil {
			return Page[K, V]{}, fmt.Errorf("processor: query of store %q: key %q: %w", q.store, x.key, err)
		}
		page.Entries = append(page.Entries, e)
	}
	return page, nil
}

// Here lists the partitions that this process can answer for now.
func (q *StoreQuery[K, V]) Here() []record.Partition {
	if q.err != nil {
		return nil
	}
	return q.stats.served.here(q.sub)
}

// Partition is the partition that holds a key, and how many there are. Owner says which instance has it. Errors:
// ErrNotReady before the application knows its topics.
func (q *StoreQuery[K, V]) Partition(key K) (p record.Partition, of int32, err error) {
	k, err := q.encode(key)
	if err != nil {
		return 0, 0, err
	}
	if of, err = q.stats.served.tasksOf(q.sub); err != nil {
		return 0, 0, err
	}
	return record.PartitionForKey(k, of), of, nil
}

func (q *StoreQuery[K, V]) encode(key K) ([]byte, error) {
	if q.err != nil {
		return nil, q.err
	}
	k, err := q.keys.Append(nil, key)
	if err == nil && k == nil {
		err = topology.ErrNullKey
	}
	if err != nil {
		return nil, fmt.Errorf("processor: query of store %q: key: %w", q.store, err)
	}
	return k, nil
}

// read reads the local store of a task and proves that it is the newest.
func (q *StoreQuery[K, V]) read(ctx context.Context, p record.Partition, from func(*lagging) (record.LocalPosition, bool, error)) (Source, error) {
	fail := func(kind error, why string) (Source, error) {
		return Source{}, fmt.Errorf("%w: store %q, partition %d%s", kind, q.store, p, why)
	}
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return Source{}, fmt.Errorf("processor: query of store %q: %w", q.store, err)
		}
		t, ok := q.stats.served.task(q.sub, p)
		switch {
		case !ok && q.stats.served.isGiven(q.sub, p):
			return fail(ErrNotReady, ": the task has not begun")
		case !ok:
			return fail(ErrNotHere, "")
		}
		if t.state != TaskRunning && t.state != TaskPaused {
			return fail(ErrNotReady, fmt.Sprintf(": the task is %s", t.state))
		}
		at, found, err := from(t.local)
		if err != nil {
			return Source{}, fmt.Errorf("processor: query of store %q: %w", q.store, err)
		}
		now, ok := q.stats.served.task(q.sub, p)
		if !ok || now.life != t.life || now.state != t.state {
			continue // it began anew meanwhile, and may have been reset: find out what it is now
		}
		if found && !at.Complete {
			return fail(ErrNotReady, ": its restore is not complete")
		}
		asked := t.now()
		if q.any || !t.proven.IsZero() && asked.Sub(t.proven) <= q.staleness {
			return Source{Partition: p, Sequence: at.Sequence, AsOf: t.proven}, nil
		}
		newest, why, err := t.isNewest(ctx, at.CommitPoint)
		if newest {
			q.stats.served.prove(t, asked)
			return Source{Partition: p, Sequence: at.Sequence, AsOf: asked}, nil
		}
		if n >= proofAttempts || err != nil {
			return fail(ErrStale, why)
		}
		if err := t.sleep(ctx, proofPause); err != nil {
			return Source{}, fmt.Errorf("processor: query of store %q: %w", q.store, err)
		}
	}
}
