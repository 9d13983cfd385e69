package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// The names of the pipeline.
const (
	App        = "bills"
	Input      = "bills.raw"
	Output     = "bills.unique"
	Totals     = "account-totals"
	Regions    = "region-totals"
	Partitions = 3
)

// Pipeline is the file. Bills are keyed by their account; regions go through a repartition topic.
const Pipeline = `version: 1
name: bills

kafka:
  brokers: ["${BROKERS}"]

types:
  Bill:
    bill_id: string
    account: string
    region: string
    cents: int

sources:
  bills:
    topic: bills.raw
    format: json
    type: Bill

steps:
  - name: unique
    dedup:
      id: value.bill_id
      scope: partition
      retention: 1h

  - name: echo
    to:
      topic: bills.unique

  - name: totals
    from: unique
    aggregate:
      by: value.account
      fields:
        bills: {count: true}
        cents: {sum: value.cents}
        low: {min: value.cents}
        high: {max: value.cents}

  - name: publish
    to:
      topic: account-totals

  - name: regions
    from: unique
    aggregate:
      by: value.region
      fields:
        bills: {count: true}
        cents: {sum: value.cents}

  - name: publish-regions
    to:
      topic: region-totals
`

// Rig is a broker and a pipeline that runs or not.
type Rig struct {
	*testing.T
	Broker *embedded.Broker
	File   string // the pipeline file
	Data   string // the data directory of the process
	client *kgo.Client
	stop   func()
}

