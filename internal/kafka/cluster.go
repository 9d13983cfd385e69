package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Cluster implements broker.Cluster.
type Cluster struct {
	conf Config

	// client serves metadata only. It is made anew when credentials are refused, so that renewed
	// secrets are read again.
	mu     sync.Mutex // guards the fields below
	client sarama.Client
	conns  map[string]*adminConn // administration, by address
	limits map[string]int        // max.message.bytes of the topics that were described
	id     string
	closed bool

	logged map[request]*sometimes // read only
	wg     sync.WaitGroup         // calls of sarama that outlived their context
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
	c := &Cluster{conf: conf, conns: map[string]*adminConn{}, limits: map[string]int{}, logged: map[request]*sometimes{}}
	for _, r := range []request{
		reqInit, reqFetch, reqMetadata, reqJoin, reqCoordinator, reqListOffsets, reqOffsetFetch, reqDeleteRecords, reqCreateTopic, reqConfigs,
		reqLeave, reqProduce, reqConnect,
	} {
		c.logged[r] = &sometimes{}
	}
	if _, err := c.metadata(ctx); err != nil {
		return nil, err
	}
	if err := c.checkVersions(ctx); err != nil {
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
	client, conns := c.client, c.conns
	c.client, c.conns = nil, nil
	c.mu.Unlock()
	for _, a := range conns {
		<-a.sem
		a.link.drop(false)
	}
	closeClient(client)
	c.wg.Wait()
	return nil
}

func closeClient(client sarama.Client) {
	if client != nil {
		_ = client.Close()
		client.Config().MetricRegistry.UnregisterAll()
	}
}

var errClosed = errors.New("kafka: the cluster is closed")

// metadata returns the metadata client, making it if there is none.
func (c *Cluster) metadata(ctx context.Context) (sarama.Client, error) {
	c.mu.Lock()
	client, closed := c.client, c.closed
	c.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	if client != nil {
		return client, nil
	}
	client, err := await(ctx, c, c.newClient, closeClient)
	if err != nil {
		return nil, c.openError(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.client != nil { // somebody else was faster
		extra := client
		c.wg.Go(func() { closeClient(extra) })
		if c.closed {
			return nil, errClosed
		}
		return c.client, nil
	}
	c.client = client
	return client, nil
}

func (c *Cluster) newClient() (sarama.Client, error) {
	conf, err := c.conf.saramaConfig(plainDialer{&c.conf})
	if err != nil {
		return nil, err
	}
	client, err := sarama.NewClient(c.conf.Brokers, conf)
	if err != nil {
		conf.MetricRegistry.UnregisterAll()
	}
	return client, err
}

// openError makes the error of a client that could not be opened.
func (c *Cluster) openError(err error) error {
	where := c.conf.Brokers[0]
	if n := len(c.conf.Brokers); n > 1 {
		where = fmt.Sprintf("%s and %d more", where, n-1)
	}
	return connectError(where, err)
}

// forget drops a metadata client whose credentials were refused.
func (c *Cluster) forget(client sarama.Client, err error) {
	if kindOf(c.openError(err)) != broker.ErrAuthentication && !errors.Is(err, sarama.ErrClosedClient) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == client && !c.closed {
		c.client = nil
		c.wg.Go(func() { closeClient(client) })
	}
}

// plainDialer opens the connections of sarama's own clients.
type plainDialer struct{ conf *Config }

// Dial implements sarama's dialer.
func (d plainDialer) Dial(network, addr string) (net.Conn, error) {
	top, _, err := d.conf.open(context.Background(), network, addr)
	return top, err
}

// await runs a call of sarama, which knows no context, and returns early when ctx ends. What the
// call returns then goes to discard.
func await[T any](ctx context.Context, c *Cluster, f func() (T, error), discard func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	c.wg.Go(func() {
		v, err := f()
		done <- result{v, err}
	})
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		if discard != nil {
			c.wg.Go(func() {
				if r := <-done; r.err == nil {
					discard(r.v)
				}
			})
		}
		var zero T
		return zero, ctx.Err()
	}
}

// refresh asks for the metadata of topics anew. Errors show when a leader is asked for.
func (c *Cluster) refresh(ctx context.Context, topics []string) {
	client, err := c.metadata(ctx)
	if err != nil {
		return
	}
	_, err = await(ctx, c, func() (struct{}, error) { return struct{}{}, client.RefreshMetadata(topics...) }, nil)
	if err != nil {
		c.forget(client, err)
	}
}

// leader returns the leader of a partition as the metadata has it.
func (c *Cluster) leader(ctx context.Context, tp record.TopicPartition) (id int32, addr string, err error) {
	client, err := c.metadata(ctx)
	if err != nil {
		return 0, "", err
	}
	b, err := await(ctx, c, func() (*sarama.Broker, error) { return client.Leader(tp.Topic, int32(tp.Partition)) }, nil)
	if err != nil {
		c.forget(client, err)
		return 0, "", c.metadataError(tp.String(), err)
	}
	return b.ID(), b.Addr(), nil
}

// metadataError wraps an error of the metadata client.
func (c *Cluster) metadataError(where string, err error) error {
	var code sarama.KError
	if errors.As(err, &code) && code != sarama.ErrSASLAuthenticationFailed {
		return codeError(reqMetadata, where, code)
	}
	var e *broker.Error
	if errors.As(err, &e) {
		return err
	}
	return c.openError(err)
}

// brokerAddr returns the address of a broker by its ID, if the metadata has it.
func (c *Cluster) brokerAddr(id int32) (string, bool) {
	c.mu.Lock()
	client := c.client
	c.mu.Unlock()
	if client == nil {
		return "", false
	}
	for _, b := range client.Brokers() {
		if b.ID() == id {
			return b.Addr(), true
		}
	}
	return "", false
}

// addresses lists the known brokers, and the configured ones if none is known.
func (c *Cluster) addresses(ctx context.Context) ([]string, error) {
	client, err := c.metadata(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, b := range client.Brokers() {
		out = append(out, b.Addr())
	}
	if len(out) == 0 {
		out = c.conf.Brokers
	}
	return out, nil
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
		a.link = link{c: c, find: func(context.Context, bool) (string, error) { return addr, nil }}
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
		a.link.drop(false)
		return err
	}
	return nil
}

// askAny sends a request to the brokers in turn until one answers.
func (c *Cluster) askAny(ctx context.Context, f func(*sarama.Broker) error) error {
	addrs, err := c.addresses(ctx)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err = c.ask(ctx, a, f); err == nil || ctx.Err() != nil || fatal(kindOf(err)) {
			return err
		}
	}
	c.refresh(ctx, nil) // perhaps all of them have moved
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
	err := c.askAny(ctx, func(b *sarama.Broker) error {
		req := sarama.NewMetadataRequest(protocolVersion(), []string{})
		req.Topics = []string{"__cluster_id_probe"} // an empty list would ask for every topic
		resp, err := b.GetMetadata(req)
		if err == nil && resp.ClusterID != nil {
			id = *resp.ClusterID
		}
		return err
	})
	if err == nil && id == "" {
		err = errors.New("the broker names no cluster ID")
	}
	if err != nil {
		return "", wrap(reqMetadata, "cluster ID", err)
	}
	c.mu.Lock()
	c.id = id
	c.mu.Unlock()
	return id, nil
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
		if errors.As(err, &e) && e.Code != 0 {
			if _, react := classify(req, sarama.KError(e.Code)); react != again && react != elsewhere {
				return err
			}
			if errors.Is(e.Kind, broker.ErrUnstableOffsets) {
				return err
			}
		} else if fatal(kindOf(err)) {
			return err
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
