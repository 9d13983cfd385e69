package processor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// Option configures an App. The last one of a kind wins.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// KafkaConfig says how to reach and to authenticate to the cluster.
type KafkaConfig struct {
	ClientID string      // client.id, default "streamd"
	Rack     string      // client.rack, for fetching from the nearest replica; default none
	TLS      *TLSConfig  // nil: plain text
	SASL     *SASLConfig // nil: none
	// Dial opens the network connections, below TLS: for a proxy, a tunnel, or a test that loses
	// answers. It must end with its context. Default: TCP with keep-alive.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// TLSConfig names the files of a TLS client. They are read for each connection, so that renewed
// certificates are used without a restart.
type TLSConfig struct {
	CAFile            string // PEM; empty: the system's roots. Equals ssl.truststore.location.
	CertFile, KeyFile string // PEM of the client's certificate; empty: none. Equals ssl.keystore.*.
	ServerName        string // default: the host that is dialled
	// InsecureSkipVerify accepts any certificate. For tests.
	InsecureSkipVerify bool
}

// SASLConfig holds credentials. Files and the token function are asked again for each connection.
type SASLConfig struct {
	Mechanism    string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER
	User         string
	Password     string
	PasswordFile string // instead of Password
	TokenFile    string // for OAUTHBEARER
	// Token returns a bearer token, instead of TokenFile.
	Token      func(context.Context) (string, error)
	Extensions map[string]string // sent with a bearer token (KIP-342)
}

type config struct {
	taps       *tapPoint // of the App
	brokers    []string
	kafka      KafkaConfig
	stateDir   string
	stateKey   txlog.Key
	oldKey     txlog.Key
	instance   string
	workers    int
	packing    int // tasks that a worker gets before the next one gets any; 0: dealt evenly
	guarantee  topology.Level
	interval   time.Duration
	floor      time.Duration
	maxRecords int
	maxBytes   int
	txnTimeout time.Duration
	policy     topology.Policy
	deadLetter string
	power      bool
	dropped    []string // see WithDroppedState
	lag        int      // see lagBytes
	minFree    uint64
	startup    time.Duration
	shutdown   time.Duration
	address    string
	logger     *slog.Logger
	registerer prometheus.Registerer
	traces     func(*TransactionTrace)

	// cluster replaces the connection to brokers, for tests of the package.
	cluster broker.Cluster
}

// defaultPacking: one worker does more than 200,000 records a second, while a second one doubles the
// number of transactions at low rates.
const defaultPacking = 4

// defaultStateDir is one of the application's own, where streamd run would put it, too: two applications
// that are started in one place must not meet in one directory.
func defaultStateDir(app string) string { return filepath.Join(".streamd", app) }

func defaults(app string) config {
	return config{
		kafka:      KafkaConfig{ClientID: "streamd"},
		stateDir:   defaultStateDir(app),
		workers:    runtime.GOMAXPROCS(0),
		packing:    defaultPacking,
		guarantee:  topology.ExactlyOnce,
		interval:   100 * time.Millisecond,
		floor:      10 * time.Millisecond,
		maxRecords: 50_000,
		maxBytes:   4 << 20,
		txnTimeout: 10 * time.Second,
		lag:        lagBytes,
		policy:     topology.PolicyStop,
		startup:    60 * time.Second,
		shutdown:   60 * time.Second,
		logger:     slog.New(slog.DiscardHandler),
	}
}

// WithBrokers sets the bootstrap addresses, host:port. Required. Equals bootstrap.servers.
func WithBrokers(addresses ...string) Option {
	return optionFunc(func(c *config) { c.brokers = addresses })
}

// WithKafka sets TLS, SASL, client ID and rack. Default: plain text, no authentication.
func WithKafka(k KafkaConfig) Option {
	return optionFunc(func(c *config) {
		if k.ClientID == "" {
			k.ClientID = "streamd"
		}
		c.kafka = k
	})
}

// WithStateDir sets the directory of the local transaction log and of the instance ID. It belongs to
// one process at a time and is locked. Default ".streamd" and in it the application's name. Equals state.dir.
func WithStateDir(dir string) Option { return optionFunc(func(c *config) { c.stateDir = dir }) }

// WithStateKey encrypts what the state directory holds of records, with AES: 16, 24 or 32 bytes, nil for not at all, the
// default. A directory is under one key from its first start on, and another one is refused (txlog.ErrKey); one that is still under
// old, which may be nil, is brought under key. A key that is lost costs a full restore from the changelogs: remove the directory.
// Both are copied.
func WithStateKey(key, old []byte) Option {
	key, old = bytes.Clone(key), bytes.Clone(old)
	return optionFunc(func(c *config) { c.stateKey, c.oldKey = key, old })
}

// WithInstanceID sets the name of this process in the consumer group and in the transactional IDs.
// Two live processes must not share one. Default: made once and kept in the state directory. Equals
// group.instance.id.
func WithInstanceID(id string) Option { return optionFunc(func(c *config) { c.instance = id }) }

// WithWorkers sets how many goroutines step tasks, each with a transactional producer of its own: an
// aborted transaction touches the tasks of one worker. Tasks are dealt to them evenly. Range 1 to 256.
// Default: GOMAXPROCS, and a worker gets four tasks before the next one gets any, since each worker
// that has work costs the brokers its own transactions (docs/adr/0007). Equals num.stream.threads.
func WithWorkers(n int) Option {
	return optionFunc(func(c *config) { c.workers, c.packing = n, 0 })
}

// WithGuarantee sets the processing guarantee, one of topology.ProcessingLevels. It is that of the outputs: state and IDs are
// committed with the positions in one Kafka transaction under each of them.
//
//   - topology.ExactlyOnce (default): so are the outputs.
//   - topology.AtLeastOnce: outputs to topics are sent and acknowledged before that transaction. Their readers wait for no
//     transaction; after a crash between the two they get the records again, with the same IDs.
//   - topology.AtMostOnce: the positions are committed in a transaction of their own first. What was under way at a crash between
//     the two is lost, its state and its IDs included, and nothing is repeated. User code may still run twice for a record.
//
// topology.Guarantee sets the level of one topic, topology.Topology.CheckGuarantee says what is refused. Equals
// processing.guarantee.
func WithGuarantee(l topology.Level) Option { return optionFunc(func(c *config) { c.guarantee = l }) }

// WithCommitInterval sets the longest time that a transaction stays open; it is closed earlier when
// the input stalls, so that latency is low at low rates. Default 100 ms, range 10 ms to half the
// transaction timeout. Equals commit.interval.ms.
func WithCommitInterval(d time.Duration) Option {
	return optionFunc(func(c *config) { c.interval = d })
}

// WithTransactionLimits bounds one transaction: input records (default 50,000), bytes of input and
// output together (default 4 MiB), and the time after which the broker aborts it (default 10 s, range
// 1 s to the broker's transaction.max.timeout.ms). A zero leaves the default.
func WithTransactionLimits(records, bytes int, timeout time.Duration) Option {
	return optionFunc(func(c *config) {
		if records != 0 {
			c.maxRecords = records
		}
		if bytes != 0 {
			c.maxBytes = bytes
		}
		if timeout != 0 {
			c.txnTimeout = timeout
		}
	})
}

// WithErrorPolicy sets what happens to a record that an operator cannot handle, unless the operator
// says otherwise. Default PolicyStop. deadLetterTopic is needed where PolicyDeadLetter is used: the
// record goes there with its original bytes, in the same transaction. Equals
// errors.dead.letter.queue.topic.name (KIP-1034).
func WithErrorPolicy(p topology.Policy, deadLetterTopic string) Option {
	return optionFunc(func(c *config) { c.policy, c.deadLetter = p, deadLetterTopic })
}

// WithDurability sets whether the local log survives a loss of power (an fsync each time it is written) or only of
// the process. Default false: after a loss of power the state is restored from the changelog.
func WithDurability(power bool) Option { return optionFunc(func(c *config) { c.power = power }) }

// WithMinFreeDisk sets the free bytes of the state directory's file system below which tasks pause
// instead of writing. Default: 256 MiB or four memtables, whichever is more.
func WithMinFreeDisk(bytes uint64) Option { return optionFunc(func(c *config) { c.minFree = bytes }) }

// WithStartupTimeout sets how long Run waits for a broker to answer before it gives up with an error.
// Once connected it waits without limit. Default 60 s.
func WithStartupTimeout(d time.Duration) Option { return optionFunc(func(c *config) { c.startup = d }) }

// WithShutdownTimeout sets how long Run waits, once its context has ended, for the last commit: if no broker
// answers it would not end. Run then returns ErrStopTimeout, and nothing is lost. Half of it may pass before that until calls of
// effects that are under way have ended. Default 60 s.
func WithShutdownTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) { c.shutdown = d })
}

