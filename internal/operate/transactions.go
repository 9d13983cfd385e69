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
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/topology"
)

// maxReaders is how many consumer groups are asked for their offsets.
const maxReaders = 500

// Transactions is what is open, on the cluster or in the topics of a pipeline.
type Transactions struct {
	Pipeline string        `json:"pipeline"`
	Open     []Transaction `json:"open"`
	// Hanging are open in a partition though no coordinator tells of them. Either none will ever end them, or the user who asks may not
	// describe their transactional IDs: coordinators are silent about those.
	Hanging []Hanging `json:"hanging"`
	Notes   []string  `json:"notes,omitempty"` // what could not be found out
}

// Transaction is an open transaction.
type Transaction struct {
	ID       string        `json:"transactional_id"`
	State    string        `json:"state"` // Kafka's: Ongoing, PrepareCommit, PrepareAbort
	Owner    string        `json:"owner"`
	Producer int64         `json:"producer_id"`
	Epoch    int16         `json:"producer_epoch"`
	Started  time.Time     `json:"started"`
	Timeout  time.Duration `json:"timeout_ns"` // after which the coordinator aborts it
	// Partitions are those that it has written to. That of consumer offsets is left out.
	Partitions []HeldPartition `json:"partitions"`
}

// Hanging is a transaction that nobody will end.
type Hanging struct {
	HeldPartition
	Producer int64     `json:"producer_id"`
	Epoch    int32     `json:"producer_epoch"`
	Last     time.Time `json:"last_write"`
	// ID and Decided are its transactional ID and what its coordinator has decided, commit or abort; "" if that was not found.
	ID      string `json:"transactional_id,omitempty"`
	Decided string `json:"decided,omitempty"`
	// Remedy is how to end it, or why that must not be done.
	Remedy string `json:"remedy"`
	// Done is what EndHanging did about it, "" before.
	Done string `json:"done,omitempty"`

	sequence    int32 // of the producer's last record there: it tells whether something was written since
	coordinator int32 // epoch of the one that wrote its producer's last marker there, -1 if none did; of the last look
}

// HeldPartition is a partition that read_committed readers cannot read further.
type HeldPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"` // its first record; -1: not known
	Stable    int64  `json:"stable"`
	End       int64  `json:"end"`
	// Readers are the groups with offsets there.
	Readers []Reader `json:"readers"`
}

// Reader is a consumer group. Whether it reads read_committed is its own matter and known to nobody else.
type Reader struct {
	Group string `json:"group"`
	Next  int64  `json:"next"`
	// Waits says that it has read all that can be read.
	Waits bool `json:"waits"`
}

// InspectTransactions lists open transactions: those of the pipeline's name and those in its topics; with all, those of the whole cluster.
func InspectTransactions(ctx context.Context, p *pipeline.Pipeline, all bool) (*Transactions, error) {
	topo, err := p.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	c, err := connect(p.Kafka)
	if err != nil {
		return nil, err
	}
	defer c.close()
	x := &inspection{client: c, out: &Transactions{Pipeline: p.Name, Open: []Transaction{}, Hanging: []Hanging{}}, all: all, topics: map[string]bool{}, prefix: p.Name + "-"}
	for _, n := range topicsOf(p, topo) {
		x.topics[n] = true
	}
	for _, step := range []func(context.Context) error{x.open, x.hanging, x.readers, x.owners} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return x.out, nil
}

// topicsOf are the topics that a pipeline reads and writes.
func topicsOf(p *pipeline.Pipeline, topo *topology.Topology) []string {
	users, internal := needs(p, topo)
	var out []string
	for _, n := range slices.Concat(users, internal) {
		out = append(out, n.name)
	}
	return out
}

type inspection struct {
	*client
	out    *Transactions
	all    bool
	topics map[string]bool
	prefix string // of the pipeline's transactional IDs
	bounds map[rawlog.Partition]rawlog.Bounds
}

