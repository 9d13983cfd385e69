package crash

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/internal/fault"
)

// The bounds of a fleet's brokers and processes. They are short so that a test can outwait them, and long
// enough for a machine that has other work.
const (
	SessionTimeout     = 3 * time.Second
	TransactionTimeout = 2 * time.Second
)

// Host is one machine: a streamd process with its state directory and its table of fault points, which outlives
// the process.
type Host struct {
	*Daemon
	Name  string
	Table *fault.Table

	scanned int64 // of the log
}

// FleetConfig says what a fleet is made of.
type FleetConfig struct {
	Program  string // built with the tag faultpoints
	Pipeline string // the text of its file; BROKERS stands for the addresses
	App      string // the pipeline's name
	Dir      string // for everything
	Hosts    int
	Topics   []string
}

// Fleet is a Kafka in memory inside this process, and some streamd processes on it.
type Fleet struct {
	Hosts []*Host
	App   string

	config  FleetConfig
	file    string
	brokers []string
	cluster *kfake.Cluster
	unwait  func()

	mu    sync.Mutex // guards armed
	armed map[string]*ending
}

// ending is what is to happen when a host asks for the end of a transaction.
type ending struct {
	host    *Host
	handled bool
	done    chan struct{}
}

// FleetPartitions is the number of partitions of a fleet's topics.
const FleetPartitions = 4

// NewFleet starts the brokers, makes the topics and prepares the hosts. Nothing runs yet.
func NewFleet(ctx context.Context, c FleetConfig) (*Fleet, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.DefaultNumPartitions(FleetPartitions), kfake.GroupMinSessionTimeout(time.Second))
	if err != nil {
		return nil, fmt.Errorf("crash: %w", err)
	}
	unwait, err := embedded.KeepWaiting(cluster, nil)
	if err != nil {
		cluster.Close()
		return nil, fmt.Errorf("crash: %w", err)
	}
	f := &Fleet{App: c.App, config: c, file: filepath.Join(c.Dir, "pipeline.yaml"), brokers: cluster.ListenAddrs(), cluster: cluster, unwait: unwait, armed: map[string]*ending{}}
	cluster.ControlKey(int16(kmsg.EndTxn), f.endTxn)
	cluster.ControlKey(int16(kmsg.Produce), f.produce)
	text := strings.ReplaceAll(c.Pipeline, "BROKERS", strings.Join(f.brokers, `","`))
	if err := os.WriteFile(f.file, []byte(text), 0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("crash: %w", err)
	}
	if err := CreateTopics(ctx, f.brokers, FleetPartitions, c.Topics...); err != nil {
		f.Close()
		return nil, err
	}
	for i := range c.Hosts {
		if _, err := f.AddHost(string(rune('a' + i))); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// Brokers are the addresses of the Kafka in memory.
func (f *Fleet) Brokers() []string { return f.brokers }

// AddHost makes one more host, whose instance ID is its name.
func (f *Fleet) AddHost(name string) (*Host, error) {
	dir := filepath.Join(f.config.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("crash: %w", err)
	}
	table, err := fault.OpenTable(filepath.Join(dir, "points"))
	if err != nil {
		return nil, fmt.Errorf("crash: %w", err)
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, Table: table, Daemon: &Daemon{
		Program: f.config.Program, File: f.file, Dir: filepath.Join(dir, "data"), HTTP: address, Log: filepath.Join(dir, "log"),
		// A race must not pass for an exit of the engine's own.
		Env: []string{fault.Variable + "=" + filepath.Join(dir, "points"), "GORACE=exitcode=66"},
	}}
	h.Args = []string{"--instance-id", name}
	f.Hosts = append(f.Hosts, h)
	return h, nil
}

// freeAddress finds a port that nobody uses. It stays the host's over all of its lives.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("crash: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// Close kills all processes and ends the brokers.
func (f *Fleet) Close() {
	for _, h := range f.Hosts {
		h.Kill()
		_ = h.Table.Close()
	}
	f.unwait()
	f.cluster.Close()
}

// StateDir is the host's state directory of the pipeline.
func (f *Fleet) StateDir(h *Host) string { return filepath.Join(h.Dir, f.App) }

// KillAtEndTxn kills the host when its next EndTxn has reached the broker. If handled, the broker then commits,
// and the host will never know; else the request is gone with the host. The channel is closed when it has happened.
func (f *Fleet) KillAtEndTxn(h *Host, handled bool) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := &ending{host: h, handled: handled, done: make(chan struct{})}
	f.armed[h.Name] = e
	return e.done
}

