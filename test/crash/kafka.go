package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// CreateTopics makes topics with so many partitions and the cluster's replication. They keep their records for
// ever, whatever timestamps these have.
func CreateTopics(ctx context.Context, brokers []string, partitions int32, names ...string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	defer client.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range names {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, -1
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = "retention.ms", kmsg.StringPtr("-1")
		t.Configs = append(t.Configs, c)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("crash: making topics: %w", err)
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return fmt.Errorf("crash: making topic %q: %w", t.Topic, err)
		}
	}
	return awaitTopics(ctx, client, names)
}

// awaitTopics waits until the brokers know the topics: what the controller has made reaches them a little later.
func awaitTopics(ctx context.Context, client *kgo.Client, names []string) error {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	return poll(ctx, func() (string, error) {
		for _, b := range client.SeedBrokers() {
			m, err := req.RequestWith(ctx, b)
			if err != nil {
				return err.Error(), nil
			}
			for _, t := range m.Topics {
				if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
					return fmt.Sprintf("topic %q: %v", *t.Topic, err), nil
				}
			}
		}
		return "", nil
	})
}

// ListTopics returns the names of all topics, sorted, but for those that begin with an underscore.
func ListTopics(ctx context.Context, brokers []string) ([]string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, fmt.Errorf("crash: %w", err)
	}
	defer client.Close()
	req := kmsg.NewPtrMetadataRequest() // of all
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("crash: listing topics: %w", err)
	}
	var names []string
	for _, t := range resp.Topics {
		if t.Topic != nil && !strings.HasPrefix(*t.Topic, "_") {
			names = append(names, *t.Topic)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Loader sends a workload.
type Loader struct {
	Brokers []string
	Topic   string
	Rate    int                 // records per second; 0: as fast as it goes
	Key     func(b Bill) string // what decides about the partition
	// Begin, if set, is the timestamp of the first record; the one of each bill that follows is Step later. A
	// repeat has the time of its first sending.
	Begin time.Time
	Step  time.Duration
	// Stop, if set, ends the sending early when it is closed: what must come is then that of what was sent.
	Stop <-chan struct{}
	// Hold, if set, keeps the next records back while it is true: sent is how many were sent.
	Hold func(sent int) bool
}

// errStopped ends a workload early.
var errStopped = errors.New("stopped")

// Run sends all records in order, each acknowledged once, and returns what must come of them.
func (l Loader) Run(ctx context.Context, w Workload) (Expectation, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(l.Brokers...), kgo.DefaultProduceTopic(l.Topic),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), // as Kafka's own: by the key's murmur2
		kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return Expectation{}, fmt.Errorf("crash: %w", err)
	}
	defer client.Close()
	start, sent := time.Now(), 0
	var at times
	want, err := w.Generate(func(b Bill) error {
		if l.Rate > 0 && sent%100 == 0 {
			due := start.Add(time.Duration(sent) * time.Second / time.Duration(l.Rate))
			if err := sleepUntil(ctx, due); err != nil {
				return context.Cause(ctx)
			}
		}
		if err := l.hold(ctx, sent); err != nil {
			return err
		}
		sent++
		value, err := b.Encode()
		if err != nil {
			return err
		}
		r := &kgo.Record{Key: []byte(l.Key(b)), Value: value}
		if !l.Begin.IsZero() {
			r.Timestamp = l.Begin.Add(time.Duration(at.number(b.ID)) * l.Step)
		}
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				cancel(err)
			}
		})
		select {
		case <-l.Stop:
			return errStopped // this record is sent
		default:
			return context.Cause(ctx)
		}
	})
	if err != nil && !errors.Is(err, errStopped) {
		return want, fmt.Errorf("crash: sending: %w", err)
	}
	if err := client.Flush(ctx); err != nil {
		return want, fmt.Errorf("crash: sending: %w", err)
	}
	if err := context.Cause(ctx); err != nil {
		return want, fmt.Errorf("crash: sending: %w", err)
	}
	return want, nil
}