// listed are the transactions that the coordinators say to be open.
func (x *inspection) listed(ctx context.Context) (out []kmsg.ListTransactionsResponseTransactionState, err error) {
	for _, shard := range x.kgo.RequestSharded(ctx, kmsg.NewPtrListTransactionsRequest()) {
		if shard.Err != nil {
			return nil, failed("list transactions", shard.Err)
		}
		resp := shard.Resp.(*kmsg.ListTransactionsResponse)
		if err := failedCode("list transactions", resp.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range resp.TransactionStates {
			if openState(t.TransactionState) {
				out = append(out, t)
			}
		}
	}
	return out, nil
}

// described are the open transactions of all coordinators, with their partitions.
func (x *inspection) described(ctx context.Context) (out []kmsg.DescribeTransactionsResponseTransactionState, err error) {
	listed, err := x.listed(ctx)
	if err != nil || len(listed) == 0 {
		return nil, err
	}
	req := kmsg.NewPtrDescribeTransactionsRequest()
	for _, t := range listed {
		req.TransactionalIDs = append(req.TransactionalIDs, t.TransactionalID)
	}
	slices.Sort(req.TransactionalIDs)
	for _, shard := range x.kgo.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, failed("describe transactions", shard.Err)
		}
		for _, t := range shard.Resp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
			err := kerr.ErrorForCode(t.ErrorCode)
			if errors.Is(err, kerr.TransactionalIDNotFound) || err == nil && !openState(t.State) {
				continue // it has ended meanwhile
			}
			if err != nil {
				return nil, failed(fmt.Sprintf("describe transaction %q", t.TransactionalID), err)
			}
			out = append(out, t)
		}
	}
	return out, nil
}

// open asks the coordinators.
func (x *inspection) open(ctx context.Context) error {
	all, err := x.described(ctx)
	for _, t := range all {
		x.add(t)
	}
	slices.SortFunc(x.out.Open, func(a, b Transaction) int { return a.Started.Compare(b.Started) })
	return err
}

func openState(s string) bool { return s == "Ongoing" || strings.HasPrefix(s, "Prepare") }

func (x *inspection) add(t kmsg.DescribeTransactionsResponseTransactionState) {
	out := Transaction{
		ID: t.TransactionalID, State: t.State, Owner: "another program", Producer: t.ProducerID, Epoch: t.ProducerEpoch, Partitions: []HeldPartition{},
		Started: time.UnixMilli(t.StartTimestamp).UTC(), Timeout: time.Duration(t.TimeoutMillis) * time.Millisecond,
	}
	ours := x.all || strings.HasPrefix(t.TransactionalID, x.prefix)
	for _, topic := range t.Topics {
		ours = ours || x.topics[topic.Topic]
		if topic.Topic == broker.OffsetsTopic {
			continue // what it holds up there are offsets, and not records
		}
		for _, p := range topic.Partitions {
			out.Partitions = append(out.Partitions, HeldPartition{Topic: topic.Topic, Partition: p, From: -1, Readers: []Reader{}})
		}
	}
	if !ours {
		return
	}
	for _, p := range out.Partitions {
		x.topics[p.Topic] = true
	}
	x.out.Open = append(x.out.Open, out)
}

// held calls fn for every partition that something is open in.
func (x *inspection) held(fn func(*HeldPartition)) {
	for i := range x.out.Open {
		for j := range x.out.Open[i].Partitions {
			fn(&x.out.Open[i].Partitions[j])
		}
	}
	for i := range x.out.Hanging {
		fn(&x.out.Hanging[i].HeldPartition)
	}
}

// readers finds the groups that read the partitions.
func (x *inspection) readers(ctx context.Context) error {
	any := false
	x.held(func(h *HeldPartition) {
		b := x.bounds[rawlog.Partition{Topic: h.Topic, Number: h.Partition}]
		h.Stable, h.End, any = b.Stable, b.End, true
	})
	if !any {
		return nil
	}
	groups, err := x.groupsBelow(ctx, "")
	if err != nil {
		return err
	}
	slices.Sort(groups)
	if len(groups) > maxReaders {
		x.out.Notes = append(x.out.Notes, fmt.Sprintf("only the first %d of %d consumer groups were asked for their offsets", maxReaders, len(groups)))
		groups = groups[:maxReaders]
	}
	for _, g := range groups {
		offsets, err := x.offsetsOf(ctx, g)
		if err != nil {
			x.out.Notes = append(x.out.Notes, err.Error())
			continue
		}
		x.held(func(h *HeldPartition) {
			if next, ok := offsets[rawlog.Partition{Topic: h.Topic, Number: h.Partition}]; ok {
				h.Readers = append(h.Readers, Reader{g, next, next >= h.Stable})
			}
		})
	}
	return nil
}

