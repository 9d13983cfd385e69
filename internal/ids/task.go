package ids

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// task is one partition of the ID log: where its task stands, and what an import adds.
type task struct {
	partition record.Partition
	log       changelog.Log
	inputs    []record.InputPosition // as the next commit says
	point     record.CommitPoint     // of the last commit record
	index     *dedup.Index
	pending   int
}

// newest is a dedup.Log that knows of the last generation no more than its number: an import writes new ones, and what it writes
// is not asked for again. A repeat of an ID that stands in a closed generation is therefore imported again, which costs its bytes.
type newest struct{ gens []record.Generation }

func (l newest) Generations() ([]record.Generation, error) { return l.gens, nil }

func (newest) Blocks(uint64, func(record.IDBlock) error) error { return nil }

func (newest) Run(uint64, uint32) ([]byte, error) { return nil, nil }

func (newest) Filter(uint64) ([]byte, error) { return nil, nil }

func (newest) Seal(record.Generation, func(slot uint32) []byte, []byte) error { return nil }

// readTasks reads the ID log to its end, as a restore does, and compares it with the group's offsets.
func readTasks(ctx context.Context, c broker.Cluster, group string, s *step, now time.Time) ([]*task, error) {
	w, err := survey(ctx, c, group, s)
	if err != nil {
		return nil, err
	}
	var tasks []*task
	for i := range s.Topic.Partitions {
		t := &task{partition: record.Partition(i), log: s.logOf(record.Partition(i), w)}
		last, err := t.read(ctx, c, s.spec.Name)
		if err != nil {
			return nil, err
		}
		if err := t.decide(s, w, now); err != nil {
			return nil, err
		}
		log := newest{}
		if last.Number > 0 {
			log.gens = []record.Generation{last}
		}
		// Entries without a hash of the payload: an import knows none, and such an entry conflicts with nothing.
		cfg := s.spec.Config
		cfg.Payload = false
		if t.index, err = dedup.Open(cfg, log); err != nil {
			return nil, fmt.Errorf("task %d: %w", t.partition, err)
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// surveyed is what the brokers say, asked for in the order in which a restore asks.
type surveyed struct {
	committed    map[record.TopicPartition]broker.CommittedOffset
	starts, ends map[record.TopicPartition]record.Offset
}

func survey(ctx context.Context, c broker.Cluster, group string, s *step) (w surveyed, err error) {
	var inputs, all []record.TopicPartition
	for _, in := range s.Inputs {
		for i := range in.Partitions {
			inputs = append(inputs, record.TopicPartition{Topic: in.Name, Partition: record.Partition(i)})
		}
	}
	all = slices.Clone(inputs)
	for i := range s.Topic.Partitions {
		all = append(all, record.TopicPartition{Topic: s.Topic.Name, Partition: record.Partition(i)})
	}
	if w.committed, err = c.CommittedOffsets(ctx, group, inputs); err != nil {
		return w, err
	}
	if w.ends, err = c.HighWatermarks(ctx, all); err != nil {
		return w, err
	}
	w.starts, err = c.StartOffsets(ctx, all)
	return w, err
}

// pollWait bounds one wait for records.
const pollWait = time.Second

// logOf describes a task's ID log.
func (s *step) logOf(n record.Partition, w surveyed) changelog.Log {
	tp := record.TopicPartition{Topic: s.Topic.Name, Partition: n}
	return changelog.Log{TopicPartition: tp, TopicID: s.Topic.ID, Start: w.starts[tp], End: w.ends[tp], Retention: s.Topic.Retention}
}

// read reads the log to its end and returns the operator's newest generation; its number is 0 if there is none.
func (t *task) read(ctx context.Context, c broker.Cluster, operator string) (last record.Generation, err error) {
	err = follow(ctx, c, t.log, func(step record.Batch) error {
		if len(step.Drops) > 0 {
			last = record.Generation{} // the task was reset
		}
		for _, b := range step.Blocks {
			if b.Operator != operator || b.Generation < last.Number {
				continue
			}
			if b.Generation > last.Number {
				last = record.Generation{Number: b.Generation, Sealed: true, EntryBytes: record.HashBytes, Slots: 1, From: b.StreamTime}
			}
			last.To = b.StreamTime
		}
		t.point = step.Position.CommitPoint
		return nil
	})
	return last, err
}

// decide finds where the task goes on, as its start would: the commit record says it, or the group's offsets if somebody has set
// them before the first start, or the start of the input.
func (t *task) decide(s *step, w surveyed, now time.Time) error {
	e := changelog.Evidence{Point: t.point, IDLog: t.log, Now: now}
	for _, in := range s.Inputs {
		if tp := (record.TopicPartition{Topic: in.Name, Partition: t.partition}); int32(t.partition) < in.Partitions {
			e.Group = append(e.Group, changelog.GroupOffset{TopicPartition: tp, CommittedOffset: w.committed[tp]})
		}
	}
	d, err := changelog.Compare(e)
	if err != nil {
		return err
	}
	if d.Verdict == changelog.DataLost {
		return fmt.Errorf("task %d cannot be imported into: %s. Remedy: %s", t.partition, d.Reason, d.Remedy)
	}
	if t.point = d.Point; d.Verdict == changelog.Fresh {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		t.point.Incarnation = binary.BigEndian.Uint64(b[:])
	}
	for _, in := range s.Inputs {
		if int32(t.partition) >= in.Partitions {
			continue
		}
		tp := record.TopicPartition{Topic: in.Name, Partition: t.partition}
		p := record.InputPosition{TopicPartition: tp, TopicID: in.ID, Next: w.starts[tp]}
		for _, known := range t.point.Inputs {
			if known.TopicPartition == tp {
				p.Next = known.Next
				if known.TopicID != "" {
					p.TopicID = known.TopicID
				}
			}
		}
		t.inputs = append(t.inputs, p)
	}
	slices.SortFunc(t.inputs, func(a, b record.InputPosition) int { return strings.Compare(a.Topic, b.Topic) })
	return nil
}

// prepare makes what one transaction adds, and the point that it will stand for.
func (t *task) prepare(operator string, counters []record.Counter, now time.Time) ([]broker.Output, []broker.OffsetCommit, record.CommitPoint) {
	var out []broker.Output
	add := func(key, value []byte) {
		out = append(out, broker.Output{TopicPartition: t.log.TopicPartition, Timestamp: now, Key: key, Value: value})
	}
	at := t.point.StreamTime
	blocks, _ := t.index.Prepare(at)
	for _, b := range blocks {
		add(changelog.EncodeBlock(record.OperatorBlock{Operator: operator, IDBlock: b}))
		if b.StreamTime.After(at) {
			at = b.StreamTime
		}
	}
	p := record.CommitPoint{
		Sequence: t.point.Sequence + 1, Incarnation: t.point.Incarnation, StreamTime: at, Inputs: t.inputs, Counters: counters, Stores: t.point.Stores,
	}
	add(changelog.EncodeCommit(p))
	var offsets []broker.OffsetCommit
	for _, in := range t.inputs {
		m := changelog.Metadata{Sequence: p.Sequence, Incarnation: p.Incarnation, CommitTime: now, TopicID: in.TopicID}
		offsets = append(offsets, broker.OffsetCommit{TopicPartition: in.TopicPartition, Next: in.Next, Metadata: m.String()})
	}
	return out, offsets, p
}

// committed takes over what prepare has made.
func (t *task) committed(p record.CommitPoint) error {
	t.index.Commit()
	t.pending, t.point = 0, p
	if job := t.index.SealJob(); job != nil {
		return t.index.Sealed(job())
	}
	return nil
}
