package kafkaenv

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// readyTimeout bounds a start: a broker needs 3-6 s on two busy cores.
	readyTimeout = 90 * time.Second
	// stopTimeout bounds a clean stop, after which the broker is killed.
	stopTimeout = 30 * time.Second
	// attempts at a start: another process can take a free port before the broker does.
	attempts = 3
)

// Cluster is a running Kafka. Its methods are not safe for concurrent use.
type Cluster struct {
	config  config
	install install
	dir     string
	ports   []ports
	tls     *certificates
	brokers []*server
}

// server is one broker.
type server struct {
	dir   string
	cmd   *exec.Cmd
	done  chan struct{} // closed when its process is gone
	ended bool          // by this package: it is not expected to answer
}

// errPortTaken: the broker could not listen.
var errPortTaken = errors.New("kafkaenv: a port was taken by somebody else")

// Start starts a cluster and waits until it answers. It fails the test if it cannot, kills the
// brokers when the test ends, and prints the ends of their logs if it failed.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c, err := New(t.Context(), t.TempDir(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if t.Failed() {
			t.Log(c.Logs())
		}
	})
	return c
}

// New starts a cluster with its data in dir and waits until it answers. Whoever calls it closes it.
func New(ctx context.Context, dir string, opts ...Option) (*Cluster, error) {
	found, err := find()
	if err != nil {
		return nil, err
	}
	cfg := config{brokers: 1, properties: map[string]string{}}
	for _, o := range opts {
		o(&cfg)
	}
	for attempt := 1; ; attempt++ {
		c := &Cluster{config: cfg, install: found, dir: filepath.Join(dir, fmt.Sprintf("kafka-%d", attempt))}
		err := c.start(ctx)
		if err == nil {
			return c, nil
		}
		c.Close()
		if !errors.Is(err, errPortTaken) || attempt == attempts {
			return nil, fmt.Errorf("%w\n%s", err, c.Logs())
		}
	}
}

func (c *Cluster) start(ctx context.Context) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	if c.config.secure {
		var err error
		if c.tls, err = makeCertificates(c.dir); err != nil {
			return err
		}
	}
	free, err := freePorts(3 * c.config.brokers)
	if err != nil {
		return err
	}
	for i := range c.config.brokers {
		c.ports = append(c.ports, ports{free[3*i], free[3*i+1], free[3*i+2]})
	}
	for i := range c.config.brokers {
		s := &server{dir: filepath.Join(c.dir, fmt.Sprintf("broker-%d", i))}
		c.brokers = append(c.brokers, s)
		if err := c.format(ctx, i, s); err != nil {
			return err
		}
	}
	for _, s := range c.brokers {
		if err := s.start(c.install); err != nil {
			return err
		}
	}
	return c.awaitReady(ctx)
}

// format writes a broker's properties and makes its data folder.
func (c *Cluster) format(ctx context.Context, id int, s *server) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	if err := writeProperties(s.properties(), c.config.serverProperties(id, c.ports, s.dir, c.tls)); err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	cmd := c.install.class("kafka.tools.StorageTool", c.config.formatArguments(s.properties())...)
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kafkaenv: formatting broker %d: %w\n%s", id, err, out)
	}
	return nil
}

func (s *server) properties() string { return filepath.Join(s.dir, "server.properties") }
func (s *server) log() string        { return filepath.Join(s.dir, "server.log") }

// start runs the broker; its output is appended to the log of its earlier lives.
func (s *server) start(in install) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	defer log.Close() // the child has its own descriptor
	cmd := in.class("kafka.Kafka", s.properties())
	cmd.Stdout, cmd.Stderr = log, log
	endWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	s.cmd, s.done, s.ended = cmd, make(chan struct{}), false
	go func(done chan<- struct{}) {
		_ = cmd.Wait() // its state says how it ended
		close(done)
	}(s.done)
	return nil
}

