package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
)

// ruling is what a coordinator's log says of one hanging transaction.
type ruling struct {
	id      string
	decided string // commit or abort, "" while it is not
	over    bool   // the coordinator holds all its markers to be written
}

// decisions looks up what the coordinators have decided about the hanging ones: to abort what was committed loses it.
func (x *inspection) decisions(ctx context.Context) error {
	if len(x.out.Hanging) == 0 {
		return nil
	}
	rulings := make([]ruling, len(x.out.Hanging))
	bounds, err := x.Bounds(ctx, broker.TransactionsTopic)
	if err == nil {
		err = x.Read(ctx, rawlog.Spans(bounds), func(r rawlog.Record) error { return x.rule(rulings, r) })
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		x.out.Notes = append(x.out.Notes, "what the coordinators have decided about the hanging ones is not known: "+err.Error())
		clear(rulings) // of half a log the last decision is not the last
	}
	for i := range x.out.Hanging {
		x.out.Hanging[i].take(rulings[i])
	}
	return nil
}

// rule takes over one record of a coordinator's log.
//
// What hangs in a partition is what was written there last, under the epoch that its leader tells: it belongs to the last transaction that was begun
// under this epoch and names the partition. A later one under a newer epoch has written nothing there, or the leader would tell its epoch.
// Where that one began is in the log, all that came after is, too: compaction keeps the newest record of an ID, and all behind it. So that what was
// compacted away leaves no decision, never another's. The decision itself may stand under the next epoch: that of whoever fenced the producer, and of every
// decision of transaction protocol V2 (KIP-890).
func (x *inspection) rule(rulings []ruling, r rawlog.Record) error {
	var key kmsg.TxnMetadataKey
	if err := key.ReadFrom(r.Key); err != nil {
		return fmt.Errorf("offset %d of %s: %w", r.Offset, r.Partition, err)
	}
	v := kmsg.TxnMetadataValue{State: kmsg.TransactionStateDead}
	if r.Value == nil { // the ID is forgotten, which happens long after its transactions are over
	} else if err := v.ReadFrom(r.Value); err != nil || v.Version > 1 {
		return fmt.Errorf("offset %d of %s: the state of %q in version %d: %w", r.Offset, r.Partition, key.TransactionalID, v.Version, cmp.Or(err, errUnknownState))
	}
	for i := range rulings {
		h, u := &x.out.Hanging[i], &rulings[i]
		named := v.ProducerID == h.Producer && slices.ContainsFunc(v.Topics, func(t kmsg.TxnMetadataValueTopic) bool {
			return t.Topic == h.Topic && slices.Contains(t.Partitions, h.Partition)
		})
		epoch := int32(v.ProducerEpoch)
		switch v.State {
		case kmsg.TransactionStateOngoing:
			if named && epoch == h.Epoch {
				*u = ruling{id: key.TransactionalID}
			}
		case kmsg.TransactionStatePrepareCommit, kmsg.TransactionStatePrepareAbort:
			if named && u.id == key.TransactionalID && u.decided == "" && (epoch == h.Epoch || epoch == h.Epoch+1) {
				u.decided = map[bool]string{true: "commit", false: "abort"}[v.State == kmsg.TransactionStatePrepareCommit]
			}
		case kmsg.TransactionStateCompleteCommit, kmsg.TransactionStateCompleteAbort, kmsg.TransactionStateEmpty, kmsg.TransactionStateDead:
			u.over = u.over || u.id == key.TransactionalID && u.decided != ""
		}
	}
	return nil
}

var errUnknownState = errors.New("a newer Kafka than this program knows")

// take says what may be done about a hanging transaction.
func (h *Hanging) take(u ruling) {
	h.ID = u.id
	abort := fmt.Sprintf("kafka-transactions.sh --bootstrap-server BROKER abort --topic %s --partition %d --start-offset %d", h.Topic, h.Partition, h.From)
	switch {
	case u.id != "" && !u.over:
		h.Remedy = "none yet: its coordinator has it open or is ending it, and this user may not describe its ID, or it has been begun just now"
		return
	case u.decided == "commit":
		h.Remedy = "--end-hanging; do not abort it: its coordinator has decided to commit, and its records would be lost"
	case u.decided == "abort":
		h.Remedy = "--end-hanging, or " + abort
	default:
		h.Remedy = "only if it is known that it was not committed: " + abort
	}
	h.Decided = u.decided
}

// ended is how Done begins of what was ended.
const ended = "ended: "

