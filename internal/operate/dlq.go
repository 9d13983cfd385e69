package operate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// What a dead letter says of itself: headers of KIP-1034, and our own. See docs/format.md.
const (
	streamsErrors = "__streams.errors."
	streamdErrors = "__streamd.errors."

	// retryHeader marks a record that came back from the dead letters; its value is where it lay.
	retryHeader = "__streamd.errors.retry_of"
	// noteHeader makes a record of the dead letter topic a note: that something was done about an earlier one of its partition.
	noteHeader = "__streamd.dlq.note"
	// noteOfHeader is the offset of the dead letter that a note speaks of.
	noteOfHeader = "__streamd.dlq.of"
)

// LetterState is what was done about a dead letter.
type LetterState string

// The states. Waiting: nothing was done yet.
const (
	Waiting LetterState = "waiting"
	Retried LetterState = "retried"
	Dropped LetterState = "dropped"
)

// Place is where a dead letter lies in the dead letter topic.
type Place struct {
	Partition int32
	Offset    int64
}

// String returns PARTITION@OFFSET.
func (p Place) String() string { return fmt.Sprintf("%d@%d", p.Partition, p.Offset) }

// ParsePlace reads PARTITION@OFFSET, with or without TOPIC/ before it.
func ParsePlace(s string) (Place, error) {
	text := s[strings.LastIndexByte(s, '/')+1:]
	partition, offset, _ := strings.Cut(text, "@")
	n, perr := strconv.ParseInt(partition, 10, 32)
	o, oerr := strconv.ParseInt(offset, 10, 64)
	if perr != nil || oerr != nil || n < 0 || o < 0 {
		return Place{}, daemon.Usagef("%q is not the place of a dead letter: want PARTITION@OFFSET, as streamd dlq list prints it", s)
	}
	return Place{int32(n), o}, nil
}

// Letter is a dead letter.
type Letter struct {
	Place  string      `json:"place"` // PARTITION@OFFSET in the dead letter topic
	State  LetterState `json:"state"`
	Time   time.Time   `json:"time"` // the record's own
	Step   string      `json:"step"`
	Stage  string      `json:"stage"`
	Reason string      `json:"reason"`
	// From is where the record stood, TOPIC/PARTITION@OFFSET. Empty: it is the result of a window or a timer, which stood nowhere.
	From    string `json:"from,omitempty"`
	Attempt int    `json:"attempt"`

	at     Place
	source rawlog.Partition // with From
	offset int64
}

// Brief is the reason in a length that a line of a table has room for.
func (l *Letter) Brief() string { return brief(l.Reason) }

// Filter selects dead letters. Empty fields select all.
type Filter struct {
	Places []Place
	Step   string
	Stage  string
	From   string // topic, or topic/partition
	Reason string // a part of the reason, in any case
	Key    string
	Since  time.Time
}

// All says whether the filter selects everything.
func (f Filter) All() bool {
	return len(f.Places) == 0 && f.Step+f.Stage+f.From+f.Reason+f.Key == "" && f.Since.IsZero()
}

func (f Filter) selects(l *Letter, r *rawlog.Record) bool {
	return (len(f.Places) == 0 || slices.Contains(f.Places, l.at)) &&
		(f.Step == "" || l.Step == f.Step) &&
		(f.Stage == "" || l.Stage == f.Stage) &&
		(f.From == "" || l.source.Topic == f.From || l.source.String() == f.From) &&
		strings.Contains(strings.ToLower(l.Reason), strings.ToLower(f.Reason)) &&
		(f.Key == "" || bytes.Equal(r.Key, []byte(f.Key))) &&
		!l.Time.Before(f.Since)
}

// Letters reads a pipeline's dead letter topic. One goroutine uses it, but for Progress.
type Letters struct {
	Topic string

	p      *pipeline.Pipeline
	c      *client
	inputs map[string]bool // topics that the pipeline reads; true: one of its own
}

// OpenLetters prepares to read the dead letters of a pipeline. daemon.ErrConfig: it has no dead letter topic.
func OpenLetters(p *pipeline.Pipeline) (*Letters, error) {
	topo, err := p.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	if p.Errors.DeadLetterTopic == "" {
		return nil, fmt.Errorf("%w: pipeline %q has no dead letter topic: errors: {on_error: dead_letter, dead_letter_topic: TOPIC}", daemon.ErrConfig, p.Name)
	}
	c, err := connect(p.Kafka)
	if err != nil {
		return nil, err
	}
	l := &Letters{Topic: p.Errors.DeadLetterTopic, p: p, c: c, inputs: map[string]bool{}}
	for _, s := range topo.Subtopologies() {
		for _, x := range s.Sources {
			l.inputs[topo.SourceTopic(x)] = x.Internal
		}
	}
	return l, nil
}

// Close ends the connections.
func (d *Letters) Close() { d.c.close() }

// Progress is how many offsets were read so far.
func (d *Letters) Progress() int64 { return d.c.Progress() }

