package embedded

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// MaxPartitions is the most that a topic made here has.
const MaxPartitions = 1000

// Limits of a topic made here.
const (
	maxNameBytes      = 249 // Kafka's own limit
	defaultPartitions = 4
)

// Topic is a topic that is there from the start.
type Topic struct {
	Name       string
	Partitions int32 // 1 to 1000
}

// ParseTopic reads NAME or NAME:PARTITIONS. Without a number it has the given one.
func ParseTopic(s string, partitions int32) (Topic, error) {
	t := Topic{Name: s, Partitions: partitions}
	if name, count, ok := strings.Cut(s, ":"); ok {
		n, err := strconv.ParseInt(count, 10, 32)
		if err != nil {
			return Topic{}, fmt.Errorf("embedded: topic %q: %q is not a number of partitions", s, count)
		}
		t = Topic{Name: name, Partitions: int32(n)}
	}
	return t, t.validate()
}

// validate holds Kafka's rule for names: letters, digits, dot, underscore and hyphen, up to 249 of them.
func (t Topic) validate() error {
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	switch {
	case t.Name == "" || t.Name == "." || t.Name == ".." || len(t.Name) > maxNameBytes || strings.ContainsFunc(t.Name, func(r rune) bool { return !legal(r) }):
		return fmt.Errorf("embedded: %q is not a topic name: want 1 to %d letters, digits, dots, underscores or hyphens", t.Name, maxNameBytes)
	case t.Partitions < 1 || t.Partitions > MaxPartitions:
		return fmt.Errorf("embedded: topic %q: %d partitions, want 1 to %d", t.Name, t.Partitions, MaxPartitions)
	}
	return nil
}

// Config configures a broker.
type Config struct {
	Port   int // on 127.0.0.1; 0: any free one
	Topics []Topic
	// AutoCreate makes a topic when a client that asks for it allows that, with Partitions partitions (default 4).
	AutoCreate bool
	Partitions int32
	// Scratch is a directory for the records, in one of their own that Close removes: the memory would be full after an hour of load.
	// Empty: memory. (kfake can go on with what it left; but a partition whose records were all deleted begins at 0 again.)
	Scratch string
	// MaxMemory is the bound in bytes for what the broker holds, that of the whole process: beyond it records are refused with
	// POLICY_VIOLATION. 0: no bound.
	MaxMemory int64
	// Full, if it is not nil, is called once, before the first record is refused.
	Full func()
}

// Broker is a running broker.
type Broker struct {
	cluster *kfake.Cluster
	unwait  func()
	scratch string
	address string
	close   sync.Once
}

// Start starts a broker. It serves until Close.
func Start(c Config) (*Broker, error) {
	if c.Partitions == 0 {
		c.Partitions = defaultPartitions
	}
	errs := []error{Topic{Name: "default", Partitions: c.Partitions}.validate()}
	opts := []kfake.Opt{
		kfake.ClusterID(clusterID()),
		kfake.Ports(c.Port),
		kfake.DefaultNumPartitions(int(c.Partitions)),
		kfake.ListenFn(listenLoopback),
		kfake.MaxVersions(Versions()),
	}
	if c.AutoCreate {
		opts = append(opts, kfake.AllowAutoTopicCreation())
	}
	for _, t := range c.Topics {
		errs = append(errs, t.validate())
		opts = append(opts, kfake.SeedTopics(t.Partitions, t.Name))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	b := &Broker{}
	if c.Scratch != "" {
		dir, err := os.MkdirTemp(c.Scratch, "streamd-broker-")
		if err != nil {
			return nil, fmt.Errorf("embedded: directory for the records: %w", err)
		}
		b.scratch = dir
		opts = append(opts, kfake.DataDir(dir))
	}
	var err error
	if b.cluster, err = kfake.NewCluster(opts...); err != nil {
		b.Close()
		return nil, fmt.Errorf("embedded: starting on port %d: %w", c.Port, err)
	}
	if b.unwait, err = KeepWaiting(b.cluster, nil); err != nil {
		b.Close()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	if c.MaxMemory > 0 {
		refuseBeyond(b.cluster, c.MaxMemory, c.Full)
	}
	b.address = b.cluster.ListenAddrs()[0]
	return b, nil
}

// Versions are those of a released Kafka, without DescribeTopicPartitions: kfake's answer has no replicas that are eligible as leaders, where Kafka
// has an empty list, and Kafka's own tools (kafka-consumer-groups.sh and kafka-topics.sh of 4.x) die of it. Where a broker does not have the
// request they ask for the metadata.
func Versions() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.DescribeTopicPartitions), -1)
	return v
}

// clusterID differs at each start: a local state that was made against a broker whose data is gone must
// be refused, not be taken for the state of this one.
func clusterID() string { return "embedded-" + rand.Text() }

// listenLoopback refuses to be reached from elsewhere: there is no authentication.
func listenLoopback(network, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return net.Listen(network, net.JoinHostPort("127.0.0.1", port))
}

// Address is where clients connect, host:port.
func (b *Broker) Address() string { return b.address }

// Close ends the broker and forgets its data. It is idempotent.
func (b *Broker) Close() {
	b.close.Do(func() {
		if b.unwait != nil {
			b.unwait()
		}
		if b.cluster != nil {
			b.cluster.Close()
		}
		if b.scratch != "" {
			os.RemoveAll(b.scratch) // what cannot be removed is rubbish in a directory for such
		}
	})
}