// EndHanging writes the markers that were left out, as the coordinators have decided, and says in Done what it did about each. It returns how
// many it has ended. One whose decision is not known is left, and one that is not as it was listed: a marker would end, too, what
// its producer has written since. The errors are of those that could not be ended; the others are.
func EndHanging(ctx context.Context, p *pipeline.Pipeline, list *Transactions) (n int, err error) {
	c, err := connect(p.Kafka)
	if err != nil {
		return 0, err
	}
	defer c.close()
	x := &inspection{client: c, out: &Transactions{}}
	var failures []error
	for i := range list.Hanging {
		h := &list.Hanging[i]
		if h.Decided == "" {
			h.Done = "left: its decision is not known"
			continue
		}
		switch same, err := x.still(ctx, h); {
		case err != nil:
			h.Done = "left: " + err.Error()
			failures = append(failures, err)
		case !same:
			h.Done = "left: it is not as it was listed; list again"
		default:
			if err := x.mark(ctx, h); err != nil {
				h.Done = "failed: " + err.Error()
				failures = append(failures, err)
				continue
			}
			h.Done = ended + h.Decided
			n++
		}
	}
	return n, errors.Join(failures...)
}

// WriteHanging prints what EndHanging does, or has done, for a reader.
func (t *Transactions) WriteHanging(w io.Writer, executed bool) error {
	var b strings.Builder
	if len(t.Hanging) == 0 {
		fmt.Fprintln(&b, "None was found that hangs.")
		return t.writeNotes(w, &b)
	}
	fmt.Fprintln(&b, map[bool]string{false: "Plan (nothing done yet; add --execute): end as decided", true: "Done:"}[executed])
	n := 0
	for i := range t.Hanging {
		h := &t.Hanging[i]
		what := h.Done
		switch {
		case executed:
		case h.Decided == "":
			what = "left: " + h.Remedy
		default:
			what = h.Decided
		}
		if executed && strings.HasPrefix(what, ended) || !executed && h.Decided != "" {
			n++
		}
		fmt.Fprintf(&b, "  %s/%d from offset %d, producer %d (%s)   %s\n", Printable(h.Topic), h.Partition, h.From, h.Producer, Printable(cmp.Or(h.ID, "its name is not known")), Printable(what))
	}
	fmt.Fprintf(&b, "%d of %d\n", n, len(t.Hanging))
	return t.writeNotes(w, &b)
}

// writeNotes ends what is written with what could not be looked at.
func (t *Transactions) writeNotes(w io.Writer, b *strings.Builder) error {
	for _, note := range t.Notes {
		fmt.Fprintf(b, "! %s\n", Printable(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// still looks again whether a transaction hangs, and whether its producer has written nothing since it was listed.
func (x *inspection) still(ctx context.Context, h *Hanging) (bool, error) {
	t := kmsg.NewDescribeProducersRequestTopic()
	t.Topic, t.Partitions = h.Topic, []int32{h.Partition}
	req := kmsg.NewPtrDescribeProducersRequest()
	req.Topics = append(req.Topics, t)
	now, err := x.unended(ctx, req)
	a, hangs := now[opened{rawlog.Partition{Topic: h.Topic, Number: h.Partition}, h.Producer, h.From}]
	h.coordinator = a.CoordinatorEpoch
	return hangs && a.ProducerEpoch == h.Epoch && a.LastSequence == h.sequence, err
}

// mark writes the marker of one transaction, under the epoch that its records have: the leader refuses it if the producer has a newer one by now.
func (x *inspection) mark(ctx context.Context, h *Hanging) error {
	topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	topic.Topic, topic.Partitions = h.Topic, []int32{h.Partition}
	marker := kmsg.NewWriteTxnMarkersRequestMarker()
	marker.ProducerID, marker.ProducerEpoch, marker.Committed = h.Producer, int16(h.Epoch), h.Decided == "commit"
	// An older epoch than that of the coordinator which wrote the producer's last marker there is refused; -1: none did.
	marker.CoordinatorEpoch, marker.Topics = max(h.coordinator, 0), append(marker.Topics, topic)
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Markers = append(req.Markers, marker)
	what := fmt.Sprintf("end the transaction in %s/%d", h.Topic, h.Partition)
	answered := false
	for _, shard := range x.kgo.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return failed(what, shard.Err)
		}
		for _, m := range shard.Resp.(*kmsg.WriteTxnMarkersResponse).Markers {
			for _, t := range m.Topics {
				for _, at := range t.Partitions {
					if err := failedCode(what, at.ErrorCode); err != nil {
						return err
					}
					answered = true
				}
			}
		}
	}
	if !answered {
		return fmt.Errorf("operate: %s: the answer lacks the partition", what)
	}
	return nil
}
