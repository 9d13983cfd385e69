package ids

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/record"
)

// topicSource reads a topic, read_committed, from its start to where it ends now, one partition after the other.
type topicSource struct {
	cluster broker.Cluster
	reader  broker.Reader
	topic   broker.Topic
	header  string // of the ID
	field   string // key, value or header
	reached []record.Offset
	ends    []record.Offset
	at      int // partition in hand
	open    bool
	left    []broker.Record // fetched and not handed over
	behind  record.Offset   // behind all that was fetched
}

func openTopic(ctx context.Context, c broker.Cluster, name string, cfg SourceConfig) (*topicSource, error) {
	s := &topicSource{cluster: c, field: cfg.TopicID}
	if s.field == "" {
		s.field = "key"
	}
	if header, ok := strings.CutPrefix(s.field, "header:"); ok && header != "" {
		s.field, s.header = "header", header
	} else if s.field != "key" && s.field != "value" {
		return nil, daemon.Usagef("--topic-id %q is not one of key, value, header:NAME", cfg.TopicID)
	}
	topics, err := c.Topics(ctx, name)
	if err != nil {
		return nil, err
	}
	t, ok := topics[name]
	if !ok {
		return nil, fmt.Errorf("%w: there is no topic %q", daemon.ErrConfig, name)
	}
	s.topic = t
	var tps []record.TopicPartition
	for i := range t.Partitions {
		tps = append(tps, record.TopicPartition{Topic: name, Partition: record.Partition(i)})
	}
	starts, err := c.StartOffsets(ctx, tps)
	if err != nil {
		return nil, err
	}
	ends, err := c.StableOffsets(ctx, tps)
	if err != nil {
		return nil, err
	}
	for _, tp := range tps {
		s.reached, s.ends = append(s.reached, starts[tp]), append(s.ends, ends[tp])
	}
	s.reader = c.NewReader(broker.ReaderConfig{})
	return s, nil
}

func (s *topicSource) fingerprint() string {
	return fingerprintOf("topic", s.topic.ID, s.topic.Name, s.field, "header "+s.header)
}

func (s *topicSource) resume(_ context.Context, at position) error {
	for i := range s.reached {
		s.reached[i] = max(s.reached[i], record.Offset(at[strconv.Itoa(i)]))
	}
	return nil
}

func (s *topicSource) next(ctx context.Context, take func(*entry) error) error {
	for len(s.left) == 0 {
		for s.at < len(s.ends) && s.reached[s.at] >= s.ends[s.at] {
			s.at, s.open = s.at+1, false
		}
		if s.at == len(s.ends) {
			return io.EOF
		}
		if err := s.fetch(ctx); err != nil {
			return err
		}
	}
	n := min(portion, len(s.left))
	for i := range s.left[:n] {
		r := &s.left[i]
		e := s.entry(r)
		e.where = fmt.Sprintf("%s@%d", s.tp(), r.Offset)
		if err := take(&e); err != nil {
			return err
		}
		s.reached[s.at] = r.Offset + 1
	}
	if s.left = s.left[n:]; len(s.left) == 0 {
		s.reached[s.at] = s.behind
	}
	return nil
}

func (s *topicSource) tp() record.TopicPartition {
	return record.TopicPartition{Topic: s.topic.Name, Partition: record.Partition(s.at)}
}

// fetch waits for the next records of the partition in hand.
func (s *topicSource) fetch(ctx context.Context) error {
	if !s.open {
		for i := range s.at {
			s.reader.Remove(record.TopicPartition{Topic: s.topic.Name, Partition: record.Partition(i)})
		}
		s.reader.Seek(s.tp(), s.reached[s.at], uint64(s.at)+1)
		s.open, s.behind = true, s.reached[s.at]
	}
	for _, b := range s.reader.Poll(ctx, time.Second) {
		if b.Tag != uint64(s.at)+1 {
			continue
		}
		if b.Err != nil {
			return fmt.Errorf("read %s: %w", s.tp(), b.Err)
		}
		for _, r := range b.Records {
			if r.Offset >= s.reached[s.at] && r.Offset < s.ends[s.at] {
				s.left = append(s.left, r)
			}
		}
		s.behind = b.Next
	}
	if len(s.left) == 0 {
		s.reached[s.at] = max(s.reached[s.at], s.behind)
	}
	return ctx.Err()
}

func (s *topicSource) entry(r *broker.Record) entry {
	var id []byte
	switch s.field {
	case "key":
		id = r.Key
	case "value":
		id = r.Value
	default:
		id, _ = r.Headers.Get(s.header)
	}
	e := named(id, r.Key)
	e.partition = int32(s.at)
	return e
}

func (s *topicSource) position() position {
	at := position{}
	for i, n := range s.reached {
		at[strconv.Itoa(i)] = uint64(n)
	}
	return at
}

func (s *topicSource) total() (n uint64) {
	for _, e := range s.ends {
		n += uint64(e)
	}
	return n
}

func (s *topicSource) close() error {
	s.reader.Close()
	return nil
}
