package kafka

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Cluster implements broker.Cluster.
type Cluster struct {
	conf Config

	mu         sync.Mutex            // guards the fields below
	conns      map[string]*adminConn // metadata and administration, by address
	brokers    map[int32]string      // addresses by broker ID, as the last metadata has them
	leaders    map[record.TopicPartition]int32
	ids        map[string]sarama.Uuid // of topics, as the last metadata has them
	controller int32
	id         string
	limits     map[string]int  // max.message.bytes of the topics that were described
	members    map[seat]string // member IDs of our own memberships; empty: it is joining
	closed     bool

	logged map[request]*sometimes // read only
	// tellsProducers says that the brokers answer DescribeProducers. Set by Open.
	tellsProducers bool
}

// adminConn is a shared connection for administrative requests, one at a time.
type adminConn struct {
	sem  chan struct{} // holds a token while nobody uses link
	link link
}

var _ broker.Cluster = (*Cluster)(nil)

// Open connects to a cluster and checks that its brokers speak what is needed. Errors by kind:
// ErrConfig, ErrUnreachable (no broker answered), ErrAuthentication, ErrUnsupported (older than Kafka
// 2.5). It does not wait for a cluster that is down: the caller decides how long to try.
func Open(ctx context.Context, conf Config) (*Cluster, error) {
	if err := conf.validate(); err != nil {
		return nil, &broker.Error{Op: string(reqConnect), Kind: broker.ErrConfig, Cause: err}
	}
	c := &Cluster{
		conf: conf, conns: map[string]*adminConn{}, brokers: map[int32]string{}, leaders: map[record.TopicPartition]int32{},
		ids: map[string]sarama.Uuid{}, controller: -1, limits: map[string]int{}, members: map[seat]string{},
		logged: map[request]*sometimes{},
	}
	for _, r := range []request{
		reqInit, reqFetch, reqMetadata, reqJoin, reqCoordinator, reqListOffsets, reqOffsetFetch, reqDeleteRecords, reqCreateTopic, reqConfigs,
		reqLeave, reqHeartbeat, reqProduce, reqConnect, reqProducers,
	} {
		c.logged[r] = &sometimes{}
	}
	err := c.checkVersions(ctx)
	if err == nil {
		_, _, err = c.describe(ctx, probeTopic)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Close implements broker.Cluster.
func (c *Cluster) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	// A call under way ends first, at the latest with its request's time limit.
	for _, a := range conns {
		<-a.sem
		a.link.drop()
	}
	return nil
}

var errClosed = errors.New("kafka: the cluster is closed")

// probeTopic is asked about where only brokers and cluster ID matter: a request for no topic at all
// would be answered with every topic. It need not exist, and is never created.
const probeTopic = "__streamd_probe"

// describe asks for the metadata of topics and remembers what it says of brokers and leaders. addr is
// the broker that answered.
func (c *Cluster) describe(ctx context.Context, topics ...string) (resp *sarama.MetadataResponse, addr string, err error) {
	err = c.askAny(ctx, func(b *sarama.Broker) (err error) {
		addr = b.Addr()
		resp, err = b.GetMetadata(sarama.NewMetadataRequest(protocolVersion(), topics))
		if err == nil && len(resp.Brokers) == 0 {
			err = errors.New("the broker is starting: it knows no brokers") // KAFKA-7924
		}
		return err
	})
	if err != nil {
		return nil, "", wrap(reqMetadata, strings.Join(topics, ", "), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.brokers)
	for _, b := range resp.Brokers {
		c.brokers[b.ID()] = b.Addr()
	}
	c.controller = resp.ControllerID
	if resp.ClusterID != nil {
		c.id = *resp.ClusterID
	}
	for _, t := range resp.Topics {
		if t.Uuid != (sarama.Uuid{}) {
			c.ids[t.Name] = t.Uuid
		}
		if t.Err == sarama.ErrUnknownTopicOrPartition { // deleted, perhaps
			maps.DeleteFunc(c.leaders, func(tp record.TopicPartition, _ int32) bool { return tp.Topic == t.Name })
		}
		for _, p := range t.Partitions {
			tp := record.TopicPartition{Topic: t.Name, Partition: record.Partition(p.ID)}
			if _, known := c.brokers[p.Leader]; known {
				c.leaders[tp] = p.Leader
			} else {
				delete(c.leaders, tp)
			}
		}
	}
	return resp, addr, nil
}

// refresh asks for the metadata of topics anew. Errors show when a leader is asked for.
func (c *Cluster) refresh(ctx context.Context, topics []string) {
	if _, _, err := c.describe(ctx, topics...); err != nil && ctx.Err() == nil {
		c.heals(reqMetadata, strings.Join(topics, ", "), err)
	}
}

// leader returns the leader of a partition as the metadata has it.
func (c *Cluster) leader(ctx context.Context, tp record.TopicPartition) (id int32, addr string, err error) {
	if id, addr, ok := c.knownLeader(tp); ok {
		return id, addr, nil
	}
	resp, _, err := c.describe(ctx, tp.Topic)
	if err != nil {
		return 0, "", err
	}
	if id, addr, ok := c.knownLeader(tp); ok {
		return id, addr, nil
	}
	// No leader: say whether the topic, the partition or only its leader is missing.
	code := sarama.ErrUnknownTopicOrPartition
	for _, t := range resp.Topics {
		if t.Name != tp.Topic {
			continue
		}
		if t.Err != sarama.ErrNoError {
			code = t.Err
		}
		for _, p := range t.Partitions {
			if p.ID == int32(tp.Partition) {
				code = sarama.ErrLeaderNotAvailable
			}
		}
	}
	where := tp.String()
	if code == sarama.ErrTopicAuthorizationFailed {
		where = tp.Topic
	}
	return 0, "", codeError(reqMetadata, where, code)
}

func (c *Cluster) knownLeader(tp record.TopicPartition) (id int32, addr string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ok = c.leaders[tp]
	if ok {
		addr, ok = c.brokers[id]
	}
	return id, addr, ok
}

// topicID returns a topic's ID as the last metadata has it; zero if it is not known.
func (c *Cluster) topicID(topic string) sarama.Uuid {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[topic]
}

// brokerAddr returns the address of a broker by its ID, if the metadata has it.
func (c *Cluster) brokerAddr(id int32) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr, ok := c.brokers[id]
	return addr, ok
}

// addresses lists the known brokers.
func (c *Cluster) addresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, id := range sortedKeys(c.brokers) {
		out = append(out, c.brokers[id])
	}
	return out
}

