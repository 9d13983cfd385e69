package topology

import (
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// DuplicateHeader marks the duplicates that OnDuplicate(Forward) lets through. Its value is when
// the first one was seen, in stream time, RFC 3339.
const DuplicateHeader = "streamd-duplicate"

// What a dedup operator cannot judge. Errors of the stage process that a policy handles.
var (
	// ErrConflict: the ID was seen with another payload. Two records were given one ID, or one was
	// changed.
	ErrConflict = errors.New("same ID as an earlier record, other payload")
	// ErrTooLate: the record is older than the oldest ID remembered, so that nobody can say whether
	// it is new.
	ErrTooLate = errors.New("older than the retention of IDs: cannot tell whether it is a duplicate")
)

// Retention is how long IDs are remembered, in stream time: at least that long, at most 9/8 of it.
// Required; at least 1 s. A duplicate that comes later is not recognised (see OnTooLate). Seeing
// one does not extend it.
func Retention(d time.Duration) DedupSetting {
	return DedupSetting{func(o *options) { o.retention = d }}
}

// ExpectedIDs is how many distinct IDs one task sees within the retention. Default 1,048,576. More
// are no error, they cost memory and time.
func ExpectedIDs(n int) DedupSetting {
	return DedupSetting{func(o *options) { o.expectedIDs = n }}
}

// FalsePositiveRate is the share of new IDs for which memory alone cannot say that they are new, so
// that the disk is asked. Default 0.001; from 1e-9 to 0.5. It changes speed and memory, never the
// answer.
func FalsePositiveRate(p float64) DedupSetting {
	return DedupSetting{func(o *options) { o.falsePositiveRate = p }}
}

// ScopePartition compares IDs within each partition of the input, the default: right if records
// with the same ID have the same key.
func ScopePartition() DedupSetting {
	return DedupSetting{func(o *options) { o.scopeStream = false }}
}

// ScopeStream compares IDs across all partitions: the records go through the topic
// <app>-<name>-repartition, partitioned by ID. Behind it they are not in their key's partition, so
// that Aggregate needs a KeyBy.
func ScopeStream() DedupSetting {
	return DedupSetting{func(o *options) { o.scopeStream = true }}
}

// ComparePayload keeps 8 bytes of a hash of each record's value beside its ID, so that a record
// with a known ID and another value is a conflict (see OnConflict) instead of a duplicate.
func ComparePayload() DedupSetting {
	return DedupSetting{func(o *options) { o.comparePayload = true }}
}

// OnConflict says what becomes of a conflict: Stop, DeadLetter or Drop. Default: an error under the
// operator's policy.
func OnConflict(a Action) DedupSetting {
	return DedupSetting{func(o *options) { o.onConflict = a }}
}

// OnTooLate says what becomes of a record that is too old to be judged: Stop, DeadLetter, Drop or
// Forward. Default: an error under the operator's policy. Drop can lose a record, Forward can count
// one twice.
func OnTooLate(a Action) DedupSetting {
	return DedupSetting{func(o *options) { o.onTooLate = a }}
}

// OnDuplicate says what becomes of a duplicate: Drop (default), or Forward with the header
// "streamd-duplicate", for audits.
func OnDuplicate(a Action) DedupSetting {
	return DedupSetting{func(o *options) { o.onDuplicate = a }}
}

// Dedup passes on the first record of each ID and drops later ones, as long as the ID is
// remembered. Records keep their identity. IDs belong to this operator alone.
//
// Options: Retention (required), the ID (ID or IDHeader; default: the record's own, as From found
// it), ExpectedIDs, FalsePositiveRate, ScopePartition or ScopeStream (with Partitions),
// ComparePayload, OnMissingID, OnConflict, OnTooLate, OnDuplicate, OnError, Always, SameID.
//
// The log of an operator that can find no duplicate, since another one before it has dropped them all, is left out; see
// Topology.Explain and Always.
func Dedup[K, V any](s *Stream[K, V], name string, opts ...DedupOption) *Stream[K, V] {
	return DedupSplit(s, name, opts...).Unique
}

// Deduped are the outputs of a dedup operator. Each record goes to one of them, as it is. What goes to a stream that
// is used is handled: it is neither dropped nor an error, and the option for it must not be given. What is not used is as in
// Dedup.
type Deduped[K, V any] struct {
	// Unique are the first records of their IDs.
	Unique *Stream[K, V]
	// Duplicate are the later ones, with the header "streamd-duplicate". (Without it: OnDuplicate.)
	Duplicate *Stream[K, V]
	// Conflict are records with a known ID and another payload; needs ComparePayload. (Without it: OnConflict.)
	Conflict *Stream[K, V]
	// TooLate are records that are too old to be judged. (Without it: OnTooLate.)
	TooLate *Stream[K, V]
}

// The ports of a dedup operator.
const (
	uniquePort = iota
	duplicatePort
	conflictPort
	tooLatePort
	dedupPorts
)

// DedupSplit is Dedup with the records that are no unique ones as streams, for audits or for another treatment.
func DedupSplit[K, V any](s *Stream[K, V], name string, opts ...DedupOption) Deduped[K, V] {
	b := s.b
	name = b.stateName(kindDedup, name)
	o := collect(opts)
	n := &node{kind: kindDedup, name: name, opts: o, ports: dedupPorts, freePorts: duplicatePort}
	n.dedup = &DedupSpec{Name: name, Config: dedup.Config{
		Retention: o.retention, ExpectedIDs: o.expectedIDs, FalsePositiveRate: o.falsePositiveRate, Payload: o.comparePayload,
	}}
	find := finder[K, V]{fn: idFunc[K, V](b, n)}
	if o.idHeader != nil {
		find.header = *o.idHeader
	}
	if o.scopeStream {
		s = byID(s, name, o, find)
	} else {
		b.require(o.partitions == nil, n, "option", "Partitions has a meaning with ScopeStream only")
	}
	b.add(n, s)
	for _, err := range flatten(n.dedup.Config.Validate()) {
		b.problem(n, "retention", err.Error())
	}
	b.require(s.unchanged || s.values != nil || !o.comparePayload, n, "serde", "has no serde for the values, which ComparePayload hashes: give it with WithValues")
	b.require(o.onConflict == ActionDefault || o.comparePayload, n, "option", "OnConflict has a meaning with ComparePayload only")
	b.allow(n, "OnMissingID", o.onMissing, Stop, DeadLetter, Forward)
	b.allow(n, "OnConflict", o.onConflict, Stop, DeadLetter, Drop)
	b.allow(n, "OnTooLate", o.onTooLate, Stop, DeadLetter, Drop, Forward)
	b.allow(n, "OnDuplicate", o.onDuplicate, Drop, Forward)
	values := s.values
	if s.unchanged {
		values = nil // the source's own bytes are there
	}
	n.instantiate = func(c *instance, n *node) any {
		op := c.operator(n)
		d := &dedupStep[K, V]{
			c: c, op: op, identify: op.during(StageID), encode: op.during(StageEncode),
			log: n.idLog(c), find: find.in(c, op), forward: downstream[K, V](c, n, 0),
			compare: o.comparePayload, values: values, o: o,
		}
		d.count(c, n)
		for port := duplicatePort; port < dedupPorts; port++ {
			if n.uses(port) {
				d.side[port] = downstream[K, V](c, n, port)
			}
		}
		return step[K, V](d.handle)
	}
	n.check = func(note func(rule, what string)) {
		given := [dedupPorts]Action{duplicatePort: o.onDuplicate, conflictPort: o.onConflict, tooLatePort: o.onTooLate}
		for port, action := range given {
			if action != ActionDefault && n.uses(port) {
				note("option", sideNames[port]+" is used: the option that says what becomes of such records has no meaning")
			}
		}
		if n.uses(conflictPort) && !o.comparePayload {
			note("option", "Conflict is used, but without ComparePayload there are none")
		}
	}
	out := func(port int) *Stream[K, V] {
		t := s.after(n)
		t.port = port
		return t
	}
	return Deduped[K, V]{Unique: out(uniquePort), Duplicate: out(duplicatePort), Conflict: out(conflictPort), TooLate: out(tooLatePort)}
}

// idLog is the log of a dedup operator in one task.
func (n *node) idLog(c *instance) IDLog {
	if n.leftOut() {
		return newNoLog(c.rt, n.opts.retention)
	}
	return c.rt.Dedup(n.name)
}

// sideNames are the names of the ports, as a user knows them.
var sideNames = [dedupPorts]string{"Unique", "Duplicate", "Conflict", "TooLate"}

// dedupStep is a Dedup in one task.
type dedupStep[K, V any] struct {
	c                    *instance
	op, identify, encode *operator
	log                  IDLog
	find                 func(*record.Record[K, V]) record.ID
	forward              step[K, V]
	compare              bool
	values               serde.Serde[V] // nil: the source's bytes are the value's
	o                    options
	side                 [dedupPorts]step[K, V] // nil: not used

	checked, committed, open, conflict, tooLate *uint64
	missing                                     [Forward + 1]*uint64             // by action
	bloom                                       [dedup.FalsePositive + 1]*uint64 // by answer; the first is not counted
	out                                         record.Record[K, V]
}

// count fetches the cells of the counters.
func (d *dedupStep[K, V]) count(c *instance, n *node) {
	d.checked = c.counter(CounterChecked, n)
	d.committed, d.open = c.counter(CounterDuplicateCommitted, n), c.counter(CounterDuplicateOpen, n)
	d.conflict, d.tooLate = c.counter(CounterConflict, n), c.counter(CounterTooLate, n)
	stop := c.counter(CounterMissingStop, n)
	d.missing = [Forward + 1]*uint64{ActionDefault: stop, Stop: stop, DeadLetter: c.counter(CounterMissingDeadLetter, n), Forward: c.counter(CounterMissingForward, n)}
	d.bloom = [dedup.FalsePositive + 1]*uint64{
		dedup.NotAsked: new(uint64), dedup.Negative: c.counter(CounterBloomNegative, n),
		dedup.TruePositive: c.counter(CounterBloomTrue, n), dedup.FalsePositive: c.counter(CounterBloomFalse, n),
	}
}

func (d *dedupStep[K, V]) handle(r *record.Record[K, V]) error {
	*d.op.in++
	id := d.find(r)
	if err := id.Check(); err != nil {
		return d.withoutID(r, err)
	}
	payload, err := d.payload(r)
	if err != nil {
		return err
	}
	*d.checked++
	ans, err := d.log.Check(id.Hash(), payload, r.Timestamp)
	if err != nil {
		return d.op.fault("check ID", err)
	}
	*d.bloom[ans.Bloom]++
	switch ans.Verdict {
	case dedup.New:
		*d.op.out++
		return d.forward(r)
	case dedup.Duplicate:
		*d.committed++
		return d.duplicate(r, ans.SeenAt)
	case dedup.DuplicatePending:
		*d.open++
		return d.duplicate(r, ans.SeenAt)
	case dedup.Conflict:
		*d.conflict++
		if side := d.side[conflictPort]; side != nil {
			*d.op.out++
			return side(r)
		}
		if d.o.onConflict == Drop {
			return nil
		}
		return d.op.failAs(d.o.onConflict.policy(d.op.policy), fmt.Errorf("%w (first seen about %s)", ErrConflict, ans.SeenAt.UTC().Format(time.RFC3339)))
	}
	*d.tooLate++
	if side := d.side[tooLatePort]; side != nil {
		*d.op.out++
		return side(r)
	}
	switch d.o.onTooLate {
	case Drop:
		return nil
	case Forward:
		*d.op.out++
		return d.forward(r)
	}
	return d.op.failAs(d.o.onTooLate.policy(d.op.policy), fmt.Errorf("%w (record of %s, stream time %s, retention %s)", ErrTooLate,
		r.Timestamp.UTC().Format(time.RFC3339), d.c.rt.StreamTime().UTC().Format(time.RFC3339), d.o.retention))
}

func (d *dedupStep[K, V]) withoutID(r *record.Record[K, V], why error) error {
	*d.missing[d.o.onMissing]++
	if d.o.onMissing != Forward {
		return d.identify.failAs(d.o.onMissing.policy(PolicyStop), fmt.Errorf("%w (on_missing_id, OnMissingID, says what becomes of such records; stop by default)", why))
	}
	*d.op.out++
	return d.forward(r)
}

func (d *dedupStep[K, V]) duplicate(r *record.Record[K, V], seen time.Time) error {
	to := d.side[duplicatePort]
	if to == nil {
		if d.o.onDuplicate != Forward {
			return nil
		}
		to = d.forward
	}
	d.out = *r
	d.out.Headers = d.c.withHeader(r.Headers, DuplicateHeader, []byte(seen.UTC().Format(time.RFC3339)))
	*d.op.out++
	return to(&d.out)
}

// nullPayload stands for a tombstone, which is another payload than an empty value.
const nullPayload = 0x7f4a7c159e3779b9

// payload hashes the value. XXH3 and not SHA-256: a conflict is a warning about a producer's
// mistake, not a defence.
func (d *dedupStep[K, V]) payload(r *record.Record[K, V]) (uint64, error) {
	if !d.compare {
		return 0, nil
	}
	b := d.c.in.Value
	if d.values != nil {
		d.c.user = d.encode
		var err error
		b, err = d.values.Append(d.c.payload[:0], r.Value)
		d.c.user = nil
		if err != nil {
			return 0, d.encode.fail(fmt.Errorf("value: %w", err))
		}
		if b != nil {
			d.c.payload = b
		}
	}
	if b == nil {
		return nullPayload, nil
	}
	return xxh3.Hash(b), nil
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}
