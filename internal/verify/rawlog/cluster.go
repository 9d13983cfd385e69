package rawlog

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/streamd/streamd/internal/broker"
)

// Config says how to reach a cluster.
type Config struct {
	Brokers []string       // host:port; one that answers is enough
	TLS     *tls.Config    // nil: plain text
	SASL    sasl.Mechanism // nil: none
}

// Options are the settings for a client of the same cluster.
func (c Config) Options() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.ClientID("streamd-verify"), kgo.RequestRetries(4), kgo.RetryTimeout(15 * time.Second)}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	if c.SASL != nil {
		opts = append(opts, kgo.SASL(c.SASL))
	}
	return opts
}

// Cluster reads from one cluster. Its methods may be called concurrently.
type Cluster struct {
	client *kgo.Client
	read   atomic.Int64
}

// Open prepares a client. It connects with the first request.
func Open(c Config) (*Cluster, error) {
	client, err := kgo.NewClient(c.Options()...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w: %w", broker.ErrConfig, err)
	}
	return &Cluster{client: client}, nil
}

// Progress is how many offsets were read so far, by all reads together.
func (c *Cluster) Progress() int64 { return c.read.Load() }

// Close ends the connections.
func (c *Cluster) Close() { c.client.Close() }

// Partition names a partition of a topic.
type Partition struct {
	Topic  string
	Number int32
}

// String returns "topic/number".
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Number) }

func (p Partition) compare(q Partition) int {
	return cmp.Or(strings.Compare(p.Topic, q.Topic), cmp.Compare(p.Number, q.Number))
}

// Bounds are the offsets of a partition: where the log starts, behind the last decided record, behind
// the last record of all.
type Bounds struct{ Start, Stable, End int64 }

// Sorted returns the keys of a map by partition, by topic and number.
func Sorted[V any](m map[Partition]V) []Partition {
	keys := make([]Partition, 0, len(m))
	for p := range m {
		keys = append(keys, p)
	}
	slices.SortFunc(keys, Partition.compare)
	return keys
}

// topic is what the metadata say of one.
type topic struct {
	id      [16]byte
	leaders map[int32]int32 // by partition; -1: none
}

func (c *Cluster) metadata(ctx context.Context, names ...string) (map[string]topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, n := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, t)
	}
	if names == nil {
		req.Topics = nil // all
	}
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return nil, fault("metadata", err)
	}
	out := map[string]topic{}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return nil, fault(fmt.Sprintf("topic %q", *t.Topic), err)
		}
		x := topic{id: t.TopicID, leaders: map[int32]int32{}}
		for _, p := range t.Partitions {
			x.leaders[p.Partition] = p.Leader
		}
		out[*t.Topic] = x
	}
	return out, nil
}

// ID returns the ID of the cluster.
func (c *Cluster) ID(ctx context.Context) (string, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return "", fault("cluster", err)
	}
	if resp.ClusterID == nil {
		return "", fmt.Errorf("kafka: the cluster has no ID: %w", broker.ErrUnsupported)
	}
	return *resp.ClusterID, nil
}

