package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/pipeline"
)

// Defaults of sources outside of Kafka.
const (
	defaultPartitions     = 4
	defaultMaxQueued      = 64 << 20
	defaultMaxConnections = 1024
)

// ErrDatabase: the database of a source did not answer within the startup timeout. Starting again helps once it does.
var ErrDatabase = errors.New("the database of a source does not answer")

// entrance is one source that brings records in.
type entrance struct {
	run func(context.Context) error
}

// entrances are those of all pipelines, with what is to be closed behind them.
type entrances struct {
	all      []entrance
	clusters []broker.Cluster
	open     []net.Listener
}

func (in *entrances) close() {
	for _, l := range in.open {
		_ = l.Close() // closed already, unless it never ran
	}
	for _, c := range in.clusters {
		_ = c.Close() // what was written is there
	}
}

// openIngress makes topics that are missing, and listens. Nothing is accepted before run is called.
func openIngress(ctx context.Context, c RunConfig, members []member, log *slog.Logger) (_ *entrances, err error) {
	in := &entrances{}
	defer func() {
		if err != nil {
			in.close()
		}
	}()
	for _, m := range members {
		if len(m.watches) == 0 {
			continue
		}
		cluster, err := openWithin(ctx, m.p.Kafka, c.Startup, log)
		if err != nil {
			return in, fmt.Errorf("sources of pipeline %q: %w", m.p.Name, err)
		}
		in.clusters = append(in.clusters, cluster)
		id, err := ingressID(c)
		if err != nil {
			return in, err
		}
		for _, s := range m.p.Sources {
			if s.Ingress == nil {
				continue
			}
			o := opening{c: c, p: m.p, source: s, cluster: cluster, instance: id, metrics: m.ingress, watch: m.watches[s.Name], log: log}
			e, err := o.open(ctx, in)
			if err != nil {
				return in, fmt.Errorf("source %q of pipeline %q: %w", s.Name, m.p.Name, err)
			}
			in.all = append(in.all, e)
		}
	}
	return in, nil
}