// ForgetEndTxn takes a KillAtEndTxn back that has not happened.
func (f *Fleet) ForgetEndTxn(h *Host) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.armed, h.Name)
}

// endTxn is asked by the broker before it handles an EndTxn.
func (f *Fleet) endTxn(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
	f.cluster.KeepControl()
	r := req.(*kmsg.EndTxnRequest)
	if !r.Commit {
		return nil, nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, e := range f.armed {
		if !strings.HasPrefix(r.TransactionalID, f.App+"-"+name+"-") {
			continue
		}
		delete(f.armed, name)
		e.host.Kill()
		close(e.done)
		if !e.handled {
			return nil, io.ErrUnexpectedEOF, true // the connection is cut
		}
	}
	return nil, nil, false
}

// Places in a record batch of format 2.
const (
	batchCRC        = 17
	batchAttributes = 21
	batchFirstTime  = 27
	batchMaxTime    = 35
	batchHeader     = 61
)

// produce is asked by the broker before it handles a Produce. kfake does not know message.timestamp.type=LogAppendTime,
// which all changelogs have, so that the batches are moved to the present here. The workload is years old, and without
// this a local store would look as if nobody had written to it for years.
func (f *Fleet) produce(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
	f.cluster.KeepControl()
	for _, t := range req.(*kmsg.ProduceRequest).Topics {
		if !strings.HasSuffix(t.Topic, "-changelog") {
			continue
		}
		for _, p := range t.Partitions {
			b := p.Records
			if len(b) < batchHeader {
				continue
			}
			first, last := binary.BigEndian.Uint64(b[batchFirstTime:]), binary.BigEndian.Uint64(b[batchMaxTime:])
			now := uint64(time.Now().UnixMilli())
			binary.BigEndian.PutUint64(b[batchFirstTime:], now-(last-first))
			binary.BigEndian.PutUint64(b[batchMaxTime:], now)
			binary.BigEndian.PutUint32(b[batchCRC:], crc32.Checksum(b[batchAttributes:], crc32.MakeTable(crc32.Castagnoli)))
		}
	}
	return nil, nil, false
}

// Scan looks for a text in what the host's log has got since the last Scan, and returns the first line that has
// one of them.
func (h *Host) Scan(texts ...string) (line string, err error) {
	f, err := os.Open(h.Log)
	if err != nil {
		return "", fmt.Errorf("crash: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(h.scanned, io.SeekStart); err != nil {
		return "", fmt.Errorf("crash: %w", err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("crash: %w", err)
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1] // the rest of a line comes with the next scan
	h.scanned += int64(len(data))
	for l := range bytes.Lines(data) {
		for _, text := range texts {
			if bytes.Contains(l, []byte(text)) {
				return strings.TrimSpace(string(l)), nil
			}
		}
	}
	return "", nil
}

// AwaitDeath waits until the host's process is gone by kill -9. false: it lives still. Any other end is an error.
func (h *Host) AwaitDeath(ctx context.Context, within time.Duration) (bool, error) {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.C:
		return false, nil
	case <-h.Done():
	}
	return true, h.KilledOnly()
}

// KilledOnly is an error if the host's process has ended by anything but a kill -9.
func (h *Host) KilledOnly() error {
	if code, signal, ended := h.Ended(); ended && signal == 0 {
		return fmt.Errorf("crash: host %s ended by itself with exit code %d:\n%s", h.Name, code, h.Tail())
	}
	return nil
}
