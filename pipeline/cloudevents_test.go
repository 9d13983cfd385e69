package pipeline

import (
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
)

// TestCloudEvents: both modes come to the same value, the same ID and the same headers, also behind a topic.
func TestCloudEvents(t *testing.T) {
	d := drive(t, `version: 1
name: test
kafka: {brokers: ["localhost:9092"]}
types: {Click: {page: string}}
sources: {in: {topic: in, format: cloudevents, type: Click, id: cloudevent_id()}}
steps:
  - name: unique
    dedup: {id: cloudevent_id(), retention: 1d, scope: stream}
  - {name: pages, map: {page: value.page, type: 'headers["ce_type"]', content: 'headers["content-type"]'}}
  - {name: out, to: {topic: out}}
`)
	const binary, structured = `{"page":"/a"}`, `{"specversion":"1.0","id":"1","source":"s","type":"click","datacontenttype":"application/json","data":{"page":"/a"}}`
	d.send("in", "k", structured, 1, "content-type", "application/CloudEvents+json; charset=UTF-8")
	d.send("in", "k", binary, 2, "ce_id", "1", "ce_source", "s", "ce_type", "click", "content-type", "application/json")
	d.send("in", "k", strings.ReplaceAll(structured, `"id":"1"`, `"id":"2"`), 3, "content-type", "application/cloudevents+json")
	d.send("in", "k", `{"specversion":"1.0","id":"3","source":"s","type":"click","data_base64":"eyJwYWdlIjoiL2IifQ=="}`, 3, "content-type", "application/cloudevents+json")
	d.want("out", `{"page":"/a","type":"click","content":"application/json"}`, `{"page":"/a","type":"click","content":"application/json"}`, `{"page":"/b","type":"click","content":"application/json"}`)
}

// TestBadCloudEvents: each is an error of decoding that names what is wrong.
func TestBadCloudEvents(t *testing.T) {
	for _, c := range []struct{ contentType, value, want string }{
		{"application/cloudevents-batch+json", `[]`, "a batch of CloudEvents"},
		{"application/cloudevents+avro", `{}`, "must be JSON"},
		{"application/cloudevents+json", `[1]`, "no JSON object"},
		{"application/cloudevents+json", `{"id":{}}`, `attribute "id"`},
		{"application/cloudevents+json", `{"data_base64":"*"}`, "data_base64"},
		{"application/cloudevents+json", `{"id":"1","data":{}} x`, "more after the event"},
		{"application/cloudevents+json", `{"id":`, "JSON"},
		{"application/json", `{`, "JSON"},
	} {
		d := drive(t, windowHead[:strings.Index(windowHead, "sources")]+"sources: {in: {topic: in, format: cloudevents, id: cloudevent_id()}}\nsteps: [{name: out, to: {topic: out}}]\n")
		topologytest.Input(d.Driver, "in", serde.String(), serde.String()).Send("k", c.value, topologytest.At(at(1)), topologytest.Header("content-type", []byte(c.contentType)))
		if err := d.ExpectStop(); !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "decode") {
			t.Errorf("%s %s: stopped by %v, want %q", c.contentType, c.value, err, c.want)
		}
	}
}

func FuzzOpenEvent(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"s","data":{"page":"/a"},"n":1,"b":true,"x":null}`))
	f.Add([]byte(`{"data_base64":"eyJ9"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		data, h, err := openEvent(b, record.Headers{{Key: "Content-Type", Value: []byte("x")}})
		if err == nil && len(h) == 0 {
			t.Errorf("%q: data %q without headers", b, data)
		}
	})
}
