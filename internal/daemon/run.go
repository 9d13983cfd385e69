package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/internal/tracing"
	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/txlog"
)

// Off in place of an address disables it.
const Off = "off"

// ErrInUse: an address, or a consumer group, belongs to another process.
var ErrInUse = errors.New("in use")

// RunConfig says what a process runs.
type RunConfig struct {
	Pipelines []*pipeline.Pipeline
	// DataDir holds a directory for each pipeline, named like it. A pipeline whose file names a state
	// directory keeps that one unless DataDirWins.
	DataDir     string
	DataDirWins bool
	HTTP        string // host:port, or Off
	Secure      HTTPSecurity
	Admin       string // unix:PATH, or Off; empty: unix:DATADIR/admin.sock
	Instance    string // empty: made once and kept
	// DropState are names of operators, stores and sub-topologies whose state may be given up (processor.WithDroppedState).
	DropState []string
	// Startup is how long to wait for a broker at the start, Shutdown how long for the last commit.
	Startup, Shutdown time.Duration
	Version           web.Version
	Log               *slog.Logger
}

// member is one pipeline of the process.
type member struct {
	p   *pipeline.Pipeline
	app *processor.App
	dir string
	web web.Entry
	// traces is nil unless the pipeline is traced.
	traces *tracing.Tracer
	// Of sources outside of Kafka, by name; nil: there are none.
	ingress *metric.Ingress
	watches map[string]*ingress.Watch
}

// traceTimeout is how long the last spans may take to be sent.
const traceTimeout = 5 * time.Second

// Run runs the pipelines until ctx ends, then lets each finish its transaction and returns nil. If one
// fails, the others are stopped in the same way, and all errors come back.
func Run(ctx context.Context, c RunConfig) error {
	if err := c.Secure.validate(); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	process, err := metric.NewProcess(registry, c.Version.Version, c.Version.Revision, func() (uint64, uint64, error) { return diskUsage(c.DataDir) })
	if err != nil {
		return fmt.Errorf("metrics of the process: %w", err)
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	recent := &recentLog{}
	log := slog.New(process.LogHandler(limitRepeats(recent.handler(c.Log.Handler()))))
	saveMemory(log)
	c.Secure.warn(log)
	tracing.LogErrors(log)
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	members, err := build(c, registry, log)
	if err != nil {
		return err
	}
	defer closeTraces(members, log)
	listeners, err := listen(c, log)
	if err != nil {
		return err
	}
	entries := make([]web.Entry, len(members))
	for i, m := range members {
		entries[i] = m.web
	}
	handler, err := web.New(web.Config{Version: c.Version, Pipelines: entries, Gatherer: registry, Logger: log, Link: peerLink(c.Secure.scheme())})
	if err != nil {
		return err
	}

	// The page stays until the last pipeline has stopped, so that a stop can be watched.
	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	serving.Go(func() { handler.Run(serveCtx) })
	for _, l := range listeners {
		h := c.Secure.guard().Protect(handler, log)
		if l.Addr().Network() == "unix" {
			h = adminOnly(handler, members, recent)
		}
		serving.Go(func() {
			if err := web.Serve(serveCtx, l, h, log); err != nil {
				log.Error("HTTP ended; the pipelines go on", "err", err)
			}
		})
	}
	defer serving.Wait()
	defer stopServing()
	entrances, err := openIngress(ctx, c, members, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil // it was stopped before it had begun
		}
		return err
	}
	defer entrances.close()
	defer notifyManager(ctx, log, members)()
	return runAll(ctx, c, members, entrances, log)
}

// build makes an App for each pipeline, and returns every mistake at once.
func build(c RunConfig, registry *prometheus.Registry, log *slog.Logger) ([]member, error) {
	var members []member
	var errs []error
	for _, p := range c.Pipelines {
		m, err := c.member(p, registry, log)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		members = append(members, m)
	}
	return members, errors.Join(errs...)
}

// StateDir is where a pipeline has its local state: a directory below the data directory, or the one that
// its file names, unless the data directory was given on purpose (wins).
func StateDir(p *pipeline.Pipeline, dataDir string, wins bool) string {
	if p.StateDir != "" && !wins {
		return p.StateDir
	}
	return filepath.Join(dataDir, p.Name)
}

