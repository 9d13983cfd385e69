package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// ErrNotAll: some of the letters that were asked for could not be handled. The settlement names them.
var ErrNotAll = errors.New("not all of the dead letters could be handled")

// Limits of one transaction, and of what a settlement names.
const (
	settleRecords = 200
	settleBytes   = 512 << 10
	settleNamed   = 10
	// settlePasses is how often a transaction that failed is begun anew, after a look at what is done.
	settlePasses = 5
	// settleStable is how long an open transaction in the dead letter topic is waited for: what stands behind it cannot be read.
	settleStable = time.Minute
)

// Settlement is what is to be done about dead letters, or was.
type Settlement struct {
	Pipeline string      `json:"pipeline"`
	Topic    string      `json:"topic"`
	Action   LetterState `json:"action"` // Retried or Dropped
	Executed bool        `json:"executed"`
	// Letters is how many it is about. Done of them were done before, by an earlier run.
	Letters int64            `json:"letters"`
	Done    int64            `json:"done_before"`
	Targets map[string]int64 `json:"targets"` // records by topic that they go to
	First   []Letter         `json:"first"`   // the first few
	Refused []Refusal        `json:"refused"` // the first few
	// RefusedCount counts all that are refused.
	RefusedCount int64 `json:"refused_count"`
}

// Refusal is a letter that cannot be handled.
type Refusal struct {
	Place string `json:"place"`
	Why   string `json:"why"`
}

// Err is ErrNotAll if something was refused.
func (s *Settlement) Err() error {
	if s.RefusedCount == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d refused", ErrNotAll, s.RefusedCount)
}

func (s *Settlement) refuse(place, why string) {
	if s.RefusedCount++; len(s.Refused) < settleNamed {
		s.Refused = append(s.Refused, Refusal{place, why})
	}
}

// Plan says what Execute would do about the letters that the filter selects, and changes nothing.
func (d *Letters) Plan(ctx context.Context, action LetterState, f Filter) (*Settlement, error) {
	b, err := d.bounds(ctx)
	if err != nil {
		return nil, err
	}
	s := d.settlement(action)
	return s, d.collect(ctx, s, b, rawlog.Spans(b), f, nil, func(l *Letter, _ rawlog.Record) error {
		s.count(l)
		return nil
	})
}

func (d *Letters) settlement(action LetterState) *Settlement {
	return &Settlement{Pipeline: d.p.Name, Topic: d.Topic, Action: action, Targets: map[string]int64{}, First: []Letter{}, Refused: []Refusal{}}
}

func (s *Settlement) count(l *Letter) {
	s.Letters++
	if s.Action == Retried {
		s.Targets[l.source.Topic]++
	}
	if len(s.First) < settleNamed {
		s.First = append(s.First, *l)
	}
}

// collect calls fn for the letters that wait and can be handled; the others go into the settlement.
func (d *Letters) collect(ctx context.Context, s *Settlement, b map[rawlog.Partition]rawlog.Bounds, spans map[rawlog.Partition]rawlog.Span, f Filter,
	tooLarge map[Place]string, fn func(*Letter, rawlog.Record) error,
) error {
	found := map[Place]bool{}
	partitions := map[string]int32{}
	err := d.each(ctx, spans, f, func(l *Letter, r rawlog.Record) error {
		if len(f.Places) > 0 {
			found[l.at] = true
		}
		if l.State != Waiting {
			// What was named and is done is what a run that was killed has left; what was dropped is not retried by its name.
			if s.Done++; l.State != s.Action && len(f.Places) > 0 {
				s.Done--
				s.refuse(l.Place, "it was "+string(l.State))
			}
			return nil
		}
		why, large := tooLarge[l.at]
		if !large && s.Action == Retried {
			var err error
			if why, err = d.obstacle(ctx, l, partitions); err != nil {
				return err
			}
		}
		if why != "" {
			s.refuse(l.Place, why)
			return nil
		}
		return fn(l, r)
	})
	if err != nil {
		return err
	}
	for _, at := range f.Places {
		if !found[at] {
			s.refuse(at.String(), strings.TrimPrefix(d.absent(b, at).Error(), daemon.ErrConfig.Error()+": "))
		}
	}
	return nil
}

