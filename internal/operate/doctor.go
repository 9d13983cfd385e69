package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/serde/registry"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// Severity of a Finding.
type Severity string

// The severities.
const (
	Fine    Severity = "ok"
	Warning Severity = "warning"
	Failure Severity = "error"
)

// Finding is the outcome of one check.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy,omitempty"`

	kind error // what it comes to for the exit code; nil: broker.ErrConfig's
}

// Examination is what Doctor has found.
type Examination struct {
	Pipeline string    `json:"pipeline"`
	Findings []Finding `json:"findings"`
}

// ErrUnfit: this machine or this cluster cannot run the pipeline. Why has been printed.
var ErrUnfit = errors.New("the pipeline cannot run here")

// doctor collects findings.
type doctor struct {
	*client
	p    *pipeline.Pipeline
	topo *topology.Topology
	out  *Examination

	clusterID string
}

func (d *doctor) note(check string, s Severity, remedy, format string, args ...any) *Finding {
	d.out.Findings = append(d.out.Findings, Finding{Check: check, Severity: s, Message: fmt.Sprintf(format, args...), Remedy: remedy})
	return &d.out.Findings[len(d.out.Findings)-1]
}

// Doctor looks whether a pipeline can run on its cluster, with its state in dir. It changes nothing, but that the
// target of a sink gets its table of progress. The error is for what kept it
// from looking.
func Doctor(ctx context.Context, p *pipeline.Pipeline, dir string) (*Examination, error) {
	topo, err := p.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	c, err := connect(p.Kafka)
	if err != nil {
		return nil, err
	}
	defer c.close()
	d := &doctor{client: c, p: p, topo: topo, out: &Examination{Pipeline: p.Name}}
	for _, check := range []func(context.Context) error{d.cluster, d.topics, d.group} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	d.targets(ctx)
	d.schemas(ctx)
	d.state(dir)
	d.disk(dir)
	d.sources(ctx)
	return d.out, nil
}

// targetTimeout is how long the target of a sink may take to answer.
const targetTimeout = 10 * time.Second

// targets lets the targets of sinks look whether they can be written to, as a start does.
func (d *doctor) targets(ctx context.Context) {
	for _, s := range d.topo.Subtopologies() {
		if s.External == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, targetTimeout)
		target := s.External.Target
		err := target.Check(ctx)
		check := "sink " + s.External.Name
		if err == nil {
			d.prepared(ctx, check, s)
		}
		err = errors.Join(err, target.Close())
		cancel()
		var setup *sink.SetupError
		switch {
		case err == nil:
			d.note(check, Fine, "", "its target can be written to; class %s", target.Class())
		case errors.As(err, &setup):
			d.note(check, Failure, setup.Remedy, "%v", setup.Err).kind = err
		default:
			d.note(check, Failure, "a start waits for it, until --startup-timeout", "its target does not answer: %v", err).kind = processor.ErrTarget
		}
	}
}

// schemas asks the schema registry what a start will ask it, and registers nothing.
func (d *doctor) schemas(ctx context.Context) {
	for _, p := range d.p.ProbeSchemas(ctx) {
		switch check := "schemas"; {
		case p.Unknown:
			d.note(check, Warning, "fine if whoever writes the topic names its subjects in another way: values are read by the ID that they carry", "%s: %s", p.Name, p.Found)
		case p.Err == nil:
			d.note(check, Fine, "", "%s: %s", p.Name, p.Found)
		case errors.Is(p.Err, registry.ErrDenied):
			d.note(check, Failure, "correct username and password, token or token_file of kafka.schema_registry, or the rights of who they belong to", "%s: %v", p.Name, p.Err).kind = daemon.ErrDenied
		case errors.Is(p.Err, serde.ErrUnavailable):
			d.note(check, Failure, "look after the registry, or correct kafka.schema_registry.url: a start waits for it, until --startup-timeout", "%s: %v", p.Name, p.Err).kind = daemon.ErrNotReachable
		default:
			d.note(check, Failure, "correct the step, or the subject in the registry", "%s: %v", p.Name, p.Err)
		}
	}
}