func (s *server) running() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// end signals the broker and waits until its process is gone.
func (s *server) end(sig syscall.Signal) {
	s.ended = true
	if !s.running() {
		return
	}
	// A stopped process must go on to handle anything but SIGKILL.
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.done:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// Addresses returns the plain listeners, one "127.0.0.1:port" a broker.
func (c *Cluster) Addresses() []string {
	all := make([]string, len(c.ports))
	for i, p := range c.ports {
		all[i] = local(p.plain)
	}
	return all
}

// SecureAddresses returns the SASL_SSL listeners, and AuthorityFile the PEM file with the
// certificate that signed theirs. Both are empty without the option [Secure].
func (c *Cluster) SecureAddresses() []string {
	if !c.config.secure {
		return nil
	}
	all := make([]string, len(c.ports))
	for i, p := range c.ports {
		all[i] = local(p.secure)
	}
	return all
}

// AuthorityFile returns the PEM file to trust for the secure listeners.
func (c *Cluster) AuthorityFile() string {
	if c.tls == nil {
		return ""
	}
	return c.tls.authority
}

// TLS returns a client's configuration for the secure listeners, nil without them.
func (c *Cluster) TLS() *tls.Config {
	if c.tls == nil {
		return nil
	}
	return &tls.Config{RootCAs: c.tls.pool, MinVersion: tls.VersionTLS12}
}

// PID returns the process ID of a broker, 0 if it does not run.
func (c *Cluster) PID(broker int) int {
	if s := c.brokers[broker]; s.running() {
		return s.cmd.Process.Pid
	}
	return 0
}

// Kill ends a broker with SIGKILL and waits until its process is gone.
func (c *Cluster) Kill(broker int) { c.brokers[broker].end(syscall.SIGKILL) }

// Stop ends a broker with SIGTERM: it hands its leaderships over first.
func (c *Cluster) Stop(broker int) { c.brokers[broker].end(syscall.SIGTERM) }

// Pause freezes a broker (SIGSTOP): it keeps its connections and answers nothing until Resume.
func (c *Cluster) Pause(broker int) error {
	return c.brokers[broker].cmd.Process.Signal(syscall.SIGSTOP)
}

// Resume ends Pause.
func (c *Cluster) Resume(broker int) error {
	return c.brokers[broker].cmd.Process.Signal(syscall.SIGCONT)
}

// Restart starts a broker that has ended, on its old port and data, and waits until the whole
// cluster answers.
func (c *Cluster) Restart(ctx context.Context, broker int) error {
	s := c.brokers[broker]
	if s.running() {
		return fmt.Errorf("kafkaenv: broker %d still runs", broker)
	}
	if err := s.start(c.install); err != nil {
		return err
	}
	if err := c.answers(ctx, broker); err != nil {
		return err
	}
	return c.awaitReady(ctx)
}

// answers waits until the broker itself does. If it was away so briefly that the others have not noticed, they name it, and
// what is in sync with it, as if it were there.
func (c *Cluster) answers(ctx context.Context, broker int) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addresses()[broker]), kgo.RetryTimeout(time.Second))
	if err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	defer client.Close()
	for {
		_, err := client.SeedBrokers()[0].Request(ctx, kmsg.NewPtrMetadataRequest())
		if err == nil {
			return nil
		}
		if !c.brokers[broker].running() {
			return c.brokers[broker].diagnose(broker)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kafkaenv: broker %d does not answer: %w", broker, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Close kills the brokers. It may be called more than once.
func (c *Cluster) Close() {
	for _, s := range c.brokers {
		s.end(syscall.SIGKILL)
	}
}

// Logs returns the end of every broker's output.
func (c *Cluster) Logs() string {
	const tail = 4000
	var b bytes.Buffer
	for i, s := range c.brokers {
		data, err := os.ReadFile(s.log())
		if err != nil {
			continue // it never started
		}
		fmt.Fprintf(&b, "--- broker %d, the end of %s:\n%s\n", i, s.log(), data[max(0, len(data)-tail):])
	}
	return b.String()
}

// awaitReady waits until every running broker is known to the cluster and the coordinators of
// groups and transactions answer: their topics are made at the first question.
func (c *Cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addresses()...), kgo.RetryTimeout(time.Second), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	defer client.Close()
	var last error
	for {
		want := 0
		for i, s := range c.brokers {
			switch {
			case s.running():
				want++
			case !s.ended:
				return s.diagnose(i)
			}
		}
		if last = c.ask(ctx, client, want); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kafkaenv: not ready after %v: %w", readyTimeout, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// diagnose tells why a broker ended.
func (s *server) diagnose(id int) error {
	log, err := os.ReadFile(s.log())
	if err == nil && bytes.Contains(log, []byte("already in use")) {
		return errPortTaken
	}
	return fmt.Errorf("kafkaenv: broker %d ended by itself", id)
}

// ask returns nil if the cluster has that many brokers and coordinators of both kinds.
func (c *Cluster) ask(ctx context.Context, client *kgo.Client, brokers int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = []kmsg.MetadataRequestTopic{}
	m, err := meta.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if len(m.Brokers) < brokers {
		return fmt.Errorf("%d of %d brokers are there", len(m.Brokers), brokers)
	}
	for _, kind := range []Kind{Group, Transaction} {
		if _, err := coordinator(ctx, client, kind, "kafkaenv"); err != nil {
			return err
		}
	}
	return nil
}

// Kind tells the two kinds of coordinators apart.
type Kind int8

// The kinds, as the protocol numbers them.
const (
	Group Kind = iota
	Transaction
)

// String returns the kind's name.
func (k Kind) String() string { return [...]string{"group", "transaction"}[k] }

// Coordinator returns the broker that coordinates a group or a transactional ID. It asks until there is one.
func (c *Cluster) Coordinator(ctx context.Context, kind Kind, key string) (broker int, err error) {
	err = c.retry(ctx, func(ctx context.Context, client *kgo.Client) (err error) {
		broker, err = coordinator(ctx, client, kind, key)
		return err
	})
	return broker, err
}

// Leader returns the broker that leads a partition. It asks until there is one.
func (c *Cluster) Leader(ctx context.Context, topic string, partition int32) (broker int, err error) {
	err = c.retry(ctx, func(ctx context.Context, client *kgo.Client) error {
		meta := kmsg.NewPtrMetadataRequest()
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &topic
		meta.Topics = append(meta.Topics, t)
		m, err := meta.RequestWith(ctx, client)
		if err != nil {
			return fmt.Errorf("leader of %s/%d: %w", topic, partition, err)
		}
		for _, p := range m.Topics[0].Partitions {
			if broker = int(p.Leader); p.Partition == partition && p.Leader >= 0 {
				return nil
			}
		}
		return fmt.Errorf("%s/%d has no leader", topic, partition)
	})
	return broker, err
}

// InSync waits until every replica of every partition is in sync, so that the next broker may die.
func (c *Cluster) InSync(ctx context.Context) error {
	return c.retry(ctx, func(ctx context.Context, client *kgo.Client) error {
		m, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client) // of every topic
		if err != nil {
			return fmt.Errorf("replicas: %w", err)
		}
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if len(p.ISR) < len(p.Replicas) || p.Leader < 0 {
					return fmt.Errorf("%s/%d: %v of %v are in sync", *t.Topic, p.Partition, p.ISR, p.Replicas)
				}
			}
		}
		return nil
	})
}