func (c RunConfig) member(p *pipeline.Pipeline, registry *prometheus.Registry, log *slog.Logger) (member, error) {
	topo, err := p.Topology()
	if err != nil {
		return member{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	dir := StateDir(p, c.DataDir, c.DataDirWins)
	if len(c.Pipelines) > 1 {
		log = log.With("pipeline", p.Name)
	}
	key, old, err := StateKeys(p)
	if err != nil {
		return member{}, err
	}
	warnKeys(p, log)
	opts := []processor.Option{
		processor.WithBrokers(p.Kafka.Brokers...),
		processor.WithKafka(kafkaConfig(p.Kafka)),
		processor.WithStateDir(dir),
		processor.WithStateKey(key, old),
		processor.WithInstanceID(c.Instance),
		processor.WithErrorPolicy(p.Errors.Policy, p.Errors.DeadLetterTopic),
		processor.WithTransactionLimits(0, 0, p.Processing.TransactionTimeout),
		processor.WithDroppedState(c.DropState...),
		processor.WithStartupTimeout(c.Startup),
		processor.WithGuarantee(p.Processing.Level()),
		processor.WithLogger(log),
		processor.WithRegisterer(registry),
		processor.WithAddress(reachable(c.HTTP)),
	}
	if c.Shutdown > 0 {
		opts = append(opts, processor.WithShutdownTimeout(c.Shutdown))
	}
	if d := p.Processing.CommitInterval; d != 0 {
		opts = append(opts, processor.WithCommitInterval(d))
	}
	traces, err := tracing.New(context.Background(), tracing.Config{
		Pipeline: p.Name, Version: c.Version.Version, Endpoint: p.Tracing.Endpoint, Sample: p.Tracing.Sample, LookupEnv: os.LookupEnv,
	})
	if err != nil {
		return member{}, fmt.Errorf("%s: %w: %w", p.File, ErrConfig, err)
	}
	if traces != nil {
		opts = append(opts, processor.WithTraces(traces.Transaction))
	}
	app, err := processor.New(topo, opts...)
	if err != nil {
		return member{}, fmt.Errorf("%s: %w: %w", p.File, ErrConfig, err)
	}
	m := member{p: p, app: app, dir: dir, traces: traces, web: web.Entry{
		Name: p.Name, Pipeline: app, Topology: topo.Graph(), Config: settings(p, c, dir),
		Graph: func(format string) (string, error) { return Draw(topo, format, true) }, Formats: []string{"text", "mermaid", "dot", "json"},
	}}
	err = m.watch(registry) // changes m
	return m, err
}

// closeTraces sends the last spans.
func closeTraces(members []member, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), traceTimeout)
	defer cancel()
	for _, m := range members {
		if m.traces == nil {
			continue
		}
		if err := m.traces.Close(ctx); err != nil {
			log.Warn("the last spans were not sent", "pipeline", m.p.Name, "err", err)
		}
	}
}

// kafkaConfig hands on how to reach the cluster.
func kafkaConfig(k pipeline.Kafka) processor.KafkaConfig {
	out := processor.KafkaConfig{ClientID: k.ClientID}
	if t := k.TLS; t != nil {
		out.TLS = &processor.TLSConfig{
			CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify,
		}
	}
	if s := k.SASL; s != nil {
		out.SASL = &processor.SASLConfig{Mechanism: s.Mechanism, User: s.Username, Password: s.Password.Reveal(), TokenFile: s.TokenFile}
		if token := s.Token.Reveal(); token != "" {
			out.SASL.Token = func(context.Context) (string, error) { return token, nil }
		}
	}
	return out
}

// peerLink makes the URL of another instance's page from its address, which anybody in the consumer group may have written: only a host and a
// port are taken from it. Instances of one application are protected in one way, so that the scheme is this one's.
func peerLink(scheme string) func(pipeline, address string) string {
	return func(pipeline, address string) string {
		u := url.URL{Scheme: scheme, Host: address, Path: "/", RawQuery: url.Values{"pipeline": {pipeline}}.Encode()}
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || strings.ContainsFunc(host, notInHost) {
			return ""
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return ""
		}
		return u.String()
	}
}

// notInHost tells what no name and no IP address of a host holds.
func notInHost(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".-_:", r)
}