// bounds returns what can be read of the topic now.
func (d *Letters) bounds(ctx context.Context) (map[rawlog.Partition]rawlog.Bounds, error) {
	b, err := d.c.Bounds(ctx, d.Topic)
	if errors.Is(err, broker.ErrUnknownTopic) {
		return nil, fmt.Errorf("%w: the dead letter topic %q does not exist: %w", daemon.ErrConfig, d.Topic, err)
	}
	return b, err
}

// notes reads what was done so far about the letters of the spans.
func (d *Letters) notes(ctx context.Context, spans map[rawlog.Partition]rawlog.Span) (map[Place]LetterState, error) {
	out := map[Place]LetterState{}
	err := d.c.Read(ctx, spans, func(r rawlog.Record) error {
		action, isNote := r.Header(noteHeader)
		if !isNote {
			return nil
		}
		of, _ := r.Header(noteOfHeader)
		o, err := strconv.ParseInt(string(of), 10, 64)
		state := LetterState(action)
		if err != nil || state != Retried && state != Dropped {
			return fmt.Errorf("operate: %s is a note of dead letters that cannot be read (%q of %q): %w", r.Where(), action, of, rawlog.ErrFormat)
		}
		out[Place{r.Number, o}] = state
		return nil
	})
	return out, err
}

// each calls fn for the letters that the filter selects, in the order of their places. The record is fn's.
func (d *Letters) each(ctx context.Context, spans map[rawlog.Partition]rawlog.Span, f Filter, fn func(*Letter, rawlog.Record) error) error {
	settled, err := d.notes(ctx, spans)
	if err != nil {
		return err
	}
	return d.c.Read(ctx, narrow(spans, f.Places), func(r rawlog.Record) error {
		l := letterOf(&r)
		if l == nil || !f.selects(l, &r) {
			return nil
		}
		if s, ok := settled[l.at]; ok {
			l.State = s
		}
		return fn(l, r)
	})
}

// narrow leaves of the spans what lies between the first and the last of the places. No places: all.
func narrow(spans map[rawlog.Partition]rawlog.Span, places []Place) map[rawlog.Partition]rawlog.Span {
	if len(places) == 0 {
		return spans
	}
	out := map[rawlog.Partition]rawlog.Span{}
	for p, s := range spans {
		from, to := s.To, s.From
		for _, at := range places {
			if at.Partition == p.Number && at.Offset >= s.From && at.Offset < s.To {
				from, to = min(from, at.Offset), max(to, at.Offset+1)
			}
		}
		if from < to {
			out[p] = rawlog.Span{From: from, To: to}
		}
	}
	return out
}

// letterOf reads a dead letter's headers; nil for a note. A record of another program is a letter without reason.
func letterOf(r *rawlog.Record) *Letter {
	if _, note := r.Header(noteHeader); note {
		return nil
	}
	text := func(key string) string { v, _ := r.Header(key); return string(v) }
	l := &Letter{
		State: Waiting, Time: r.Time.UTC(), at: Place{r.Number, r.Offset},
		Step: text(streamdErrors + "step"), Stage: text(streamdErrors + "stage"), Reason: text(streamsErrors + "message"),
	}
	l.Place = l.at.String()
	l.Attempt, _ = strconv.Atoi(text(streamdErrors + "attempt"))
	n, perr := strconv.ParseInt(text(streamsErrors+"partition"), 10, 32)
	o, oerr := strconv.ParseInt(text(streamsErrors+"offset"), 10, 64)
	if topic := text(streamsErrors + "topic"); topic != "" && perr == nil && oerr == nil && n >= 0 && o >= 0 {
		l.source, l.offset = rawlog.Partition{Topic: topic, Number: int32(n)}, o
		l.From = rawlog.At(l.source, o)
	}
	return l
}

// List is what stands in the dead letter topic.
type List struct {
	Topic   string   `json:"topic"`
	Letters []Letter `json:"letters"`
	// Selected is how many there are, also those beyond the limit.
	Selected int64 `json:"selected"`
	Waiting  int64 `json:"waiting"` // of the selected
	Retried  int64 `json:"retried"`
	Dropped  int64 `json:"dropped"`
}

// List lists the letters that the filter selects, the oldest of each partition first, at most limit (0: all). Those about which
// something was done are counted; with done they are listed too.
func (d *Letters) List(ctx context.Context, f Filter, done bool, limit int) (*List, error) {
	b, err := d.bounds(ctx)
	if err != nil {
		return nil, err
	}
	out := &List{Topic: d.Topic, Letters: []Letter{}}
	err = d.each(ctx, rawlog.Spans(b), f, func(l *Letter, _ rawlog.Record) error {
		out.Selected++
		switch l.State {
		case Retried:
			out.Retried++
		case Dropped:
			out.Dropped++
		default:
			out.Waiting++
		}
		if (done || l.State == Waiting) && (limit == 0 || len(out.Letters) < limit) {
			out.Letters = append(out.Letters, *l)
		}
		return nil
	})
	return out, err
}