// WithAddress sets the address under which this process can be asked, host:port. It travels with the group membership,
// so that each instance can say where the owner of a key is: see StoreQuery.Owner. Default none. Equals application.server.
func WithAddress(hostPort string) Option { return optionFunc(func(c *config) { c.address = hostPort }) }

// WithLogger sets the logger. Default: nothing is logged.
func WithLogger(l *slog.Logger) Option { return optionFunc(func(c *config) { c.logger = l }) }

// WithRegisterer registers the metrics, labelled with the application's name. Default: none.
func WithRegisterer(r prometheus.Registerer) Option {
	return optionFunc(func(c *config) { c.registerer = r })
}

// validate returns every mistake at once.
func (c *config) validate(t *topology.Topology) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("processor: "+format, args...)) }
	if len(c.brokers) == 0 && c.cluster == nil {
		bad("no brokers: use WithBrokers")
	}
	if c.stateDir == "" {
		bad("the state directory is empty: use WithStateDir")
	}
	for _, k := range []txlog.Key{c.stateKey, c.oldKey} {
		if err := k.Check(); len(k) > 0 && err != nil {
			bad("key of the state directory: %w", err)
		}
	}
	if len(c.oldKey) > 0 && len(c.stateKey) == 0 {
		bad("an old key of the state directory without a key: use WithStateKey")
	}
	if c.workers < 1 || c.workers > 256 {
		bad("%d workers, want 1 to 256", c.workers)
	}
	if err := t.CheckGuarantee(c.guarantee); err != nil {
		bad("%w", err)
	}
	if c.txnTimeout < time.Second {
		bad("transaction timeout %v is below 1s", c.txnTimeout)
	}
	if c.interval < c.floor || c.interval > c.txnTimeout/2 {
		bad("commit interval %v, want %v to half the transaction timeout (%v)", c.interval, c.floor, c.txnTimeout/2)
	}
	if c.maxRecords < 1 || c.maxBytes < 1<<10 {
		bad("transaction limits of %d records and %d bytes, want at least 1 and 1024", c.maxRecords, c.maxBytes)
	}
	if c.policy == topology.PolicyDefault {
		c.policy = topology.PolicyStop
	}
	if c.deadLetter == "" {
		if c.policy == topology.PolicyDeadLetter {
			bad("the error policy is dead_letter, but there is no dead letter topic: use WithErrorPolicy")
		}
		for _, s := range t.Subtopologies() {
			for _, o := range s.Operators {
				if o.Policy == topology.PolicyDeadLetter {
					bad("operator %q sends to a dead letter topic, but there is none: use WithErrorPolicy", o.Name)
				}
			}
		}
	}
	for _, s := range t.Subtopologies() {
		for _, src := range s.Sources {
			if c.deadLetter != "" && t.SourceTopic(src) == c.deadLetter {
				bad("the dead letter topic %q is read by source %q: each dead letter would come back as a record", c.deadLetter, src.Name)
			}
		}
	}
	return errors.Join(errs...)
}