// reachable is the HTTP address as other machines can use it.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if address == Off || err != nil || port == "0" { // of which the system chooses another one, later
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return ""
		}
	}
	return net.JoinHostPort(host, port)
}

// runAll runs the Apps, and what brings records in, until ctx ends or one of them does.
func runAll(ctx context.Context, c RunConfig, members []member, in *entrances, log *slog.Logger) error {
	appCtx, stop := context.WithCancel(ctx)
	defer stop()
	results := make(chan error, len(members)+len(in.all))
	for _, m := range members {
		log.Info("pipeline starting", "pipeline", m.p.Name, "config", m.p.File, "sha256", fingerprint(m.p.File), "brokers", m.p.Kafka.Brokers, "state", m.dir)
		go func() {
			err := awaitSchemas(appCtx, m.p, c.Startup, log)
			if err == nil {
				err = m.app.Run(appCtx)
			}
			if err != nil && appCtx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ErrNotReachable)) {
				err = nil // it was stopped before it had begun
			}
			if errors.Is(err, txlog.ErrOtherCluster) {
				err = fmt.Errorf("%w\nuse another --data-dir, or remove %s if that cluster is gone for good (each start of streamd dev is a new one)", err, m.dir)
			}
			if errors.Is(err, txlog.ErrKey) {
				err = fmt.Errorf("%w\nthe keys are state.key_file and state.old_key_file of %s", err, m.p.File)
			}
			if err != nil {
				err = fmt.Errorf("pipeline %q: %w", m.p.Name, err)
			}
			results <- err
		}()
	}
	for _, e := range in.all {
		go func() { results <- e.run(appCtx) }()
	}
	var errs []error
	done := ctx.Done()
	var late <-chan time.Time
	for left := len(members) + len(in.all); left > 0; {
		select {
		case err := <-results:
			left--
			errs = append(errs, err)
			if err != nil && left > 0 && appCtx.Err() == nil {
				log.Error("a pipeline or source failed: stopping the others", "err", err)
			}
			// One that ended by itself ends the process: what is left would run unwatched.
			stop()
			if late == nil {
				late = time.After(c.Shutdown)
			}
		case <-done:
			done = nil
			late = time.After(c.Shutdown)
			log.Info("stopping: finishing the open transaction (Ctrl-C again to abort)")
		case <-late:
			return errors.Join(append(errs, fmt.Errorf("%w (%v)", ErrShutdownTimeout, c.Shutdown))...)
		}
	}
	return errors.Join(errs...)
}

// adminOnly adds what tells more of a process than everyone should see, Go's profiles, its log and the payloads of taps: for the
// admin socket, which only its user can open.
func adminOnly(next http.Handler, members []member, recent *recentLog) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET "+tapPath, tapHandler(members))
	mux.Handle("GET "+RecentPath, recent)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// listen opens the HTTP address and the admin socket.
func listen(c RunConfig, log *slog.Logger) ([]net.Listener, error) {
	var out []net.Listener
	if c.HTTP != Off {
		l, err := net.Listen("tcp", c.HTTP)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("%w: --http %s belongs to another process: choose another one, or --http off", ErrInUse, c.HTTP)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: --http: %w", ErrConfig, err)
		}
		log.Info("http listening", "page", c.Secure.scheme()+"://"+l.Addr().String(), "metrics", "/metrics")
		out = append(out, c.Secure.secure(l, log))
	}
	if c.Admin == Off {
		return out, nil
	}
	l, err := listenAdmin(c)
	if err != nil && c.Admin == "" && !errors.Is(err, ErrInUse) {
		// The default place may be too deep for a socket, or be on a file system without them.
		log.Warn("no admin socket; status needs --addr", "err", err)
		return out, nil
	}
	if err != nil {
		for _, o := range out {
			_ = o.Close()
		}
		return nil, err
	}
	return append(out, l), nil
}

// listenAdmin opens the admin socket. One that nobody answers on was left by a process that was killed.
func listenAdmin(c RunConfig) (net.Listener, error) {
	address := c.Admin
	if address == "" {
		address = AdminAddress(c.DataDir)
	}
	path, err := socketPath(address)
	if err != nil {
		return nil, err
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: the admin socket %s belongs to another process: each needs a --data-dir of its own", ErrInUse, path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	return l, nil
}

var _ web.Pipeline = (*processor.App)(nil)