// Topics returns the names of all topics that begin with the prefix, sorted.
func (c *Cluster) Topics(ctx context.Context, prefix string) ([]string, error) {
	all, err := c.metadata(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for name := range all {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Bounds returns the offsets of every partition of the topics. The stable ends are asked for first, so
// that a record below one stands in the log whatever happens meanwhile. A topic that is not there is
// broker.ErrUnknownTopic.
func (c *Cluster) Bounds(ctx context.Context, topics ...string) (map[Partition]Bounds, error) {
	if len(topics) == 0 {
		return map[Partition]Bounds{}, nil
	}
	meta, err := c.metadata(ctx, topics...)
	if err != nil {
		return nil, err
	}
	const (
		latest   = -1
		earliest = -2
	)
	stable, err := c.listOffsets(ctx, meta, latest, 1)
	if err != nil {
		return nil, err
	}
	ends, err := c.listOffsets(ctx, meta, latest, 0)
	if err != nil {
		return nil, err
	}
	starts, err := c.listOffsets(ctx, meta, earliest, 0)
	if err != nil {
		return nil, err
	}
	out := map[Partition]Bounds{}
	for p, end := range ends {
		out[p] = Bounds{starts[p], stable[p], end}
	}
	return out, nil
}

func (c *Cluster) listOffsets(ctx context.Context, topics map[string]topic, at int64, isolation int8) (map[Partition]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	for name, t := range topics {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = name
		for p := range t.leaders {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp = p, at
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	out := map[Partition]int64{}
	for _, shard := range c.client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, fault("list offsets", shard.Err)
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				tp := Partition{t.Topic, p.Partition}
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fault("list offsets of "+tp.String(), err)
				}
				out[tp] = p.Offset
			}
		}
	}
	return out, nil
}

// Offset is what a group has committed for a partition.
type Offset struct {
	Next     int64
	Metadata string
}

// Committed returns what the group has committed, decided transactions only: as long as one is open, it
// asks again until ctx ends.
func (c *Cluster) Committed(ctx context.Context, group string) (map[Partition]Offset, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = group, true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	req.Groups = append(req.Groups, g)
	for {
		out, err := c.committed(ctx, req)
		if !errors.Is(err, kerr.UnstableOffsetCommit) {
			return out, err
		}
		if werr := wait(ctx, 50*time.Millisecond); werr != nil {
			return nil, errors.Join(werr, err)
		}
	}
}

func (c *Cluster) committed(ctx context.Context, req *kmsg.OffsetFetchRequest) (map[Partition]Offset, error) {
	what := fmt.Sprintf("offsets of group %q", req.Group)
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return nil, fault(what, err)
	}
	out := map[Partition]Offset{}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); errors.Is(err, kerr.GroupIDNotFound) {
			continue // it has committed nothing yet
		} else if err != nil {
			return nil, fault(what, err)
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fault(what, err)
				}
				if p.Offset < 0 {
					continue
				}
				o := Offset{Next: p.Offset}
				if p.Metadata != nil {
					o.Metadata = *p.Metadata
				}
				out[Partition{t.Topic, p.Partition}] = o
			}
		}
	}
	return out, nil
}

// Member is a member of a consumer group.
type Member struct {
	ID       string
	Instance string // group.instance.id; empty: not a static one
	Host     string
}

// String names the member as a reader has to, who is to stop it or to take it out: "--instance ID on HOST".
func (m Member) String() string {
	host := strings.TrimPrefix(m.Host, "/")
	if m.Instance == "" {
		return "a member without instance ID on " + host
	}
	return "--instance " + m.Instance + " on " + host
}

// Members returns who is in a group. A static member stays there for its session timeout after its process
// has ended. A group that does not exist has none.
func (c *Cluster) Members(ctx context.Context, group string) ([]Member, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	what := fmt.Sprintf("group %q", group)
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return nil, fault(what, err)
	}
	var out []Member
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); errors.Is(err, kerr.GroupIDNotFound) {
			return nil, nil
		} else if err != nil {
			return nil, fault(what, err)
		}
		for _, m := range g.Members {
			x := Member{ID: m.MemberID, Host: m.ClientHost}
			if m.InstanceID != nil {
				x.Instance = *m.InstanceID
			}
			out = append(out, x)
		}
	}
	return out, nil
}

// fault gives an error the kind that tells what to do about it.
func fault(what string, err error) error {
	kind := error(nil)
	var network net.Error
	var code *kerr.Error
	switch {
	case errors.Is(err, context.Canceled):
	case errors.Is(err, kerr.SaslAuthenticationFailed), errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, kerr.IllegalSaslState):
		kind = broker.ErrAuthentication
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		kind = broker.ErrAuthorization
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		kind = broker.ErrUnknownTopic
	case errors.Is(err, kerr.OffsetOutOfRange):
		kind = broker.ErrOffsetOutOfRange
	case errors.As(err, &code):
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded), errors.Is(err, kgo.ErrClientClosed):
		kind = broker.ErrUnreachable
	default:
		kind = broker.ErrUnreachable // what kgo says when it could not get a request to any broker
	}
	if kind == nil {
		return fmt.Errorf("kafka: %s: %w", what, err)
	}
	return fmt.Errorf("kafka: %s: %w: %w", what, kind, err)
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
