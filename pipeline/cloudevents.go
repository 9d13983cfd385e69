package pipeline

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// The format cloudevents: the value of a record is the event's data. An event in structured mode, where attributes and data
// are one JSON object, becomes one in binary mode as soon as it is read: the attributes go into headers (ce_id, ce_source,
// ...), so that everything behind sees one form, and what is written is an event again.
// (CloudEvents 1.0, Kafka Protocol Binding, 3.2 and 3.3.)
const formatCloudEvents = "cloudevents"

// dataSuffix is behind a source's name in the name of the operator that takes the data out of its events.
const dataSuffix = "-data"

const (
	contentType     = "content-type"
	structuredEvent = "application/cloudevents"
	batchedEvents   = "application/cloudevents-batch"
	attributePrefix = "ce_"
)

var (
	errBatchedEvents = errors.New("a batch of CloudEvents: a record of Kafka holds one event")
	errEventType     = errors.New("a structured CloudEvent must be JSON (application/cloudevents+json)")
	errNoEvent       = errors.New("the content type says CloudEvent, the value is no JSON object")
)

// eventMode says whether the headers announce an event in structured mode.
func eventMode(h record.Headers) (structured bool, err error) {
	v, ok := h.Get(contentType)
	if !ok || len(v) < len(structuredEvent) {
		return false, nil
	}
	switch t := strings.ToLower(string(v)); {
	case strings.HasPrefix(t, batchedEvents):
		return false, errBatchedEvents
	case strings.HasPrefix(t, structuredEvent+"+json"):
		return true, nil
	case strings.HasPrefix(t, structuredEvent):
		return false, errEventType
	}
	return false, nil
}

// event returns the record with the data as its value and the attributes in its headers.
func (s *sourcePlan) event(p *plan, r event) (event, error) {
	if r.Value.raw == nil {
		return r, nil // an event without data, or a tombstone
	}
	structured, err := eventMode(r.Headers)
	if err != nil {
		return r, err
	}
	data := r.Value.raw
	if structured {
		if data, r.Headers, err = openEvent(data, r.Headers); err != nil {
			return r, err
		}
	}
	if data == nil {
		r.Value = recValue{src: r.Value.src}
		return r, nil
	}
	v, err := p.dec.root(data, s.out.value)
	if err != nil {
		return r, err
	}
	r.Value = recValue{raw: data, val: v, src: r.Value.src}
	return r, nil
}

// openEvent takes an event in structured mode apart. The data is nil if there is none.
func openEvent(b []byte, h record.Headers) (data []byte, headers record.Headers, err error) {
	at := skipSpace(b, 0)
	if at == len(b) || b[at] != '{' {
		return nil, nil, errNoEvent
	}
	dataType := "application/json"
	for _, x := range h {
		if !strings.EqualFold(x.Key, contentType) {
			headers = append(headers, x)
		}
	}
	scan := objectScan{b: b, at: at}
	for scan.next() {
		name := scan.name()
		switch {
		case scan.value[0] == 'n': // null is as good as not there
		case name == "data":
			data = scan.value
		case name == "data_base64":
			if data, err = base64.StdEncoding.DecodeString(textOf(scan.value)); err != nil {
				return nil, nil, fieldError(name, err)
			}
		case scan.value[0] == '{' || scan.value[0] == '[':
			return nil, nil, fmt.Errorf("attribute %q of the event is neither a text, a number nor a boolean", name)
		case name == "datacontenttype":
			dataType = textOf(scan.value)
		default:
			headers = append(headers, record.Header{Key: attributePrefix + name, Value: []byte(textOf(scan.value))})
		}
	}
	if scan.err == nil {
		if rest := skipSpace(b, scan.at); rest < len(b) {
			scan.err = jsonFail(rest, "more after the event")
		}
	}
	return data, append(headers, record.Header{Key: contentType, Value: []byte(dataType)}), scan.err
}

// textOf is a JSON string without its quotes, and anything else as it stands.
func textOf(b []byte) string {
	if b[0] == '"' {
		return unquoteJSON(b[1 : len(b)-1])
	}
	return string(b)
}

// opened puts the step behind a source of events that takes the data out of them.
func (p *plan) opened(s *sourcePlan, in *stream) *stream {
	return topology.FlatMap(in, func(r event, emit topology.Emit[recKey, recValue]) error {
		opened, err := s.event(p, r)
		if err != nil {
			return p.fail(s.out.name, s.out.node.Line, err)
		}
		emit(event{Key: r.Key, Value: opened.Value, Headers: opened.Headers})
		return nil
	}, topology.Name(s.operator()+dataSuffix), topology.OnError(s.policy), topology.PreserveKey()).WithValues(p.values(s.out, nil))
}

// sourceTime returns the event time of a source's records: what timestamp computes, or their own. That of events is asked in
// any case, so that one which cannot be read is an error of decoding, before anybody asks for its ID.
func (p *plan) sourceTime(s *sourcePlan) func(event) (time.Time, error) {
	if s.timestamp == nil && !s.events {
		return nil
	}
	return func(r event) (at time.Time, err error) {
		if s.events {
			r, err = s.event(p, r)
		}
		switch {
		case err != nil:
		case s.timestamp == nil, (s.table || s.debezium) && r.Value.null():
			return r.Timestamp, nil
		default:
			at, err = eventTime(s.timestamp, &r)
		}
		return at, p.fail(s.out.name, s.out.node.Line, err)
	}
}

// nothingID is the ID of a record that only makes Kafka forget a key.
const nothingID = record.ID("nothing")

// sourceID returns the function that finds the ID of a source's records.
func (p *plan) sourceID(s *sourcePlan) func(event) record.ID {
	switch {
	case s.debezium:
		return func(r event) record.ID {
			if r.Value.null() {
				return nothingID // left out by the next operator
			}
			return s.id.find(r)
		}
	case !s.events:
		return s.id.find
	}
	return func(r event) record.ID {
		r, err := s.event(p, r)
		if err != nil {
			return "" // cannot be: sourceTime has read it
		}
		return s.id.find(r)
	}
}