// obstacle says why a letter cannot go back to where it came from; empty: it can. partitions remembers what was asked for.
func (d *Letters) obstacle(ctx context.Context, l *Letter, partitions map[string]int32) (string, error) {
	if l.From == "" {
		return "it is the result of a window or a timer, or of another program: there is no record to send again", nil
	}
	if _, ours := d.inputs[l.source.Topic]; !ours {
		return fmt.Sprintf("topic %q is no input of pipeline %q", l.source.Topic, d.p.Name), nil
	}
	n, known := partitions[l.source.Topic]
	if !known {
		there, err := d.c.describe(ctx, []string{l.source.Topic})
		if err != nil {
			return "", err
		}
		n = there[l.source.Topic].partitions
		partitions[l.source.Topic] = n
	}
	if l.source.Number >= n {
		return fmt.Sprintf("%s does not exist (any more)", l.source), nil
	}
	return "", nil
}

// Execute carries out what Plan says. Each letter goes back, or is dropped, in one transaction with a note in the dead letter topic that it
// was: killed at any instruction, another run goes on with those that have no note.
//
// What holds that no letter is handled twice: the transactional ID is that of the dead letter topic, whichever pipeline of those that share it
// asks. Init fences whoever has it, waits until the last transaction of the one before is decided, and only then the topic is read, to the ends
// that it has afterwards. So what is read has every note that can ever come. Of several at once the last one to begin completes, the others end
// with daemon.ErrInUse.
func (d *Letters) Execute(ctx context.Context, action LetterState, f Filter, now func() time.Time) (*Settlement, error) {
	// The engine's own client: its producer never sends a request again that got no answer.
	cluster, err := daemon.OpenCluster(ctx, d.p.Kafka)
	if err != nil {
		return nil, err
	}
	defer cluster.Close() //nolint:errcheck // nothing is buffered
	t := &settling{d: d, cluster: cluster, s: d.settlement(action), f: f, now: now, tooLarge: map[Place]string{}, doubt: map[Place]bool{}}
	if t.clusterID, err = cluster.ID(ctx); err != nil {
		return nil, err
	}
	t.producer = cluster.NewProducer(broker.ProducerConfig{TransactionalID: settlerID(d.Topic)})
	defer t.producer.Close()
	for n := 1; ; n++ {
		err := t.pass(ctx)
		var large *broker.TooLargeError
		switch {
		case err == nil:
			t.s.Executed = true
			return t.s, nil
		case errors.As(err, &large) && large.Index/t.perLetter() < len(t.batch):
			t.tooLarge[t.batch[large.Index/t.perLetter()].at] = large.Error()
			n--
		case fenced(err):
			return nil, fmt.Errorf("operate: another streamd dlq works on the dead letters in topic %q since then, and goes on with them: %w; %d were done before that: %w",
				d.Topic, daemon.ErrInUse, t.s.Letters, err)
		case n == settlePasses || !errors.Is(err, errTransaction) || ctx.Err() != nil || errors.Is(err, broker.ErrAuthorization):
			return nil, fmt.Errorf("%w\n%d were done before that; run it again: it goes on where it stopped", err, t.s.Letters)
		}
	}
}

// settlerID is the transactional ID of whoever settles the letters of a topic. See docs/format.md.
func settlerID(topic string) string { return "streamd-dlq-" + topic }