// offsetsOf returns what a group has committed, also beside a transaction that holds offsets: it must not wait for what it is to explain.
func (x *inspection) offsetsOf(ctx context.Context, group string) (map[rawlog.Partition]int64, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	req.Groups = append(req.Groups, g)
	what := fmt.Sprintf("offsets of group %q", group)
	resp, err := req.RequestWith(ctx, x.kgo)
	if err != nil {
		return nil, failed(what, err)
	}
	out := map[rawlog.Partition]int64{}
	for _, g := range resp.Groups {
		if err := failedCode(what, g.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if p.Offset >= 0 {
					out[rawlog.Partition{Topic: t.Topic, Number: p.Partition}] = p.Offset
				}
			}
		}
	}
	return out, nil
}

// owners names the instances behind the pipeline's transactional IDs, which are NAME-INSTANCE-NUMBER, and sources outside of Kafka.
func (x *inspection) owners(ctx context.Context) error {
	if len(x.out.Open) == 0 {
		return nil
	}
	members, err := x.Members(ctx, x.out.Pipeline)
	if err != nil && !errors.Is(err, broker.ErrAuthorization) {
		return err
	}
	for i := range x.out.Open {
		t := &x.out.Open[i]
		if topic, ok := strings.CutPrefix(t.ID, settlerID("")); ok {
			t.Owner = "streamd dlq, on the dead letters in topic " + topic
			continue
		}
		if source, owner, ok := pipeline.IngressOwner(x.out.Pipeline, t.ID); ok {
			t.Owner = fmt.Sprintf("source %s, of %s", source, owner)
			continue
		}
		rest, ours := strings.CutPrefix(t.ID, x.prefix)
		if !ours {
			continue
		}
		instance := rest
		if at := strings.LastIndexByte(rest, '-'); at >= 0 {
			instance = rest[:at]
		}
		t.Owner = fmt.Sprintf("instance %s, which is no member of the group", instance)
		for _, m := range members {
			if m.Instance == instance {
				t.Owner = fmt.Sprintf("instance %s on %s", instance, m.Host)
			}
		}
	}
	return nil
}

// Write prints the transactions for a reader.
func (t *Transactions) Write(w io.Writer, now time.Time) error {
	var b strings.Builder
	held := func(h *HeldPartition) {
		fmt.Fprintf(&b, "  %s/%d   ", Printable(h.Topic), h.Partition)
		if h.From >= 0 {
			fmt.Fprintf(&b, "from offset %d, ", h.From)
		}
		fmt.Fprintf(&b, "%d offsets behind the last stable one\n", h.End-h.Stable)
		for _, r := range h.Readers {
			state := fmt.Sprintf("%d before it", h.Stable-r.Next)
			if r.Waits {
				state = "waits, if it reads read_committed"
			}
			fmt.Fprintf(&b, "    read by %s   %s\n", Printable(r.Group), state)
		}
	}
	for i := range t.Open {
		x := &t.Open[i]
		age := now.Sub(x.Started).Truncate(time.Millisecond)
		late := ""
		if age > x.Timeout {
			late = "   ! older than its timeout: is its coordinator alive?"
		}
		fmt.Fprintf(&b, "%s   %s for %v, is aborted after %v%s\n  owner   %s   producer %d, epoch %d\n", Printable(x.ID), x.State, age, x.Timeout, late, Printable(x.Owner), x.Producer, x.Epoch)
		for j := range x.Partitions {
			held(&x.Partitions[j])
		}
	}
	for i := range t.Hanging {
		x := &t.Hanging[i]
		fmt.Fprintf(&b, "! hanging: producer %d, epoch %d, last write %v ago; no coordinator tells of it in this partition: nobody will end it, if this user may describe all transactional IDs\n", x.Producer, x.Epoch, now.Sub(x.Last).Truncate(time.Millisecond))
		held(&x.HeldPartition)
		fmt.Fprintf(&b, "  fix   %s\n", Printable(x.Remedy))
	}
	fmt.Fprintf(&b, "%d open, %d hanging\n", len(t.Open), len(t.Hanging))
	return t.writeNotes(w, &b)
}

// AbortTransaction fences a transactional ID: what it has open is aborted, and whoever has it is refused.
func AbortTransaction(ctx context.Context, p *pipeline.Pipeline, id string) error {
	c, err := connect(p.Kafka)
	if err != nil {
		return err
	}
	defer c.close()
	return c.fence(ctx, id)
}

// Find returns an open transaction. daemon.ErrConfig: there is none of that name.
func (t *Transactions) Find(id string) (*Transaction, error) {
	for i := range t.Open {
		if t.Open[i].ID == id {
			return &t.Open[i], nil
		}
	}
	return nil, fmt.Errorf("%w: no open transaction is called %q: what is open is listed without --abort, of the whole cluster with --all", daemon.ErrConfig, id)
}