// hold waits as long as Hold says so. It asks now and then only.
func (l Loader) hold(ctx context.Context, sent int) error {
	for l.Hold != nil && sent%100 == 0 && l.Hold(sent) {
		select {
		case <-l.Stop:
			return nil
		default:
		}
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// times numbers the bills in the order of their first sending.
type times map[string]int

func (t *times) number(id string) int {
	if *t == nil {
		*t = times{}
	}
	n, ok := (*t)[id]
	if !ok {
		n = len(*t)
		(*t)[id] = n
	}
	return n
}

func sleepUntil(ctx context.Context, at time.Time) error {
	d := time.Until(at)
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reader follows a topic from its start under read_committed, partition by partition.
type Reader struct {
	client *kgo.Client
	topic  string
	add    func(where string, value []byte)

	mu   sync.Mutex // guards the rest, and calls of add
	next map[int32]int64
	err  error
}

// NewReader makes a reader that gives each value to add, with a name of where it stood.
func NewReader(brokers []string, topic string, partitions int32, add func(where string, value []byte)) (*Reader, error) {
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[p] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Markers too, else the end of a partition that ends in one would never be seen.
		kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		return nil, fmt.Errorf("crash: %w", err)
	}
	return &Reader{client: client, topic: topic, add: add, next: map[int32]int64{}}, nil
}

// Run reads until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := r.client.PollFetches(ctx)
		r.mu.Lock()
		fetches.EachError(func(topic string, p int32, err error) {
			if ctx.Err() == nil && r.err == nil {
				r.err = fmt.Errorf("crash: reading %s/%d: %w", topic, p, err)
			}
		})
		fetches.EachRecord(func(x *kgo.Record) {
			r.next[x.Partition] = x.Offset + 1
			if !x.Attrs.IsControl() {
				r.add(fmt.Sprintf("%s/%d@%d", x.Topic, x.Partition, x.Offset), x.Value)
			}
		})
		r.mu.Unlock()
	}
	r.client.Close()
}

// Start runs the reader beside its caller. stop ends it, and waits until it has ended.
func (r *Reader) Start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// AwaitEnd waits until no transaction is open in the topic and the reader has read all that is in it.
func (r *Reader) AwaitEnd(ctx context.Context) error {
	return poll(ctx, func() (string, error) {
		ends, err := listEnds(ctx, r.client, r.topic, 0)
		if err != nil {
			return err.Error(), nil
		}
		stable, err := listEnds(ctx, r.client, r.topic, 1)
		if err != nil {
			return err.Error(), nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for p, end := range ends {
			switch {
			case stable[p] != end:
				return fmt.Sprintf("%s/%d: a transaction is open at %d, the end is %d", r.topic, p, stable[p], end), r.err
			case r.next[p] < end:
				return fmt.Sprintf("%s/%d: read to %d of %d", r.topic, p, r.next[p], end), r.err
			}
		}
		return "", r.err
	})
}

// AwaitCount waits until seen, which is asked while the reader adds nothing, has reached want.
func (r *Reader) AwaitCount(ctx context.Context, seen func() int64, want int64) error {
	return poll(ctx, func() (string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n := seen(); n < want {
			return fmt.Sprintf("%d of %d records in %s", n, want, r.topic), r.err
		}
		return "", r.err
	})
}

// Locked calls fn while the reader adds nothing.
func (r *Reader) Locked(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
}

// listEnds returns the end of each partition: of all records, or of the stable ones.
func listEnds(ctx context.Context, client *kgo.Client, topic string, isolation int8) (map[int32]int64, error) {
	meta := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = kmsg.StringPtr(topic)
	meta.Topics = append(meta.Topics, mt)
	m, err := meta.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("crash: partitions of %s: %w", topic, err)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for _, p := range m.Topics[0].Partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.Partition, -1
		t.Partitions = append(t.Partitions, rp)
	}
	req.Topics = append(req.Topics, t)
	ends := map[int32]int64{}
	for _, shard := range client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, fmt.Errorf("crash: ends of %s: %w", topic, shard.Err)
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("crash: end of %s/%d: %w", topic, p.Partition, err)
				}
				ends[p.Partition] = p.Offset
			}
		}
	}
	if len(ends) == 0 {
		return nil, fmt.Errorf("crash: %s has no partition", topic)
	}
	return ends, nil
}

// AwaitCommitted waits until the group has committed all of the topic's records. The topic must hold no markers.
func AwaitCommitted(ctx context.Context, brokers []string, group, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	defer client.Close()
	return poll(ctx, func() (string, error) {
		ends, err := listEnds(ctx, client, topic, 0)
		if err != nil {
			return err.Error(), nil
		}
		next, err := committed(ctx, client, group, topic)
		if err != nil {
			return err.Error(), nil
		}
		for p, end := range ends {
			if next[p] < end {
				return fmt.Sprintf("%s/%d: group %s has committed %d of %d", topic, p, group, next[p], end), nil
			}
		}
		return "", nil
	})
}

func committed(ctx context.Context, client *kgo.Client, group, topic string) (map[int32]int64, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = group, true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	next := map[int32]int64{}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, err
				}
				if t.Topic == topic {
					next[p.Partition] = p.Offset
				}
			}
		}
	}
	return next, nil
}

// poll asks until there is nothing to wait for, an error, or the end of ctx, which it reports with the last answer.
func poll(ctx context.Context, ask func() (waitingFor string, err error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		last, err := ask()
		if last == "" || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("crash: %w: %s", ctx.Err(), last)
		case <-tick.C:
		}
	}
}
