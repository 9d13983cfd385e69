package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// ErrActive: the group has members, so that something may be running.
var ErrActive = fmt.Errorf("the pipeline has active members: %w", daemon.ErrInUse)

// ResetConfig says what is to be forgotten, and where to go on.
type ResetConfig struct {
	Pipeline *pipeline.Pipeline
	// StateDir is the local state of this machine.
	StateDir string
	// To is where the inputs are read from afterwards: "earliest", "latest", or a time.
	To   string
	Time time.Time // with To "time": the first record that is not older
}

// Plan is what a reset does. It is made anew for each try.
type Plan struct {
	Group   string         `json:"group"`
	Members []string       `json:"members"`
	To      string         `json:"to"`
	Offsets []PlannedStart `json:"offsets"`
	// Topics are deleted: stores and repartition topics; IDLogs after them.
	Topics           []string `json:"topics"`
	IDLogs           []string `json:"id_logs"`
	TransactionalIDs []string `json:"transactional_ids"`
	Outputs          []string `json:"outputs"`
	StateDir         string   `json:"state_dir"`
	StateThere       bool     `json:"state_there"`
	Executed         bool     `json:"executed"`

	there map[string]topicInfo
	reset ResetConfig
}

// PlannedStart is where an input partition is read from afterwards.
type PlannedStart struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// Committed is -1 if nothing is.
	Committed int64 `json:"committed"`
	Next      int64 `json:"next"`
}

// NewPlan looks at the cluster and at this machine, and changes nothing.
func NewPlan(ctx context.Context, cfg ResetConfig) (*Plan, error) {
	topo, err := cfg.Pipeline.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	c, err := connect(cfg.Pipeline.Kafka)
	if err != nil {
		return nil, err
	}
	defer c.close()
	p := &Plan{Group: topo.Name(), To: cfg.To, StateDir: cfg.StateDir, reset: cfg}
	if cfg.To == "time" {
		p.To = cfg.Time.UTC().Format(time.RFC3339)
	}
	inputs, err := p.topics(ctx, c, topo)
	if err != nil {
		return nil, err
	}
	members, err := c.Members(ctx, p.Group)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		p.Members = append(p.Members, m.String())
	}
	if err := p.offsets(ctx, c, inputs); err != nil {
		return nil, err
	}
	if p.TransactionalIDs, err = c.transactionalIDs(ctx, p.Group); err != nil {
		return nil, err
	}
	_, err = os.Stat(cfg.StateDir)
	p.StateThere = err == nil
	return p, nil
}

// topics sorts the pipeline's topics; only those that are there count.
func (p *Plan) topics(ctx context.Context, c *client, topo *topology.Topology) (inputs []string, err error) {
	var topics, logs []string
	for _, s := range topo.Subtopologies() {
		if s.External != nil {
			// The topic of a sink outside of Kafka is an output as others are: the target keeps how far it is by offsets of this
			// topic, which mean nothing in one that is made anew.
			p.Outputs = append(p.Outputs, topo.SourceTopic(s.Sources[0]))
			continue
		}
		for _, x := range s.Sources {
			if x.Internal {
				topics = append(topics, topo.SourceTopic(x))
			} else {
				inputs = append(inputs, x.Topic)
			}
		}
		for _, x := range s.Sinks {
			if !x.Internal {
				p.Outputs = append(p.Outputs, topo.SinkTopic(x))
			}
		}
		logs = append(logs, topo.IDLogTopic(s))
		for _, st := range s.Stores {
			topics = append(topics, topo.StoreTopic(st.Name))
		}
	}
	if p.there, err = c.describe(ctx, slices.Concat(inputs, topics, logs)); err != nil {
		return nil, err
	}
	there := func(names []string) []string {
		names = slices.DeleteFunc(names, func(n string) bool { _, ok := p.there[n]; return !ok })
		slices.Sort(names)
		return slices.Compact(names)
	}
	p.Topics, p.IDLogs = there(topics), there(logs)
	return there(inputs), nil
}