// ask sends an administrative request to the broker at addr over a shared connection.
func (c *Cluster) ask(ctx context.Context, addr string, f func(*sarama.Broker) error) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errClosed
	}
	a := c.conns[addr]
	if a == nil {
		a = &adminConn{sem: make(chan struct{}, 1)}
		a.sem <- struct{}{}
		a.link = link{c: c, find: func(context.Context) (string, error) { return addr, nil }}
		c.conns[addr] = a
	}
	c.mu.Unlock()
	select {
	case <-a.sem:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { a.sem <- struct{}{} }()
	k, err := a.link.get(ctx)
	if err != nil {
		return err
	}
	if err := k.call(ctx, f); err != nil {
		// What was asked here may be asked again: it changes nothing, or is the same when done twice.
		a.link.drop()
		return err
	}
	return nil
}

// askAny sends a request to the brokers in turn until one answers: first those that metadata has
// named, then the configured ones.
func (c *Cluster) askAny(ctx context.Context, f func(*sarama.Broker) error) (err error) {
	tried := map[string]bool{}
	for _, a := range append(c.addresses(), c.conf.Brokers...) {
		if tried[a] {
			continue
		}
		tried[a] = true
		if err = c.ask(ctx, a, f); err == nil || ctx.Err() != nil || fatal(kindOf(err)) {
			return err
		}
	}
	return err
}

// coordinator finds the coordinator of a group or of a transactional ID.
func (c *Cluster) coordinator(ctx context.Context, key string, kind sarama.CoordinatorType) (addr string, err error) {
	var code sarama.KError
	err = c.askAny(ctx, func(b *sarama.Broker) error {
		resp, err := b.FindCoordinator(&sarama.FindCoordinatorRequest{Version: 3, CoordinatorKey: key, CoordinatorType: kind})
		if err != nil {
			return err
		}
		if code = resp.Err; code == sarama.ErrNoError {
			addr = resp.Coordinator.Addr()
		}
		return nil
	})
	if err != nil {
		return "", wrap(reqCoordinator, key, err)
	}
	if code != sarama.ErrNoError {
		return "", codeError(reqCoordinator, key, code)
	}
	return addr, nil
}

// ID implements broker.Cluster.
func (c *Cluster) ID(ctx context.Context) (string, error) {
	c.mu.Lock()
	id := c.id
	c.mu.Unlock()
	if id != "" {
		return id, nil
	}
	if _, _, err := c.describe(ctx, probeTopic); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.id == "" {
		return "", wrap(reqMetadata, "cluster ID", errors.New("the broker names no cluster ID"))
	}
	return c.id, nil
}

// wrap gives an error its place, unless it has one.
func wrap(req request, where string, err error) error {
	var e *broker.Error
	if errors.As(err, &e) {
		return err
	}
	kind := broker.ErrUnreachable
	if errors.Is(err, sarama.ErrUnsupportedVersion) {
		kind = broker.ErrUnsupported
	}
	return &broker.Error{Op: string(req), Where: where, Kind: kind, Cause: err}
}

// kindOf returns the kind of an error; one without is ErrUnreachable.
func kindOf(err error) error {
	var e *broker.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return broker.ErrUnreachable
}

// heals logs what is retried, at most once a second for each request.
func (c *Cluster) heals(req request, where string, err error) {
	if s := c.logged[req]; s != nil && s.ok() {
		c.conf.Logger.Warn("kafka: retrying", "request", string(req), "where", where, "err", err)
	}
}

// retrying runs an administrative request again while what it meets heals by itself, for at most limit.
func (c *Cluster) retrying(ctx context.Context, req request, where string, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	for n := 0; ; n++ {
		err := f(ctx)
		if err == nil {
			return nil
		}
		err = wrap(req, where, err)
		if kindOf(err) == broker.ErrUnknownTopic && time.Since(begin) > unknownLimit {
			return err
		}
		var e *broker.Error
		if fatal(kindOf(err)) {
			return err
		}
		if errors.As(err, &e) && e.Code != 0 {
			if _, react := classify(req, sarama.KError(e.Code)); react != again && react != elsewhere {
				return err
			}
			if errors.Is(e.Kind, broker.ErrUnstableOffsets) {
				return err
			}
		}
		if sleep(ctx, backoff(n, 5*time.Millisecond, 500*time.Millisecond)) != nil {
			return err
		}
		c.heals(req, where, err)
	}
}

// adminLimit is how long an administrative request is retried: longer than a broker's fail-over
// takes to show in metadata, shorter than a human's patience.
const adminLimit = 15 * time.Second
