package topology

import (
	"fmt"
	"strconv"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// The headers that streamd itself writes.
const (
	// DefaultIDHeader carries a record's ID in output topics.
	DefaultIDHeader = "record-id"
	// internalIDHeader carries it through a repartition topic: another one, so that a user's own
	// record-id comes out as it went in.
	internalIDHeader = "streamd-id"
	// internalKeyHeader carries the key through a topic that is partitioned by ID.
	internalKeyHeader = "streamd-key"
)

// From reads a topic. Options: Name, OnError, the event time (Timestamp or TimestampHeader, OutOfOrderness, WithIdleness), the
// source of the records' IDs (ID, IDHeader, IDPosition) and OnMissingID.
//
// By default a record's ID is its header "record-id", which streamd and others write; a record
// without one is identified by its position (see IDPosition). With ID or IDHeader there is no
// fallback: a record without an ID is handled by OnMissingID.
func From[K, V any](b *Builder, topic string, keys serde.Serde[K], values serde.Serde[V], opts ...SourceOption) *Stream[K, V] {
	n := &node{kind: kindSource, opts: collect(opts)}
	if n.name = n.opts.name; n.name == "" {
		n.name = topic
	}
	n.source = &Source{Name: n.name, Topic: topic}
	b.add(n)
	b.require(keys != nil && values != nil, n, "serde", "a serde is nil")
	b.allow(n, "OnMissingID", n.opts.onMissing, Stop, DeadLetter, Forward)
	if what := topicNameProblem(topic); what != "" {
		b.problem(n, "topic", fmt.Sprintf("the name of topic %q %s", topic, what))
	}
	find := idFunc[K, V](b, n)
	b.timeOptions(n, n.source, n.opts)
	at, early := timestampOf(b, n, keys, values)
	n.source.Timestamp = early
	n.instantiate = func(c *instance, n *node) any {
		s := &sourceStep[K, V]{c: c, op: c.operator(n), keys: keys, values: values, at: at, forward: downstream[K, V](c, n, 0)}
		s.decode, s.identify = s.op.during(StageDecode), s.op.during(StageID)
		s.onMissing = n.opts.onMissing
		switch {
		case find != nil:
			s.find = find
		case n.opts.idHeader != nil:
			s.header = *n.opts.idHeader
		case n.opts.idPosition:
			s.position = newPositions(c, n)
		default:
			s.header, s.position = DefaultIDHeader, newPositions(c, n)
		}
		return s.handle
	}
	return &Stream[K, V]{b: b, from: n, keys: keys, values: values, unchanged: true}
}

// sourceStep is the entry of a chain: bytes become a record with an identity.
type sourceStep[K, V any] struct {
	c                    *instance
	op, decode, identify *operator
	keys                 serde.Serde[K]
	values               serde.Serde[V]
	at                   func(record.Record[K, V]) (time.Time, error) // nil: the record's own time
	forward              step[K, V]

	// The sources of the ID, asked in this order.
	find      func(record.Record[K, V]) record.ID
	header    string
	position  *positions
	onMissing Action

	r record.Record[K, V]
}

func (s *sourceStep[K, V]) handle(in *broker.Record) (err error) {
	defer s.c.rescue(&err)
	*s.op.in++
	s.c.in = in
	s.r = record.Record[K, V]{Timestamp: in.Timestamp, Headers: in.Headers}
	s.c.user = s.decode
	if s.r.Key, err = s.keys.Decode(in.Key); err != nil {
		return s.decodeError("key", err)
	}
	if s.r.Value, err = s.values.Decode(in.Value); err != nil {
		return s.decodeError("value", err)
	}
	if s.at != nil {
		if s.r.Timestamp, err = s.at(s.r); err != nil {
			return s.decodeError("timestamp", err)
		}
	}
	s.c.user = nil
	if err := s.setIdentity(in); err != nil {
		return err
	}
	*s.op.out++
	return s.forward(&s.r)
}

func (s *sourceStep[K, V]) decodeError(what string, err error) error {
	s.c.user = nil
	return s.decode.fail(fmt.Errorf("%s: %w", what, err))
}

// setIdentity finds the record's ID.
func (s *sourceStep[K, V]) setIdentity(in *broker.Record) error {
	var id record.ID
	switch {
	case s.find != nil:
		s.c.user = s.identify
		id = s.find(s.r)
		s.c.user = nil
	case s.header != "":
		if v, ok := in.Headers.Get(s.header); ok {
			id = aliasID(v)
		} else if s.position != nil {
			id = s.position.id(in.Offset)
		}
	default:
		id = s.position.id(in.Offset)
	}
	if err := id.Check(); err != nil {
		if s.onMissing != Forward {
			return s.identify.failAs(s.onMissing.policy(PolicyStop), err)
		}
		return nil // the zero identity: no ID
	}
	s.r.Identity = record.RootIdentity(id)
	return nil
}

// idFunc returns the function of an ID option, nil if there is none.
func idFunc[K, V any](b *Builder, n *node) func(record.Record[K, V]) record.ID {
	if n.opts.idHeader != nil {
		b.require(*n.opts.idHeader != "", n, "option", "IDHeader is empty")
	}
	if n.opts.id == nil {
		return nil
	}
	fn, ok := n.opts.id.(func(record.Record[K, V]) record.ID)
	if !ok || fn == nil {
		b.problem(n, "option", fmt.Sprintf("ID's function is a %T, the records are %T", n.opts.id, record.Record[K, V]{}))
	}
	return fn
}

// finder is how an operator finds a record's ID: by a function, by a header, or as the record's own.
type finder[K, V any] struct {
	fn     func(record.Record[K, V]) record.ID
	header string
}

// in is the finder in one task. The ID is valid until the next one is looked for.
func (f finder[K, V]) in(c *instance, op *operator) func(*record.Record[K, V]) record.ID {
	switch {
	case f.fn != nil:
		user := op.during(StageID)
		return func(r *record.Record[K, V]) record.ID {
			c.user = user
			id := f.fn(*r)
			c.user = nil
			return id
		}
	case f.header != "":
		return func(r *record.Record[K, V]) record.ID {
			v, _ := r.Headers.Get(f.header)
			return aliasID(v)
		}
	}
	return func(r *record.Record[K, V]) record.ID {
		c.scratch = r.Identity.AppendID(c.scratch[:0])
		return aliasID(c.scratch)
	}
}

// allow notes a problem if an action is none of the allowed ones.
func (b *Builder) allow(n *node, option string, a Action, allowed ...Action) {
	if a == ActionDefault {
		return
	}
	for _, x := range allowed {
		if a == x {
			return
		}
	}
	b.problem(n, "option", fmt.Sprintf("%s(%s) is not possible", option, a))
}

// positions makes position IDs of one source in one task: record.PositionID, of which all but the
// offset stays the same.
type positions struct {
	c         *instance
	cluster   string
	topicID   string
	partition record.Partition
	prefix    []byte // nil: not made yet
}

func newPositions(c *instance, n *node) *positions {
	if c.env == nil {
		c.refuse(n, "needs positions as IDs, and the runtime is no topology.Environment")
		return nil
	}
	p := &positions{c: c, cluster: c.env.ClusterID(), topicID: c.env.TopicID(n.source.Topic)}
	if p.cluster == "" || p.topicID == "" {
		c.refuse(n, fmt.Sprintf("needs positions as IDs, and the runtime knows no ID of the cluster (%q) or of topic %q (%q)", p.cluster, n.source.Topic, p.topicID))
	}
	return p
}

// id is the ID of the record in hand.
func (p *positions) id(o record.Offset) record.ID {
	if at := p.c.rt.Position().Partition; p.prefix == nil || at != p.partition {
		p.partition = at
		p.prefix = []byte(record.CompositeID(p.cluster, p.topicID, strconv.Itoa(int(at))))
	}
	const most = 1 + 20 // length and digits of an offset
	n := len(p.prefix) + most
	if cap(p.c.ids)-len(p.c.ids) < n {
		// What was handed out stays valid: the records that hold it keep the old room alive.
		p.c.ids = make([]byte, 0, max(n, idsChunk))
	}
	from := len(p.c.ids)
	b := append(p.c.ids, p.prefix...)
	length := len(b)
	b = strconv.AppendInt(append(b, 0), int64(o), 10)
	b[length] = byte(len(b) - length - 1) // a one-byte uvarint, as CompositeID writes it
	p.c.ids = b
	return aliasID(b[from:len(b):len(b)])
}

// internalSource reads a repartition topic: the ID that the other side resolved is the root here.
func internalSource[K, V any](b *Builder, name, topic string, keys serde.Serde[K], values serde.Serde[V], keyInHeader bool, o options) *node {
	n := &node{kind: kindSource, name: name, source: &Source{Name: name, Topic: topic, Internal: true, IDHeader: internalIDHeader}}
	n.opts.outOfOrderness, n.opts.idleness = o.outOfOrderness, o.idleness
	b.add(n)
	b.timeOptions(n, n.source, n.opts)
	n.instantiate = func(c *instance, n *node) any {
		op := c.operator(n)
		decode := op.during(StageDecode)
		forward := downstream[K, V](c, n, 0)
		r := new(record.Record[K, V])
		return func(in *broker.Record) (err error) {
			defer c.rescue(&err)
			*op.in++
			c.in = in
			*r = record.Record[K, V]{Timestamp: in.Timestamp, Headers: in.Headers}
			key := in.Key
			if keyInHeader {
				var ok bool
				if key, ok = in.Headers.Get(internalKeyHeader); ok && key == nil {
					key = []byte{} // a null key has no header
				}
			}
			c.user = decode
			if r.Key, err = keys.Decode(key); err == nil {
				r.Value, err = values.Decode(in.Value)
			}
			c.user = nil
			if err != nil {
				return decode.fail(err)
			}
			if v, ok := in.Headers.Get(internalIDHeader); ok {
				r.Identity = record.RootIdentity(aliasID(v))
				r.Headers = c.withoutHeader(r.Headers, internalIDHeader)
			}
			if keyInHeader { // after the ID: then each is the last one, which costs nothing to take off
				r.Headers = c.withoutHeader(r.Headers, internalKeyHeader)
			}
			*op.out++
			return forward(r)
		}
	}
	return n
}
