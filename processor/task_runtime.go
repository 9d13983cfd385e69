package processor

import (
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// This file is the task's side of topology.Runtime.

// batchOverhead bounds what Kafka adds to a single record in a batch of its own.
const batchOverhead = 128

// Store implements topology.Runtime.
func (t *Task) Store(name string) topology.Store {
	for _, s := range t.stores {
		if s.name == name {
			return s
		}
	}
	invariant.Check(false, "sub-topology %q has no store %q", t.cfg.sub.Name, name)
	return nil
}

// Dedup implements topology.Runtime.
func (t *Task) Dedup(name string) topology.IDLog {
	for _, l := range t.ids {
		if l.name == name {
			return l
		}
	}
	invariant.Check(false, "sub-topology %q has no dedup operator %q", t.cfg.sub.Name, name)
	return nil
}

// Emit implements topology.Runtime.
func (t *Task) Emit(sink int, o topology.SinkRecord) {
	target := &t.cfg.sinks[sink]
	p := o.Partition
	switch {
	case p >= 0:
		p %= record.Partition(target.partitions)
	case o.Key != nil:
		p = record.PartitionForKey(o.Key, target.partitions)
	default:
		p = t.cfg.partition % record.Partition(target.partitions)
	}
	to := &t.out
	if target.ahead {
		to = &t.ahead
	}
	*to = append(*to, broker.Output{})
	out := &(*to)[len(*to)-1]
	out.Topic, out.Partition = target.topic, p
	out.Key, out.Value, out.Headers, out.Timestamp = o.Key, o.Value, o.Headers, o.Timestamp
	if t.traces.active {
		out.Headers = t.withTrace(o.Headers)
	}
	if t.cfg.sub.Sinks[sink].Marks {
		out.Headers = t.withTime(out.Headers, sink)
	}
	size := outputSize(out)
	t.outBytes += size // without the overhead, which a record has only when it is alone
	if size += batchOverhead; size > target.maxBytes && t.tooLarge == nil {
		t.tooLarge = &topology.OperatorError{
			Operator: target.operator, Stage: topology.StageProduce, Policy: t.operatorPolicy(target.operator),
			Err: fmt.Errorf("a record of about %d bytes is larger than max.message.bytes (%d) of topic %q: raise the topic's limit, or send smaller records",
				size, target.maxBytes, target.topic),
		}
	}
}

func (t *Task) operatorPolicy(name string) topology.Policy {
	for _, o := range t.cfg.sub.Operators {
		if o.Name == name {
			return o.Policy
		}
	}
	return topology.PolicyDefault
}

// Alloc implements topology.Runtime.
func (t *Task) Alloc(n int) []byte { return t.arena.alloc(n) }

// Keep implements topology.Runtime.
func (t *Task) Keep(used int) { t.arena.keep(used) }

// StreamTime implements topology.Runtime.
func (t *Task) StreamTime() time.Time { return t.streamTime }

// Position implements topology.Runtime.
func (t *Task) Position() record.Position { return t.current }

// Counter implements topology.Runtime.
func (t *Task) Counter(c topology.CounterID) *uint64 { return t.counters.cell(c) }

// arena hands out memory that lives until the end of the transaction.
type arena struct {
	chunks [][]byte // all chunks; those before at are full
	at     int
}

// Chunks are large against a record and small against a transaction. The first ones are smaller: many tasks have little
// to do, and not one transaction of theirs fills a large one.
const (
	arenaChunk = 256 << 10
	arenaFirst = 16 << 10
)

// alloc returns an empty slice with a capacity of at least n.
func (a *arena) alloc(n int) []byte {
	for {
		if a.at == len(a.chunks) {
			a.chunks = append(a.chunks, make([]byte, 0, max(n, min(arenaChunk, arenaFirst<<(2*min(len(a.chunks), 8))))))
		}
		c := a.chunks[a.at]
		if cap(c)-len(c) >= n {
			return c[len(c):len(c):cap(c)]
		}
		a.at++
	}
}

// keep makes the first used bytes of the last alloc permanent. If the caller's append outgrew it, the
// bytes are elsewhere and nothing is lost by keeping less.
func (a *arena) keep(used int) {
	c := a.chunks[a.at]
	if used <= cap(c)-len(c) {
		a.chunks[a.at] = c[:len(c)+used]
	}
}

// reset makes all memory available again. Oversized chunks are let go.
func (a *arena) reset() {
	kept := a.chunks[:0]
	for _, c := range a.chunks {
		if cap(c) <= arenaChunk && len(kept) < 64 {
			kept = append(kept, c[:0])
		}
	}
	clear(a.chunks[len(kept):])
	a.chunks, a.at = kept, 0
}
