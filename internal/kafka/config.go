package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
)

// Time limits of connections. They are constants since every larger limit (commit deadline,
// transaction timeout, session timeout) is a setting and bounds them from above.
const (
	dialTimeout    = 3 * time.Second  // TCP, TLS and SASL each
	requestTimeout = 10 * time.Second // from a request to its answer, long polls not counted
	// idleLimit is after how long without use a connection is opened anew before it is used. Brokers
	// and load balancers cut idle connections (connections.max.idle.ms, 10 min; often 4 min), and a
	// request that dies on a cut connection costs a new producer epoch.
	idleLimit = time.Minute
	// deadPeer is after how long without a sign of life from the other machine a connection fails.
	deadPeer = 15 * time.Second
)

// protocolVersion is the newest Kafka version whose request formats sarama may choose. Each
// connection negotiates down from it with ApiVersions.
func protocolVersion() sarama.KafkaVersion { return sarama.V4_1_0_0 }

// Config says how to reach a cluster.
type Config struct {
	// Brokers are host:port addresses to find the cluster by; one that answers is enough.
	Brokers []string
	// ClientID names this client in the brokers' logs and quotas. Default "streamd". Kafka: client.id.
	ClientID string
	// Rack lets Fetch use a replica in the same rack (KIP-392). Kafka: client.rack.
	Rack string
	// TLS, if set, encrypts every connection.
	TLS *TLS
	// SASL, if set, authenticates every connection.
	SASL *SASL
	// Dial, if set, opens the network connections, below TLS. For tests and proxies.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Logger, if set, is told of what heals by itself, at most once a second for each kind.
	Logger *slog.Logger
}

// validate fills in defaults and returns every mistake at once.
func (c *Config) validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("no broker address"))
	}
	for _, a := range c.Brokers {
		if _, _, err := net.SplitHostPort(a); err != nil {
			errs = append(errs, fmt.Errorf("broker address %q is not host:port", a))
		}
	}
	if c.ClientID == "" {
		c.ClientID = "streamd"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.TLS != nil {
		if _, err := c.TLS.load("localhost"); err != nil {
			errs = append(errs, err)
		}
	}
	if c.SASL != nil {
		errs = append(errs, c.SASL.validate())
	}
	return errors.Join(errs...)
}

// saramaConfig builds the settings of one client or connection. Passwords are read from their files
// here, so that a connection that is opened later uses what the files hold then.
func (c *Config) saramaConfig(d dialer) (*sarama.Config, error) {
	s := sarama.NewConfig()
	s.Version = protocolVersion()
	s.ClientID = c.ClientID
	s.RackID = c.Rack
	// A registry of its own: sarama's default one is a global that never forgets a broker.
	s.MetricRegistry = metrics.NewRegistry()
	s.Net.DialTimeout, s.Net.WriteTimeout, s.Net.ReadTimeout = dialTimeout, requestTimeout, requestTimeout
	// TLS lies below sarama, in our dialer: the connection that carries records must be ours.
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, d
	s.Metadata.Full = false
	s.Metadata.AllowAutoTopicCreation = false
	// Our loops retry; sarama's own retries would only hide how long something has been failing.
	s.Metadata.Retry.Max, s.Metadata.Retry.Backoff = 2, 50*time.Millisecond
	if c.SASL != nil {
		if err := c.SASL.apply(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// dialer is what sarama wants to open connections with.
type dialer interface {
	Dial(network, addr string) (net.Conn, error)
}

// open opens a network connection, with TLS if configured. base is what lies below TLS: closing it
// ends the connection at once, while closing a TLS connection may wait for a write.
func (c *Config) open(ctx context.Context, network, addr string) (conn, base net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dial := c.Dial
	if dial == nil {
		d := net.Dialer{Control: controlSocket}
		d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: deadPeer / 3, Interval: deadPeer / 3, Count: 3}
		dial = d.DialContext
	}
	base, err = dial(ctx, network, addr)
	if err != nil {
		return nil, nil, err
	}
	if c.TLS == nil {
		return base, base, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err == nil {
		conn, err = c.TLS.handshake(ctx, base, host)
	}
	if err != nil {
		_ = base.Close()
		return nil, nil, err
	}
	return conn, base, nil
}