// retry asks the cluster until it answers, for at most readyTimeout.
func (c *Cluster) retry(ctx context.Context, ask func(context.Context, *kgo.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addresses()...), kgo.RetryTimeout(time.Second), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("kafkaenv: %w", err)
	}
	defer client.Close()
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return ask(ctx, client)
		}()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kafkaenv: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// coordinator asks once.
func coordinator(ctx context.Context, client *kgo.Client, kind Kind, key string) (broker int, err error) {
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorType = int8(kind)
	find.CoordinatorKey, find.CoordinatorKeys = key, []string{key}
	f, err := find.RequestWith(ctx, client)
	if err != nil {
		return 0, fmt.Errorf("%s coordinator of %q: %w", kind, key, err)
	}
	code, node := f.ErrorCode, f.NodeID
	for _, k := range f.Coordinators {
		code, node = k.ErrorCode, k.NodeID
	}
	if code != 0 {
		return 0, fmt.Errorf("%s coordinator of %q: error %d", kind, key, code)
	}
	return int(node), nil
}

// freePorts returns ports of 127.0.0.1 that nobody listens on now.
func freePorts(n int) ([]int, error) {
	all := make([]int, n)
	for i := range all {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("kafkaenv: %w", err)
		}
		defer l.Close() // only at the end: all are different
		all[i] = l.Addr().(*net.TCPAddr).Port
	}
	return all, nil
}
