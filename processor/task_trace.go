package processor

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Of W3C Trace Context. tracestate is never touched: it goes on with the other headers.
const (
	tracestateHeader = "tracestate"
	traceparentBytes = 55  // of version 00
	maxTraceState    = 512 // what a span carries of it: the recommendation's own bound
	maxTraced        = 512 // records of a task and transaction that are told
)

// RecordTrace is a record of a transaction that came with a sampled trace context: what a span of it needs.
type RecordTrace struct {
	TraceID [16]byte
	// Parent is the span that wrote the record, Span the one that stands for its processing here; outputs name it as theirs.
	Parent, Span [8]byte
	Flags        byte
	State        string // tracestate as it came; empty if there is none
	Task         string
	Position     record.Position
	ID           string    // of the record's header; empty if it has none
	Begin        time.Time // the host's clock when its turn began
	Outputs      int       // records written for it
	Err          string    // why it failed; its policy took it out of the way
}

// taskTraces is a task's work on trace contexts.
//
// A span's ID is a hash of the trace, of the application and of where the record stands, so that a transaction that is run again, by whom
// ever and after whatever crash, writes the same bytes. All records of sampled traces are treated so; how many of them are told is
// bounded.
type taskTraces struct {
	app     string // empty: tracing is off
	active  bool   // the record in hand is of a sampled trace
	now     RecordTrace
	value   []byte         // traceparent of its outputs; nil until there is one
	headers record.Headers // room for the headers of outputs
	told    []RecordTrace
	untold  int
}

// traceBegin looks for a context in the record that is about to run.
func (t *Task) traceBegin(r *broker.Record, now time.Time) {
	x := &t.traces
	x.now = RecordTrace{}
	if x.active = x.now.read(r.Headers); !x.active {
		return
	}
	x.value = nil
	x.now.Task, x.now.Position, x.now.Begin = t.name, t.current, now
	h := sha256.New()
	// Lengths keep the parts apart.
	for _, part := range []string{x.app, t.cfg.sub.Name, t.current.Topic} {
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part)))) // a hash takes everything
		_, _ = h.Write([]byte(part))
	}
	at := binary.BigEndian.AppendUint32(x.now.TraceID[:], uint32(t.current.Partition))
	_, _ = h.Write(binary.BigEndian.AppendUint64(at, uint64(t.current.Offset)))
	copy(x.now.Span[:], h.Sum(nil))
	if x.now.Span == [8]byte{} { // means "none"
		x.now.Span[0] = 1
	}
}

// traceEnd notes what there is to tell of the record.
func (t *Task) traceEnd(err error) {
	x := &t.traces
	if !x.active {
		return
	}
	x.active = false
	if len(x.told) == maxTraced {
		x.untold++
		return
	}
	if err != nil {
		x.now.Err, x.now.Outputs = cut(err.Error()), 0
	}
	x.told = append(x.told, x.now)
}

// read takes a sampled context out of the headers; false: there is none. One that is not as the recommendation wants it is none, and so
// are two (W3C Trace Context, 4.3): nothing is known of the trace then.
func (r *RecordTrace) read(headers record.Headers) bool {
	seen := 0
	for i := range headers {
		switch h := &headers[i]; h.Key {
		case record.TraceHeader:
			if seen++; seen > 1 || !r.parse(h.Value) {
				return false
			}
		case tracestateHeader:
			if len(h.Value) <= maxTraceState {
				r.State = string(h.Value)
			}
		case topology.DefaultIDHeader:
			r.ID = cut(string(h.Value))
		}
	}
	return seen == 1 && r.Flags&1 != 0
}

// parse reads a traceparent: version, trace, parent, flags. Of a version that is not known yet it reads what version 00 has.
func (r *RecordTrace) parse(v []byte) bool {
	if len(v) < traceparentBytes || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return false
	}
	var version, flags [1]byte
	ok := hexLower(version[:], v[:2]) && hexLower(r.TraceID[:], v[3:35]) && hexLower(r.Parent[:], v[36:52]) && hexLower(flags[:], v[53:55])
	if !ok || version[0] == 0xff || version[0] == 0 && len(v) != traceparentBytes || len(v) > traceparentBytes && v[traceparentBytes] != '-' {
		return false
	}
	r.Flags = flags[0]
	return r.TraceID != [16]byte{} && r.Parent != [8]byte{}
}

// hexLower decodes digits, of which the recommendation takes small ones only.
func hexLower(to, from []byte) bool {
	for _, c := range from {
		if c >= 'A' && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(to, from)
	return err == nil
}

// withTrace returns the headers of an output with the context of the record in hand: in the place of the one that it came with, or at the end.
func (t *Task) withTrace(h record.Headers) record.Headers {
	x := &t.traces
	x.now.Outputs++
	if x.value == nil {
		b := append(t.Alloc(traceparentBytes), "00-"...)
		b = append(hex.AppendEncode(b, x.now.TraceID[:]), '-')
		b = append(hex.AppendEncode(b, x.now.Span[:]), '-')
		x.value = hex.AppendEncode(b, []byte{x.now.Flags})
		t.Keep(traceparentBytes)
	}
	from, placed := len(x.headers), false
	for i := range h {
		if h[i].Key != record.TraceHeader {
			x.headers = append(x.headers, h[i])
		} else if !placed {
			placed = true
			x.headers = append(x.headers, record.Header{Key: record.TraceHeader, Value: x.value})
		}
	}
	if !placed {
		x.headers = append(x.headers, record.Header{Key: record.TraceHeader, Value: x.value})
	}
	return x.headers[from:len(x.headers):len(x.headers)]
}

// forget lets go of the transaction.
func (x *taskTraces) forget() {
	clear(x.headers)
	clear(x.told)
	x.headers, x.told, x.untold, x.active, x.value = x.headers[:0], x.told[:0], 0, false, nil
}