// fenced says whether another settlement has taken the transactional ID. Init knows for sure; but to ask it again would fence the other one on
// brokers that let an old epoch be renewed, and both would go on taking the ID from each other. A commit is given up before its coordinator
// ends the transaction, so that an old epoch means nothing else there, but for a process that was suspended, which is to be run again as well.
func fenced(err error) bool {
	var e *broker.Error
	if !errors.As(err, &e) {
		return false
	}
	code := kerr.ErrorForCode(e.Code)
	return errors.Is(e, broker.ErrFenced) || errors.Is(code, kerr.ProducerFenced) || errors.Is(code, kerr.InvalidProducerEpoch)
}

// errTransaction: a transaction did not commit, or it is not known whether it did. Another pass finds out.
var errTransaction = errors.New("the transaction did not commit")

// settling is an execution.
type settling struct {
	d         *Letters
	cluster   broker.Cluster
	clusterID string
	producer  broker.Producer
	s         *Settlement
	f         Filter
	now       func() time.Time

	tooLarge map[Place]string // refused by the broker
	doubt    map[Place]bool   // of a transaction whose outcome was unknown
	topicIDs map[string]string
	batch    []*Letter // of the transaction in hand
	bytes    int
}

// pass goes through the topic once and handles what waits.
func (t *settling) pass(ctx context.Context) error {
	t.reset()
	if err := t.producer.Init(ctx); err != nil {
		return err
	}
	b, err := t.d.bounds(ctx)
	if err != nil {
		return err
	}
	// The end, and not the last stable offset: a transaction of the running pipeline must not hide a note.
	spans := map[rawlog.Partition]rawlog.Span{}
	for p, x := range b {
		spans[p] = rawlog.Span{From: x.Start, To: x.End}
	}
	if err := t.stable(ctx, spans); err != nil {
		return err
	}
	done := t.s.Letters
	before := *t.s
	*t.s = *t.d.settlement(t.s.Action)
	t.s.Letters, t.s.Targets, t.s.First = done, before.Targets, before.First
	if err := t.settleDoubt(ctx, spans); err != nil {
		return err
	}
	if err := t.d.collect(ctx, t.s, b, spans, t.f, t.tooLarge, func(l *Letter, r rawlog.Record) error { return t.add(ctx, l, r) }); err != nil {
		return err
	}
	// What this run did in an earlier pass was not done before it.
	t.s.Done = max(0, t.s.Done-done)
	return t.flush(ctx)
}

// perLetter is how many records a letter is in a transaction: its note, and itself if it is sent again.
func (t *settling) perLetter() int {
	if t.s.Action == Retried {
		return 2
	}
	return 1
}

func (t *settling) reset() {
	t.producer.Reset()
	t.batch, t.bytes = nil, 0
}

// settleDoubt counts what a transaction with an unknown outcome turns out to have done.
func (t *settling) settleDoubt(ctx context.Context, spans map[rawlog.Partition]rawlog.Span) error {
	if len(t.doubt) == 0 {
		return nil
	}
	err := t.d.each(ctx, spans, Filter{Places: slices.Collect(maps.Keys(t.doubt))}, func(l *Letter, _ rawlog.Record) error {
		if l.State == t.s.Action {
			t.s.count(l)
		}
		return nil
	})
	clear(t.doubt)
	return err
}

// stable waits until everything below the ends can be read.
func (t *settling) stable(ctx context.Context, spans map[rawlog.Partition]rawlog.Span) error {
	limited, cancel := context.WithTimeout(ctx, settleStable)
	defer cancel()
	for {
		b, err := t.d.bounds(ctx)
		if err != nil {
			return err
		}
		var open []string
		for _, p := range rawlog.Sorted(spans) {
			if b[p].Stable < spans[p].To {
				open = append(open, p.String())
			}
		}
		if len(open) == 0 {
			return nil
		}
		if pause(limited, 50*time.Millisecond) != nil {
			if ctx.Err() != nil {
				return failed("wait for open transactions", ctx.Err())
			}
			return fmt.Errorf("operate: %s: %w: a transaction is open there, so that notes behind it cannot be read; streamd inspect transactions says whose it is",
				strings.Join(open, ", "), daemon.ErrInUse)
		}
	}
}

