package ids

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
)

// ExportConfig says what is exported.
type ExportConfig struct {
	Pipeline *pipeline.Pipeline
	Step     string // empty: the only dedup step
	Progress func(written uint64)
}

// Export writes the hashes of the IDs that a step remembers, as CSV: a line for each with the number of its task. What is
// committed while it reads may be missing.
func Export(ctx context.Context, cfg ExportConfig, to io.Writer) (written uint64, err error) {
	topo, err := cfg.Pipeline.Topology()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	c, err := daemon.OpenCluster(ctx, cfg.Pipeline.Kafka)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }() // it was only read
	s, err := find(ctx, c, topo, cfg.Step)
	if err != nil {
		return 0, err
	}
	w, err := survey(ctx, c, topo.Name(), s)
	if err != nil {
		return 0, err
	}
	out := bufio.NewWriterSize(to, 1<<16)
	fmt.Fprintf(out, "%s,%s%d\n", exportHash, exportPartition, s.Topic.Partitions)
	for i := range s.Topic.Partitions {
		log := s.logOf(record.Partition(i), w)
		// Twice: only at its end the log says what of it counts.
		var last record.CommitPoint
		if err := follow(ctx, c, log, func(b record.Batch) error { last = b.Position.CommitPoint; return nil }); err != nil {
			return written, err
		}
		oldest := last.StreamTime.Add(-s.spec.Config.Retention)
		err := follow(ctx, c, log, func(b record.Batch) error {
			if b.Position.Incarnation != last.Incarnation {
				return nil // void: the task was reset since
			}
			for _, x := range b.Blocks {
				if x.Operator != s.spec.Name || x.StreamTime.Before(oldest) {
					continue
				}
				if err := write(out, x, i); err != nil {
					return err
				}
				written += uint64(len(x.Entries) / x.EntryBytes)
			}
			if cfg.Progress != nil {
				cfg.Progress(written)
			}
			return nil
		})
		if err != nil {
			return written, err
		}
	}
	return written, out.Flush()
}

// write writes the IDs of a block. Hashes of payloads are left out: an import has none.
func write(out *bufio.Writer, b record.OperatorBlock, task int32) error {
	var line [2*record.HashBytes + 16]byte
	for e := b.Entries; len(e) > 0; e = e[b.EntryBytes:] {
		l := append(hex.AppendEncode(line[:0], e[:record.HashBytes]), ',')
		l = append(strconv.AppendInt(l, int64(task), 10), '\n')
		if _, err := out.Write(l); err != nil {
			return fmt.Errorf("write the export: %w", err)
		}
	}
	return nil
}

// follow reads an ID log to its end, as a restore does, and hands over its steps.
func follow(ctx context.Context, c broker.Cluster, log changelog.Log, fn func(record.Batch) error) error {
	f, err := changelog.NewFollower([]changelog.Log{log}, record.LocalPosition{})
	if err != nil {
		return err
	}
	r := c.NewReader(broker.ReaderConfig{})
	defer r.Close()
	r.Seek(log.TopicPartition, log.Start, 1)
	for done := false; !done; {
		if done = f.Done(); !done {
			for _, b := range r.Poll(ctx, pollWait) {
				if b.Err == nil {
					b.Err = f.Add(b.TopicPartition, b.Records, b.Next)
				}
				if b.Err != nil {
					return fmt.Errorf("read %s: %w", log.TopicPartition, b.Err)
				}
			}
		}
		for step, ok := f.Take(); ok; step, ok = f.Take() {
			if err := fn(step); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