// New starts the broker and writes the file. All of it ends with the test.
func New(t *testing.T) *Rig {
	t.Helper()
	topics := []embedded.Topic{{Name: Input, Partitions: Partitions}, {Name: Output, Partitions: Partitions}, {Name: Totals, Partitions: Partitions}, {Name: Regions, Partitions: Partitions}}
	b, err := embedded.Start(embedded.Config{Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r := &Rig{T: t, Broker: b, File: filepath.Join(t.TempDir(), "pipeline.yaml"), Data: filepath.Join(t.TempDir(), "data"), client: client}
	if err := os.WriteFile(r.File, []byte(Pipeline), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// Load is how the file is loaded.
func (r *Rig) Load() daemon.LoadConfig {
	return daemon.LoadConfig{Brokers: []string{r.Broker.Address()}, Variables: []string{"BROKERS=" + r.Broker.Address()}}
}

// StateDir is the state directory of the pipeline.
func (r *Rig) StateDir() string { return filepath.Join(r.Data, App) }

// Cluster opens a reader.
func (r *Rig) Cluster() *rawlog.Cluster {
	r.Helper()
	c, err := rawlog.Open(rawlog.Config{Brokers: []string{r.Broker.Address()}})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Close)
	return c
}

// Start starts the pipeline.
func (r *Rig) Start() {
	r.Helper()
	pipelines, err := daemon.Load([]string{r.File}, r.Load())
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	done := make(chan error, 1)
	go func() {
		done <- daemon.Run(ctx, daemon.RunConfig{
			Pipelines: pipelines, DataDir: r.Data, DataDirWins: true, HTTP: daemon.Off, Admin: daemon.Off,
			Startup: time.Minute, Shutdown: time.Minute, Log: slog.New(slog.DiscardHandler),
		})
	}()
	r.stop = func() {
		r.Helper()
		cancel()
		if err := <-done; err != nil {
			r.Error(err)
		}
	}
	r.Cleanup(r.Stop)
}

// Stop stops the pipeline with its last commit. It does nothing if none runs.
func (r *Rig) Stop() {
	r.Helper()
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
}

// Bill is an input.
func Bill(n int) (key, value []byte) {
	account := fmt.Sprintf("account-%d", n%17)
	return []byte(account), fmt.Appendf(nil, `{"bill_id":"bill-%d","account":%q,"region":"region-%d","cents":%d}`, n, account, n%5, 1+n*7919%1000)
}

// Send sends the bills from one number to another, every fourth of them twice.
func (r *Rig) Send(from, to int) {
	r.Helper()
	var records []*kgo.Record
	for n := from; n < to; n++ {
		key, value := Bill(n)
		records = append(records, &kgo.Record{Topic: Input, Key: key, Value: value})
		if n%4 == 0 {
			records = append(records, &kgo.Record{Topic: Input, Key: key, Value: value})
		}
	}
	r.Produce(records...)
}

// Produce sends records as they are.
func (r *Rig) Produce(records ...*kgo.Record) {
	r.Helper()
	if err := r.client.ProduceSync(r.Context(), records...).FirstErr(); err != nil {
		r.Fatal(err)
	}
}

// Settle waits until everything was processed.
func (r *Rig) Settle() {
	r.Helper()
	c := r.Cluster()
	for _, topics := range [][]string{{Input}, {App + "-totals-by-repartition", App + "-regions-by-repartition"}} {
		result, err := proof.AwaitCaughtUp(r.Context(), c, App, time.Minute, topics...)
		if err != nil || !result.OK() {
			r.Fatal(err, result)
		}
	}
}

// Records reads a topic.
func (r *Rig) Records(topic string) []rawlog.Record {
	r.Helper()
	c := r.Cluster()
	bounds, err := c.Bounds(r.Context(), topic)
	if err != nil {
		r.Fatal(err)
	}
	var out []rawlog.Record
	if err := c.Read(r.Context(), rawlog.Spans(bounds), func(x rawlog.Record) error { out = append(out, x); return nil }); err != nil {
		r.Fatal(err)
	}
	return out
}

// Again is a record as it would be sent again.
func Again(x rawlog.Record) *kgo.Record {
	out := &kgo.Record{Topic: x.Topic, Key: x.Key, Value: x.Value, Timestamp: x.Time}
	for _, h := range x.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return out
}

// MoveOffset commits another offset for an input partition, with the metadata that stand there.
func (r *Rig) MoveOffset(p rawlog.Partition, by int64) {
	r.Helper()
	offsets, err := r.Cluster().Committed(r.Context(), App)
	if err != nil {
		r.Fatal(err)
	}
	o, ok := offsets[p]
	if !ok {
		r.Fatalf("%s has no committed offset", p)
	}
	r.leave()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = App, -1
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = p.Topic, r.topicID(p.Topic)
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.Metadata = p.Number, o.Next+by, kmsg.StringPtr(o.Metadata)
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(r.Context(), r.client)
	if err != nil {
		r.Fatal(err)
	}
	if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
		r.Fatalf("the broker refuses the offset with code %d", code)
	}
}

// leave ends the membership of a process that has stopped: static members stay in the group, and as long
// as there is one, an offset of anybody else is refused.
func (r *Rig) leave() {
	r.Helper()
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{App}
	groups, err := describe.RequestWith(r.Context(), r.client)
	if err != nil {
		r.Fatal(err)
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = App
	for _, m := range groups.Groups[0].Members {
		x := kmsg.NewLeaveGroupRequestMember()
		x.MemberID, x.InstanceID = m.MemberID, m.InstanceID
		req.Members = append(req.Members, x)
	}
	if _, err := req.RequestWith(r.Context(), r.client); err != nil {
		r.Fatal(err)
	}
}

// topicID asks for the UUID that newer versions of a request name a topic by.
func (r *Rig) topicID(topic string) [16]byte {
	r.Helper()
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(r.Context(), r.client)
	if err != nil {
		r.Fatal(err)
	}
	return resp.Topics[0].TopicID
}

// ChangeState changes the local store of a stopped pipeline behind its back: change gets a batch at the
// position of the first task that has the state store, and the first key and value in it.
func (r *Rig) ChangeState(store string, change func(b *record.Batch, key, value []byte)) {
	r.Helper()
	log, err := txlog.Open(txlog.Options{Dir: r.StateDir(), App: App})
	if err != nil {
		r.Fatal(err)
	}
	defer func() {
		if err := log.Close(); err != nil {
			r.Error(err)
		}
	}()
	for _, name := range log.Tasks() {
		err = errors.Join(err, r.changeTask(log, name, store, &change))
	}
	if err != nil || change != nil {
		r.Fatalf("no task has a key in store %q: %v", store, err)
	}
}

func (r *Rig) changeTask(log *txlog.Log, name, store string, change *func(b *record.Batch, key, value []byte)) error {
	task, err := log.Task(name)
	if err != nil || *change == nil {
		return err
	}
	var key, value []byte
	err = task.Range(store, nil, nil, func(k, v []byte) bool {
		key, value = slices.Clone(k), slices.Clone(v)
		return false
	})
	if err != nil || key == nil {
		return err
	}
	b := &record.Batch{}
	b.Position, _ = task.Position()
	(*change)(b, key, value)
	*change = nil
	return task.Apply(b)
}