// offsets finds where each input partition is to be read from.
func (p *Plan) offsets(ctx context.Context, c *client, inputs []string) error {
	bounds, err := c.Bounds(ctx, inputs...)
	if err != nil {
		return err
	}
	committed, err := c.Committed(ctx, p.Group)
	if err != nil {
		return err
	}
	at := map[rawlog.Partition]int64{}
	if p.reset.To == "time" {
		if at, err = c.offsetsAt(ctx, inputs, p.there, p.reset.Time); err != nil {
			return err
		}
	}
	for _, tp := range rawlog.Sorted(bounds) {
		s := PlannedStart{Topic: tp.Topic, Partition: tp.Number, Committed: -1, Next: bounds[tp].Start}
		if o, ok := committed[tp]; ok {
			s.Committed = o.Next
		}
		switch p.reset.To {
		case "latest":
			s.Next = bounds[tp].Stable
		case "time":
			s.Next = bounds[tp].Stable
			if o, ok := at[tp]; ok && o >= 0 {
				s.Next = o
			}
		}
		p.Offsets = append(p.Offsets, s)
	}
	return nil
}

// offsetsAt returns the first offsets at or after a time; -1 where there is none.
func (c *client) offsetsAt(ctx context.Context, topics []string, there map[string]topicInfo, at time.Time) (map[rawlog.Partition]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, 1
	for _, name := range topics {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = name
		for n := range there[name].partitions {
			x := kmsg.NewListOffsetsRequestTopicPartition()
			x.Partition, x.Timestamp = n, at.UnixMilli()
			t.Partitions = append(t.Partitions, x)
		}
		req.Topics = append(req.Topics, t)
	}
	out := map[rawlog.Partition]int64{}
	for _, shard := range c.kgo.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, failed("offsets of a time", shard.Err)
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, x := range t.Partitions {
				if err := failedCode(fmt.Sprintf("offsets of %s/%d", t.Topic, x.Partition), x.ErrorCode); err != nil {
					return nil, err
				}
				out[rawlog.Partition{Topic: t.Topic, Number: x.Partition}] = x.Offset
			}
		}
	}
	return out, nil
}