// Content is a dead letter as a whole.
type Content struct {
	Letter
	Exception string            `json:"exception"`
	Headers   []ContentHeader   `json:"headers"` // as the record came, without those of the failure
	Errors    map[string]string `json:"errors"`  // headers of the failure
	Key       Bytes             `json:"key"`     // nil: none
	Value     Bytes             `json:"value"`   // nil: a tombstone
}

// ContentHeader is a header of a record.
type ContentHeader struct {
	Key   string `json:"key"`
	Value Bytes  `json:"value"`
}

// Write prints the letter for a reader.
func (c *Content) Write(w io.Writer, topic string) error {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "%-10s %s\n", name, value) }
	line("place", topic+"/"+c.Place+"   "+string(c.State))
	line("from", orNone(nonEmpty(c.From)))
	line("time", c.Time.Format(time.RFC3339Nano))
	line("step", Printable(c.Step)+"   "+Printable(c.Stage))
	line("reason", Printable(c.Reason))
	line("exception", Printable(c.Exception))
	line("attempt", strconv.Itoa(c.Attempt))
	for _, h := range c.Headers {
		line("header", Printable(h.Key)+": "+h.Value.String())
	}
	line("key", c.Key.String())
	line("value", c.Value.String())
	_, err := io.WriteString(w, b.String())
	return err
}

// Show reads one dead letter. daemon.ErrConfig: there is none at that place.
func (d *Letters) Show(ctx context.Context, at Place) (*Content, error) {
	b, err := d.bounds(ctx)
	if err != nil {
		return nil, err
	}
	var out *Content
	err = d.each(ctx, rawlog.Spans(b), Filter{Places: []Place{at}}, func(l *Letter, r rawlog.Record) error {
		out = &Content{Letter: *l, Headers: []ContentHeader{}, Key: r.Key, Value: r.Value, Errors: map[string]string{}}
		for _, h := range r.Headers {
			if isErrorHeader(h.Key) {
				out.Errors[h.Key] = string(h.Value)
				continue
			}
			out.Headers = append(out.Headers, ContentHeader{h.Key, h.Value})
		}
		out.Exception = out.Errors[streamsErrors+"exception"]
		return nil
	})
	if err == nil && out == nil {
		return nil, d.absent(b, at)
	}
	return out, err
}

// absent says why there is no dead letter at a place.
func (d *Letters) absent(bounds map[rawlog.Partition]rawlog.Bounds, at Place) error {
	b, ok := bounds[rawlog.Partition{Topic: d.Topic, Number: at.Partition}]
	switch {
	case !ok:
		return fmt.Errorf("%w: topic %q has no partition %d", daemon.ErrConfig, d.Topic, at.Partition)
	case at.Offset < b.Start:
		return fmt.Errorf("%w: no dead letter at %s: the retention of topic %q has taken it, it begins at offset %d", daemon.ErrConfig, at, d.Topic, b.Start)
	}
	return fmt.Errorf("%w: no dead letter at %s: streamd dlq list prints their places", daemon.ErrConfig, at)
}

func isErrorHeader(key string) bool {
	return strings.HasPrefix(key, streamsErrors) || strings.HasPrefix(key, streamdErrors)
}

// again is the record of a letter on its way back: as it came, marked, and with its ID. A record that had its ID by its position
// would get another one where it is put now, so that it carries the old one in the header that every source asks first.
// cluster and topicID are empty where no record has its ID by position.
func again(l *Letter, r *rawlog.Record, topic, cluster, topicID string) broker.Output {
	out := broker.Output{
		TopicPartition: record.TopicPartition{Topic: l.source.Topic, Partition: record.Partition(l.source.Number)},
		Timestamp:      r.Time, Key: r.Key, Value: r.Value,
	}
	hasID := false
	for _, h := range r.Headers {
		hasID = hasID || h.Key == topology.DefaultIDHeader
		// The number of the attempt stays: the next failure counts on from it.
		if !isErrorHeader(h.Key) || h.Key == streamdErrors+"attempt" {
			out.Headers = append(out.Headers, record.Header{Key: h.Key, Value: h.Value})
		}
	}
	if !hasID && topicID != "" {
		id := record.PositionID(cluster, topicID, out.Partition, record.Offset(l.offset))
		out.Headers = append(out.Headers, record.Header{Key: topology.DefaultIDHeader, Value: []byte(id)})
	}
	out.Headers = append(out.Headers, record.Header{Key: retryHeader, Value: []byte(topic + "/" + l.Place)})
	return out
}

// note is the record that says what was done about a letter. It has a key, so that a compacted topic takes it, and no value.
func note(topic string, l *Letter, s LetterState, now time.Time) broker.Output {
	return broker.Output{
		TopicPartition: record.TopicPartition{Topic: topic, Partition: record.Partition(l.at.Partition)},
		Timestamp:      now, Key: []byte(noteHeader + "/" + l.Place), Value: []byte(s),
		Headers: record.Headers{
			{Key: noteHeader, Value: []byte(s)},
			{Key: noteOfHeader, Value: strconv.AppendInt(nil, l.at.Offset, 10)},
		},
	}
}