// state looks whether the state directory may be used with this cluster.
func (d *doctor) state(dir string) {
	key, old, err := daemon.StateKeys(d.p)
	if err != nil {
		d.note("state", Failure, "correct state.key_file, or the file's owner and mode", "%v", err)
		return
	}
	switch err := txlog.Check(dir, d.p.Name, d.clusterID, key, old); {
	case err == nil:
	case errors.Is(err, txlog.ErrKey): // it says what to do
		d.note("state", Failure, "", "%s", strings.TrimPrefix(err.Error(), "txlog: "))
	default:
		d.note("state", Failure, fmt.Sprintf("use another --data-dir, or remove %s if what it was filled from is gone for good", dir), "%s", strings.TrimPrefix(err.Error(), "txlog: "))
	}
}

// sources looks at what brings records in. Whether a port is free is not asked: the pipeline may be running.
func (d *doctor) sources(ctx context.Context) {
	for _, s := range d.p.Sources {
		if s.Ingress == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, targetTimeout)
		err := daemon.CheckSource(ctx, d.p, s)
		cancel()
		var setup *ingress.SetupError
		switch {
		case errors.As(err, &setup):
			d.note("sources", Failure, setup.Remedy, "source %q: %v", s.Name, setup.Err).kind = err
			continue
		case err != nil && s.Ingress.Table != nil:
			d.note("sources", Failure, "a start waits for it, until --startup-timeout", "%v", err).kind = daemon.ErrDatabase
			continue
		case err != nil:
			d.note("sources", Failure, "correct the pipeline file, or the file that it names", "%v", err)
			continue
		}
		d.note("sources", Fine, "", "%s: topic %s%s", s.Name, s.Topic, s.Ingress.Way())
	}
}

// cluster looks at the brokers.
func (d *doctor) cluster(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, d.kgo)
	if err != nil {
		return failed("brokers", err)
	}
	versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, d.kgo)
	if err != nil {
		return failed("versions", err)
	}
	transactions := "v1"
	for _, f := range versions.FinalizedFeatures {
		if f.Name == "transaction.version" && f.MaxVersionLevel >= 2 {
			transactions = "v2"
		}
	}
	s, remedy := Fine, ""
	if len(resp.Brokers) < 3 {
		s, remedy = Warning, "run at least three, with replication factor 3 and min.insync.replicas 2: fine for trying things only"
	}
	if resp.ClusterID != nil {
		d.clusterID = *resp.ClusterID
	}
	d.note("kafka", s, remedy, "%s; transactions %s", daemon.Plural(len(resp.Brokers), "broker"), transactions)
	// What the engine's transactions need (KIP-98, KIP-447).
	for _, api := range []struct {
		key   kmsg.Key
		least int16
	}{{kmsg.InitProducerID, 3}, {kmsg.TxnOffsetCommit, 3}, {kmsg.OffsetFetch, 7}} {
		i := slices.IndexFunc(versions.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == int16(api.key) })
		if i < 0 || versions.ApiKeys[i].MaxVersion < api.least {
			d.note("kafka", Failure, "use Apache Kafka 2.5 or later", "the brokers do not know %s version %d", api.key.Name(), api.least)
		}
	}
	return nil
}

// need is what the pipeline does with a topic.
type need struct {
	name, use  string
	operations []kmsg.ACLOperation
	made       bool // it is made at the start if it is missing
}

// needs lists the topics of the pipeline. Internal ones may be missing: they are made at the start.
func needs(p *pipeline.Pipeline, topo *topology.Topology) (users, internal []need) {
	add := func(list *[]need, name, use string, ops ...kmsg.ACLOperation) {
		for i := range *list {
			if n := &(*list)[i]; n.name == name {
				for _, op := range ops {
					if !slices.Contains(n.operations, op) {
						n.operations = append(n.operations, op)
					}
				}
				return
			}
		}
		*list = append(*list, need{name: name, use: use, operations: ops})
	}
	const read, write, describe = kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe
	for _, s := range topo.Subtopologies() {
		for _, x := range s.Sources {
			if x.Internal {
				add(&internal, topo.SourceTopic(x), "repartition", read, write, describe)
			} else {
				add(&users, x.Topic, "input", read, describe)
			}
		}
		if s.External != nil && s.External.Target.Class() == sink.TwoPhase {
			// Its first decision deletes a record: without the right the sink stops there. Elsewhere written records only stay.
			add(&internal, topo.SourceTopic(s.Sources[0]), "sink", kmsg.ACLOperationDelete)
		}
		for _, x := range s.Sinks {
			if !x.Internal {
				add(&users, topo.SinkTopic(x), "output", write, describe)
			}
		}
		if s.Stateful() {
			add(&internal, topo.IDLogTopic(s), "ID log", read, write, describe)
		}
		for _, st := range s.Stores {
			add(&internal, topo.StoreTopic(st.Name), "state", read, write, describe)
		}
	}
	for _, g := range topo.Globals() {
		add(&users, g.Topic, "global table", read, describe)
	}
	if t := p.Errors.DeadLetterTopic; t != "" {
		add(&users, t, "dead letters", write, describe)
	}
	for _, s := range p.Sources {
		if s.Ingress != nil {
			add(&users, s.Topic, "input", write)
			users[slices.IndexFunc(users, func(n need) bool { return n.name == s.Topic })].made = true
			if s.Ingress.File != nil {
				add(&internal, pipeline.PositionsTopic(p.Name, s.Name), "positions", read, write, describe)
			}
		}
	}
	return users, internal
}