// add puts a letter into the transaction in hand.
func (t *settling) add(ctx context.Context, l *Letter, r rawlog.Record) error {
	if t.s.Action == Retried {
		id, err := t.topicID(ctx, l.source.Topic)
		if err != nil {
			return err
		}
		out := again(l, &r, t.d.Topic, t.clusterID, id)
		t.producer.Add(out)
		t.bytes += len(out.Key) + len(out.Value)
		for _, h := range out.Headers {
			t.bytes += len(h.Key) + len(h.Value)
		}
	}
	t.producer.Add(note(t.d.Topic, l, t.s.Action, t.now()))
	t.batch = append(t.batch, l)
	if len(t.batch) < settleRecords && t.bytes < settleBytes {
		return nil
	}
	return t.flush(ctx)
}

// topicID is empty for topics of the pipeline's own, in which IDs stand in a header.
func (t *settling) topicID(ctx context.Context, topic string) (string, error) {
	if t.d.inputs[topic] {
		return "", nil
	}
	if id, ok := t.topicIDs[topic]; ok {
		return id, nil
	}
	info, err := t.cluster.Topics(ctx, topic)
	if err != nil {
		return "", err
	}
	if t.topicIDs == nil {
		t.topicIDs = map[string]string{}
	}
	t.topicIDs[topic] = info[topic].ID
	return info[topic].ID, nil
}

// flush commits the transaction in hand.
func (t *settling) flush(ctx context.Context) error {
	if len(t.batch) == 0 {
		return nil
	}
	_, outcome, err := t.producer.Commit(ctx, broker.GroupMeta{Generation: -1}, nil)
	if outcome != broker.Committed {
		if outcome == broker.Unknown {
			for _, l := range t.batch {
				t.doubt[l.at] = true
			}
		}
		return fmt.Errorf("operate: %w (%v): %w", errTransaction, outcome, err)
	}
	for _, l := range t.batch {
		t.s.count(l)
	}
	t.batch, t.bytes = nil, 0
	return nil
}

// Write prints the settlement for a reader.
func (s *Settlement) Write(w io.Writer) error {
	var b strings.Builder
	verb := map[LetterState]string{Retried: "retry", Dropped: "drop"}[s.Action]
	if s.Executed {
		fmt.Fprintf(&b, "Done: %d dead letters of %s %s\n", s.Letters, s.Topic, s.Action)
	} else {
		fmt.Fprintf(&b, "Plan (nothing done yet; add --execute): %s %d dead letters of %s\n", verb, s.Letters, s.Topic)
	}
	for _, t := range slices.Sorted(maps.Keys(s.Targets)) {
		fmt.Fprintf(&b, "  to            %s   %d records\n", Printable(t), s.Targets[t])
	}
	for i := range s.First {
		l := &s.First[i]
		fmt.Fprintf(&b, "  %-12s  %s   %s: %s\n", l.Place, Printable(orNone(nonEmpty(l.From))), Printable(l.Step), l.Brief())
	}
	if more := s.Letters - int64(len(s.First)); more > 0 {
		fmt.Fprintf(&b, "                and %d more\n", more)
	}
	if s.Done > 0 {
		fmt.Fprintf(&b, "  done before   %d\n", s.Done)
	}
	for _, r := range s.Refused {
		fmt.Fprintf(&b, "  ✗ %-10s  %s\n", r.Place, Printable(r.Why))
	}
	if more := s.RefusedCount - int64(len(s.Refused)); more > 0 {
		fmt.Fprintf(&b, "  ✗ and %d more\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// brief is the first line of a text, of a length that a line of a table has room for.
func brief(s string) string {
	const most = 100
	s, _, _ = strings.Cut(s, "\n")
	s = Printable(s)
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