// openWithin opens a cluster, trying as long as a start may wait.
func openWithin(ctx context.Context, k pipeline.Kafka, patience time.Duration, log *slog.Logger) (broker.Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for n := 0; ; n++ {
		c, err := OpenCluster(ctx, k)
		if err == nil || !errors.Is(err, broker.ErrUnreachable) || ctx.Err() != nil {
			return c, err
		}
		if n == 0 {
			log.Warn("no broker reachable for the sources; trying again until the startup timeout", "brokers", k.Brokers, "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// ingressID names this process in transactional IDs: a process that starts again takes over what it had left open, and no other's.
func ingressID(c RunConfig) (string, error) {
	if c.Instance != "" {
		return c.Instance, nil
	}
	path := filepath.Join(c.DataDir, "ingress-id")
	for range 2 {
		data, err := os.ReadFile(path)
		if id := strings.TrimSpace(string(data)); err == nil && id != "" {
			return id, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("ingress: %w", err)
		}
		// Made aside and moved, so that nobody ever reads half of it.
		if err := os.WriteFile(path+".new", []byte(strings.ToLower(rand.Text()[:12])+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("ingress: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return "", fmt.Errorf("ingress: %w", err)
		}
	}
	return "", fmt.Errorf("ingress: %s cannot be read again", path)
}

// opening is what a source is opened with.
type opening struct {
	c        RunConfig
	p        *pipeline.Pipeline
	source   pipeline.Source
	cluster  broker.Cluster
	instance string
	metrics  *metric.Ingress
	watch    *ingress.Watch
	log      *slog.Logger
}

func (o *opening) open(ctx context.Context, in *entrances) (entrance, error) {
	topic, err := o.topic(ctx)
	if err != nil {
		return entrance{}, err
	}
	switch {
	case o.source.Ingress.File != nil:
		return o.files(ctx, topic)
	case o.source.Ingress.TCP != nil:
		return o.lines(topic, in)
	case o.source.Ingress.Table != nil:
		return o.table(ctx, topic)
	}
	return o.http(topic, in)
}

// topic is the source's topic, which is made if it is not there.
func (o *opening) topic(ctx context.Context) (broker.Topic, error) {
	// How long its records are kept, and how often, is the cluster's rule, as for any topic of its users.
	t, err := o.ensure(ctx, broker.Topic{Name: o.source.Topic, Partitions: cmp.Or(o.source.Ingress.Partitions, defaultPartitions), Replicas: -1})
	if n := t.MaxMessageBytes; err == nil && n > 0 && n < ingress.LeastMessageBytes {
		err = fmt.Errorf("%w: topic %q takes records of %d bytes (max.message.bytes): a source needs %d at least", ErrConfig, t.Name, n, ingress.LeastMessageBytes)
	}
	return t, err
}

// ensure makes a topic that is not there, and describes it.
func (o *opening) ensure(ctx context.Context, want broker.Topic) (broker.Topic, error) {
	name := want.Name
	have, err := o.cluster.Topics(ctx, name)
	if err != nil {
		return broker.Topic{}, err
	}
	if t, ok := have[name]; ok {
		return t, nil
	}
	err = o.cluster.CreateTopic(ctx, want)
	if err != nil && !errors.Is(err, broker.ErrTopicExists) {
		return broker.Topic{}, err
	}
	if have, err = o.cluster.Topics(ctx, name); err != nil {
		return broker.Topic{}, err
	}
	t, ok := have[name]
	if !ok {
		return broker.Topic{}, fmt.Errorf("topic %q is not there after it was made: %w", name, broker.ErrUnknownTopic)
	}
	o.log.Info("topic made", "topic", name, "partitions", t.Partitions, "source", o.source.Name)
	return t, nil
}

// newLog is the Log of a source: owner is who shares its transactional ID with an older process.
func (o *opening) newLog(topic broker.Topic, owner string) *ingress.Log {
	return ingress.NewLog(ingress.LogConfig{
		Cluster: o.cluster, Topic: topic, Source: o.source.Name, Logger: o.log, Metrics: o.metrics, Watch: o.watch,
		TransactionalID: pipeline.IngressID(o.p.Name, o.source.Name, owner),
	})
}

// listen opens a port of a source.
func (o *opening) listen(address string, connections int, in *entrances) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: address %s of source %q belongs to another process. For several instances on one machine write a variable in the file, such as address: ${ADDRESS:-%s}, and give each its own", ErrInUse, address, o.source.Name, address)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: address: %w", ErrConfig, err)
	}
	l = ingress.Limit(l, cmp.Or(connections, defaultMaxConnections))
	in.open = append(in.open, l)
	return l, nil
}

// drain is how long the end may wait for what was accepted: less than all has, so that the answers still get out.
func (o *opening) drain() time.Duration {
	if o.c.Shutdown <= 0 {
		return 10 * time.Second
	}
	return o.c.Shutdown * 3 / 4
}

func (o *opening) files(ctx context.Context, topic broker.Topic) (entrance, error) {
	f := o.source.Ingress.File
	owner := f.Owner
	if owner == "" {
		name, err := os.Hostname()
		if err != nil {
			return entrance{}, fmt.Errorf("the host's name, whose positions these would be (owner in the file says another): %w", err)
		}
		owner = name
	}
	positions, err := o.positions(ctx)
	if err != nil {
		return entrance{}, err
	}
	files := ingress.NewFiles(ingress.FilesConfig{
		Paths: f.Paths, Exclude: f.Exclude, Owner: owner, Positions: positions,
		MaxLine: f.MaxLine, SkipLong: f.SkipLong, Poll: f.Poll, LastLine: f.LastLine,
	}, o.newLog(topic, owner))
	return o.entrance(files.Run, "", "source reads files", "paths", f.Paths, "owner", owner), nil
}

// positions is the topic that holds how far a source was read, made if it is not there.
func (o *opening) positions(ctx context.Context) (string, error) {
	t, err := o.ensure(ctx, broker.Topic{Name: pipeline.PositionsTopic(o.p.Name, o.source.Name), Partitions: 1, Replicas: -1, Cleanup: broker.Compact})
	if err != nil {
		return "", err
	}
	if t.Cleanup != broker.Compact || t.Partitions != 1 {
		return "", fmt.Errorf("%w: topic %q has cleanup.policy %s and %d partitions, want compact and 1: else positions would be lost, and all be read again",
			ErrConfig, t.Name, t.Cleanup, t.Partitions)
	}
	return t.Name, nil
}

// table reads a table of a database. That it can be read is seen before anything begins.
func (o *opening) table(ctx context.Context, topic broker.Topic) (entrance, error) {
	t := o.source.Ingress.Table
	rows, err := t.Open(o.p.Name, o.source.Name)
	if err != nil {
		return entrance{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := awaitTable(ctx, rows, o.c.Startup, o.source.Name, o.log); err != nil {
		return entrance{}, errors.Join(err, rows.Close())
	}
	positions, err := o.positions(ctx)
	if err != nil {
		return entrance{}, errors.Join(err, rows.Close())
	}
	// One name for all instances: of them one reads.
	const owner = "table"
	table := ingress.NewTable(ingress.TableConfig{Table: t.Table, Column: t.Column, KeyField: t.KeyField, After: t.After, Positions: positions, Poll: t.Poll}, rows,
		func() *ingress.Log { return o.newLog(topic, owner) })
	return o.entrance(table.Run, "", "source reads a table", "table", t.Table, "column", t.Column), nil
}

// awaitTable looks whether a table can be read, and waits for its server as long as a start may.
func awaitTable(ctx context.Context, rows ingress.Rows, patience time.Duration, source string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for n := 0; ; n++ {
		err := rows.Check(ctx)
		var setup *ingress.SetupError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &setup):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", ErrDatabase, err)
		case n == 0:
			log.Warn("the database does not answer; trying again until the startup timeout", "source", source, "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrDatabase, err)
		}
	}
}

func (o *opening) lines(topic broker.Topic, in *entrances) (entrance, error) {
	t := o.source.Ingress.TCP
	l, err := o.listen(t.Address, t.MaxConnections, in)
	if err != nil {
		return entrance{}, err
	}
	queue := ingress.NewQueue(o.newLog(topic, o.instance), int64(cmp.Or(t.MaxQueued, defaultMaxQueued)), o.drain())
	lines := ingress.NewLines(ingress.LinesConfig{
		Values: ingress.Values(o.source.Format), Acknowledge: t.Acknowledge, IDField: t.IDField, KeyField: t.KeyField, MaxLine: t.MaxLine, Idle: t.Idle,
	}, queue, l, o.log)
	return o.entrance(lines.Run, l.Addr().String(), "source listening", "address", l.Addr().String()), nil
}

// entrance runs a source, with its name on what it ends with. where is its address, if it has one.
func (o *opening) entrance(run func(context.Context) error, where, message string, what ...any) entrance {
	return entrance{run: func(ctx context.Context) error {
		o.log.Info(message, append([]any{"source", o.source.Name, "topic", o.source.Topic}, what...)...)
		o.watch.Opened(where)
		if err := run(ctx); err != nil {
			return fmt.Errorf("source %q of pipeline %q: %w", o.source.Name, o.p.Name, err)
		}
		return nil
	}}
}

// securityOf is how the port of a source is protected.
func securityOf(s pipeline.Source) HTTPSecurity {
	h := s.Ingress.HTTP
	return HTTPSecurity{CertFile: h.CertFile, KeyFile: h.KeyFile, ClientCAFile: h.ClientCAFile, TokenFile: h.TokenFile, source: s.Name}
}

// CheckSource looks at the files, or the table, that a source outside of Kafka needs. It opens no port and reads nothing.
func CheckSource(ctx context.Context, p *pipeline.Pipeline, s pipeline.Source) error {
	switch {
	case s.Ingress.Table != nil:
		rows, err := s.Ingress.Table.Open(p.Name, s.Name)
		if err == nil {
			err = errors.Join(rows.Check(ctx), rows.Close())
		}
		if err != nil {
			return fmt.Errorf("source %q: %w", s.Name, err)
		}
	case s.Ingress.HTTP != nil:
		return securityOf(s).validate()
	case s.Ingress.File != nil:
		return readable(s)
	}
	return nil
}

// readable looks whether the files that are there can be opened.
func readable(s pipeline.Source) error {
	var errs []error
	for _, pattern := range s.Ingress.File.Paths {
		paths, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, path := range paths {
			f, err := os.Open(path)
			if errs = append(errs, err); err == nil {
				_ = f.Close() // nothing was read
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("source %q: %w", s.Name, err)
	}
	return nil
}

func (o *opening) http(topic broker.Topic, in *entrances) (entrance, error) {
	h := o.source.Ingress.HTTP
	secure := securityOf(o.source)
	if err := secure.validate(); err != nil {
		return entrance{}, err
	}
	l, err := o.listen(h.Address, h.MaxConnections, in)
	if err != nil {
		return entrance{}, err
	}
	cfg := ingress.HTTPConfig{
		Path: h.Path, Values: ingress.Values(o.source.Format), IDHeader: h.IDHeader, IDField: h.IDField, KeyField: h.KeyField, Anonymous: h.Anonymous,
		MaxBody: int64(h.MaxBody), MaxRecords: h.MaxRecords, Timeout: cmp.Or(h.Timeout, ingress.DefaultTimeout),
	}
	queue := ingress.NewQueue(o.newLog(topic, o.instance), max(int64(cmp.Or(h.MaxQueued, defaultMaxQueued)), cfg.MaxBody), o.drain())
	server := &ingress.Server{
		Listener: secure.secure(l, o.log), Handler: secure.guard().Protect(ingress.NewHTTP(cfg, queue), o.log), Queue: queue,
		Timeout: cfg.Timeout, Drain: o.drain(), Logger: o.log,
	}
	where := secure.scheme() + "://" + l.Addr().String() + h.Path
	return o.entrance(server.Run, where, "source listening", "address", where), nil
}