// transactionalIDs lists those of a group that the coordinators know: GROUP-INSTANCE-N. Those of another group whose name
// begins with GROUP- are left alone.
func (c *client) transactionalIDs(ctx context.Context, group string) ([]string, error) {
	others, err := c.groupsBelow(ctx, group+"-")
	if err != nil {
		return nil, err
	}
	foreign := func(id string) bool {
		return slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(id, other+"-") })
	}
	var out []string
	for _, shard := range c.kgo.RequestSharded(ctx, kmsg.NewPtrListTransactionsRequest()) {
		if shard.Err != nil {
			return nil, failed("list transactions", shard.Err)
		}
		resp := shard.Resp.(*kmsg.ListTransactionsResponse)
		if err := failedCode("list transactions", resp.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range resp.TransactionStates {
			if strings.HasPrefix(t.TransactionalID, group+"-") && !foreign(t.TransactionalID) {
				out = append(out, t.TransactionalID)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// groupsBelow lists the groups whose names begin with the prefix.
func (c *client) groupsBelow(ctx context.Context, prefix string) ([]string, error) {
	var out []string
	for _, shard := range c.kgo.RequestSharded(ctx, kmsg.NewPtrListGroupsRequest()) {
		if shard.Err != nil {
			return nil, failed("list groups", shard.Err)
		}
		resp := shard.Resp.(*kmsg.ListGroupsResponse)
		if err := failedCode("list groups", resp.ErrorCode); err != nil {
			return nil, err
		}
		for _, g := range resp.Groups {
			if strings.HasPrefix(g.Group, prefix) {
				out = append(out, g.Group)
			}
		}
	}
	return out, nil
}

// Execute carries the plan out. ErrActive if there are members. What is done already is no error: a reset that was killed is
// completed by another one.
func (p *Plan) Execute(ctx context.Context) error {
	if len(p.Members) > 0 {
		return fmt.Errorf("%w: %s. Stop them. One that has ended keeps its place for up to 45 s, or until streamd leave FILE with what stands here of it takes it out", ErrActive, strings.Join(p.Members, "; "))
	}
	c, err := connect(p.reset.Pipeline.Kafka)
	if err != nil {
		return err
	}
	defer c.close()
	// Somebody may have come since the plan was made: he is found before he is fenced. Who comes later is refused his offsets by
	// the group, since setting them needs one without members.
	switch members, err := c.Members(ctx, p.Group); {
	case err != nil:
		return err
	case len(members) > 0:
		return fmt.Errorf("%w: one came after the plan was made", ErrActive)
	}
	// Nobody on this machine opens the local state before its topics are gone; that it is in use, or another pipeline's, is said before
	// anything is changed.
	if err := txlog.Remove(p.StateDir, p.Group, func() error { return p.forget(ctx, c) }); err != nil {
		return err
	}
	p.Executed = true
	return nil
}

// forget does the cluster's part. The logs of IDs go last: as long as one is there, its task begins where it says and not at the
// offsets, and refuses to begin without its state, so that whoever starts between two steps counts nothing twice.
// The marks that outlive them say at last that local stores which were made of them count no more (docs/adr/0028).
func (p *Plan) forget(ctx context.Context, c *client) error {
	if err := p.fence(ctx, c); err != nil {
		return err
	}
	if err := p.setOffsets(ctx, c); err != nil {
		return err
	}
	fault.Point("reset.offsets")
	cluster, err := daemon.OpenCluster(ctx, p.reset.Pipeline.Kafka)
	if err != nil {
		return err
	}
	defer cluster.Close() //nolint:errcheck // nothing is buffered
	logs, err := cluster.Topics(ctx, p.IDLogs...)
	if err != nil {
		return err
	}
	var present []changelog.PlannedLog
	for _, name := range p.IDLogs {
		if t, ok := logs[name]; ok && t.ID != "" {
			present = append(present, changelog.PlannedLog{Topic: name, TopicID: t.ID})
		}
	}
	planned, err := changelog.PlanReset(ctx, cluster, p.Group, present)
	if err != nil {
		return err
	}
	fault.Point("reset.planned")
	if err := c.deleteTopics(ctx, p.Topics); err != nil {
		return err
	}
	if err := c.deleteTopics(ctx, p.IDLogs); err != nil {
		return err
	}
	if err := changelog.CompleteReset(ctx, cluster, p.Group, planned); err != nil {
		return err
	}
	fault.Point("reset.marked")
	return nil
}

// fence gives each transactional ID a new epoch, which ends an open transaction and refuses whoever has the old one.
func (p *Plan) fence(ctx context.Context, c *client) error {
	for _, id := range p.TransactionalIDs {
		if err := c.fence(ctx, id); err != nil {
			return err
		}
		fault.Point("reset.fenced")
	}
	return nil
}

// fence gives a transactional ID a new epoch, and returns when the transaction that was open is ended.
func (c *client) fence(ctx context.Context, id string) error {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = kmsg.StringPtr(id), 10_000
	req.ProducerID, req.ProducerEpoch = -1, -1
	for {
		resp, err := req.RequestWith(ctx, c.kgo)
		if err != nil {
			return failed(fmt.Sprintf("fence %q", id), err)
		}
		err = kerr.ErrorForCode(resp.ErrorCode)
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			if err != nil {
				return failed(fmt.Sprintf("fence %q", id), err)
			}
			return nil
		}
		// The open one is being ended.
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return failed(fmt.Sprintf("fence %q", id), err)
		}
	}
}

// setOffsets puts the group where the plan says. Repartition topics begin at 0: they are made anew.
func (p *Plan) setOffsets(ctx context.Context, c *client) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = p.Group, -1
	topics := map[string]*kmsg.OffsetCommitRequestTopic{}
	var order []string
	add := func(topic string, partition int32, next int64) {
		t := topics[topic]
		if t == nil {
			x := kmsg.NewOffsetCommitRequestTopic()
			x.Topic, x.TopicID, t = topic, p.there[topic].id, &x
			topics[topic], order = t, append(order, topic)
		}
		x := kmsg.NewOffsetCommitRequestTopicPartition()
		x.Partition, x.Offset, x.Metadata = partition, next, kmsg.StringPtr(changelog.ResetMetadata)
		t.Partitions = append(t.Partitions, x)
	}
	for _, o := range p.Offsets {
		add(o.Topic, o.Partition, o.Next)
	}
	for _, name := range p.Topics {
		if strings.HasSuffix(name, "-repartition") {
			for n := range p.there[name].partitions {
				add(name, n, 0)
			}
		}
	}
	for _, name := range order {
		req.Topics = append(req.Topics, *topics[name])
	}
	if len(order) == 0 {
		return nil
	}
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return failed("set offsets", err)
	}
	for _, t := range resp.Topics {
		name := t.Topic
		for _, n := range order {
			if name == "" && topics[n].TopicID == t.TopicID { // by ID, since OffsetCommit 10
				name = n
			}
		}
		for _, x := range t.Partitions {
			err := kerr.ErrorForCode(x.ErrorCode)
			switch {
			case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.RebalanceInProgress):
				return fmt.Errorf("%w: one came while the reset began", ErrActive)
			case slices.Contains(p.Topics, name) && (errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition)):
				// A reset that was killed had asked for its deletion, which the brokers carried out after the plan was made.
			case err != nil:
				return failed(fmt.Sprintf("set offset of %s/%d", name, x.Partition), err)
			}
		}
	}
	return nil
}