// Topics are the names of the topics that must be there before the pipeline runs.
func Topics(p *pipeline.Pipeline) (names []string, err error) {
	topo, err := p.Topology()
	if err != nil {
		return nil, err
	}
	users, _ := needs(p, topo)
	for _, n := range users {
		if !n.made {
			names = append(names, n.name)
		}
	}
	return names, nil
}

// topics looks at the topics of the pipeline, and at the rights to use them.
func (d *doctor) topics(ctx context.Context) error {
	users, internal := needs(d.p, d.topo)
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	uses := map[string]need{}
	for _, n := range slices.Concat(users, internal) {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(n.name)
		req.Topics = append(req.Topics, t)
		uses[n.name] = n
	}
	resp, err := req.RequestWith(ctx, d.kgo)
	if err != nil {
		return failed("topics", err)
	}
	slices.SortFunc(resp.Topics, func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(*a.Topic, *b.Topic) })
	there, toMake := []string{}, 0
	for _, t := range resp.Topics {
		n := uses[*t.Topic]
		missing := errors.Is(kerr.ErrorForCode(t.ErrorCode), kerr.UnknownTopicOrPartition)
		isInternal := slices.ContainsFunc(internal, func(x need) bool { return x.name == n.name })
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case missing && isInternal:
			toMake++
		case missing && n.made:
			d.note("topics", Fine, "", "%s topic %s will be made at the first start", n.use, n.name)
		case missing:
			d.note("topics", Failure, fmt.Sprintf("kafka-topics.sh --create --topic %s --partitions N --bootstrap-server BROKER; in the broker of streamd dev: start that with the pipeline file, or with --topic %s:N", n.name, n.name), "%s topic %s does not exist", n.use, n.name)
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			d.note("acl", Failure, d.aclTopic(n), "%s topic %s may not even be described", n.use, n.name).kind = broker.ErrAuthorization
		case err != nil:
			return failed("topic "+n.name, err)
		default:
			there = append(there, n.name+" "+daemon.Plural(len(t.Partitions), "partition"))
			d.rights(n, t.AuthorizedOperations)
			d.replicas(n, t)
		}
	}
	if len(there) > 0 {
		d.note("topics", Fine, "", "%s", strings.Join(there, ", "))
	}
	if toMake > 0 {
		d.note("topics", Fine, "", "%s will be made at the first start", daemon.Plural(toMake, "internal topic"))
	}
	return d.retention(ctx, users)
}

// unknownOperations is what a broker says that does not tell.
const unknownOperations = -1 << 31

// rights compares what is allowed with what is needed.
func (d *doctor) rights(n need, allowed int32) {
	if allowed == unknownOperations {
		return
	}
	for _, op := range n.operations {
		if allowed&(1<<uint(op)) == 0 {
			d.note("acl", Failure, d.aclTopic(n), "%s is not allowed on %s topic %s", op, n.use, n.name).kind = broker.ErrAuthorization
		}
	}
}

func (d *doctor) replicas(n need, t kmsg.MetadataResponseTopic) {
	for _, p := range t.Partitions {
		if p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
			d.note("topics", Warning, "look after the brokers", "%s/%d has %d of %d replicas in sync", n.name, p.Partition, len(p.ISR), len(p.Replicas))
		}
	}
}