// deleteTopics deletes topics and waits until they are gone.
func (c *client) deleteTopics(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = names
	for _, n := range names {
		x := kmsg.NewDeleteTopicsRequestTopic()
		x.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, x)
	}
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return failed("delete topics", err)
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return failed(fmt.Sprintf("delete topic %q", *t.Topic), err)
		}
	}
	fault.Point("reset.deleted")
	for {
		left, err := c.describe(ctx, names)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			fault.Point("reset.gone")
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return failed("wait until topics are deleted", err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Write prints the plan for a reader.
func (p *Plan) Write(w io.Writer) error {
	var b strings.Builder
	if p.Executed {
		b.WriteString("Done:\n")
	} else {
		b.WriteString("Plan (nothing done yet; add --execute):\n")
	}
	members := "no active members ✓"
	if len(p.Members) > 0 {
		members = fmt.Sprintf("✗ %d active: %s", len(p.Members), strings.Join(p.Members, "; "))
	}
	fmt.Fprintf(&b, "  group         %s   %d partitions → %s   (%s)\n", p.Group, len(p.Offsets), p.To, members)
	for _, o := range p.Offsets {
		from := "none"
		if o.Committed >= 0 {
			from = fmt.Sprint(o.Committed)
		}
		fmt.Fprintf(&b, "                %s/%d   %s → %d\n", o.Topic, o.Partition, from, o.Next)
	}
	for _, name := range slices.Concat(p.Topics, p.IDLogs) {
		fmt.Fprintf(&b, "  topic         delete %s (%d partitions)\n", name, p.there[name].partitions)
	}
	for _, id := range p.TransactionalIDs {
		fmt.Fprintf(&b, "  transactions  fence %s\n", id)
	}
	if p.StateThere {
		fmt.Fprintf(&b, "  local state   delete %s   on this machine only\n", p.StateDir)
	}
	b.WriteString("  ! local state on other machines is of topics that are no more: it is discarded at their next start\n")
	for _, name := range p.Outputs {
		fmt.Fprintf(&b, "  ! what is in %s stays; records will be written again\n", name)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