// retention compares how long inputs are kept with how long IDs are remembered.
func (d *doctor) retention(ctx context.Context, users []need) error {
	longest := time.Duration(0)
	for _, s := range d.topo.Subtopologies() {
		for _, x := range s.Dedups {
			if longest == 0 || x.Config.Retention < longest {
				longest = x.Config.Retention
			}
		}
	}
	if longest == 0 {
		return nil
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, n := range users {
		if n.use == "input" {
			r := kmsg.NewDescribeConfigsRequestResource()
			r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, n.name, []string{"retention.ms"}
			req.Resources = append(req.Resources, r)
		}
	}
	for _, shard := range d.kgo.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return failed("configuration of topics", shard.Err)
		}
		for _, r := range shard.Resp.(*kmsg.DescribeConfigsResponse).Resources {
			for _, c := range r.Configs {
				var ms int64
				if c.Name != "retention.ms" || c.Value == nil {
					continue
				}
				if _, err := fmt.Sscan(*c.Value, &ms); err != nil {
					continue
				}
				kept := time.Duration(min(ms, int64(1<<62/time.Millisecond))) * time.Millisecond
				if ms < 0 || kept > longest {
					d.note("retention", Warning, "raise the retention of the dedup step, or never read the topic from its start again",
						"%s keeps records for %s, IDs are remembered for %s: reading it again would count records again", r.ResourceName, keptText(ms, kept), longest)
				}
			}
		}
	}
	return nil
}

func keptText(ms int64, d time.Duration) string {
	if ms < 0 {
		return "ever"
	}
	return d.String()
}

// group looks at the consumer group.
func (d *doctor) group(ctx context.Context) error {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{d.p.Name}, true
	resp, err := req.RequestWith(ctx, d.kgo)
	if err != nil {
		return failed("group", err)
	}
	for _, g := range resp.Groups {
		switch err := kerr.ErrorForCode(g.ErrorCode); {
		case errors.Is(err, kerr.GroupIDNotFound):
			d.note("group", Fine, "", "%s is new", d.p.Name)
		case errors.Is(err, kerr.GroupAuthorizationFailed):
			d.note("acl", Failure, d.aclGroup(), "group %s may not be used", d.p.Name).kind = broker.ErrAuthorization
		case err != nil:
			return failed("group", err)
		default:
			if a := g.AuthorizedOperations; a != unknownOperations && a&(1<<uint(kmsg.ACLOperationRead)) == 0 {
				d.note("acl", Failure, d.aclGroup(), "READ is not allowed on group %s", d.p.Name).kind = broker.ErrAuthorization
			}
			d.note("group", Fine, "", "%s has %s", d.p.Name, daemon.Plural(len(g.Members), "member"))
		}
	}
	return nil
}

// leastDisk is what a state directory should have left: below it the engine stops reading (ADR 0009).
const leastDisk = 1 << 30

func (d *doctor) disk(dir string) {
	if err := daemon.Writable(dir); err != nil {
		// Another user may be meant to run it: hence no failure.
		d.note("disk", Warning, "give its user the right to write there, or choose another --data-dir", "%s: this user cannot write there: %v", dir, err)
		return
	}
	free, total, err := daemon.DiskSpace(dir)
	if err != nil {
		d.note("disk", Warning, "", "%s: %v", dir, err)
		return
	}
	d.room(dir, free, total)
}

func (d *doctor) room(dir string, free, total uint64) {
	const remedy = "make room, or choose another --data-dir"
	switch {
	case free < txlog.DefaultMinFreeBytes:
		d.note("disk", Failure, remedy, "%s: only %d MiB free: nothing is written below %d MiB", dir, free>>20, txlog.DefaultMinFreeBytes>>20).kind = txlog.ErrDiskFull
	case free < leastDisk || free < total/20:
		d.note("disk", Warning, remedy, "%s: only %.1f GiB of %.1f GiB free", dir, gib(free), gib(total))
	default:
		d.note("disk", Fine, "", "%s: %.1f GiB of %.1f GiB free", dir, gib(free), gib(total))
	}
}

func gib(n uint64) float64 { return float64(n) / (1 << 30) }

// Err is what the command ends with.
func (e *Examination) Err() error {
	var errs []error
	for _, f := range e.Findings {
		if f.Severity == Failure {
			kind := f.kind
			if kind == nil {
				kind = daemon.ErrConfig
			}
			if !slices.Contains(errs, kind) { // of each, one is enough: the findings have been printed
				errs = append(errs, kind)
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnfit, errors.Join(errs...))
}

// Write prints the findings, with what can be done about them.
func (e *Examination) Write(w io.Writer) error {
	marks := map[Severity]string{Fine: "✓", Warning: "!", Failure: "✗"}
	var b strings.Builder
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "%s %-10s  %s\n", marks[f.Severity], f.Check, f.Message)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "              %s\n", strings.ReplaceAll(f.Remedy, "\n", "\n              "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
