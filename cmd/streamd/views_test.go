package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/processor"
)

// At rest the metrics, the API, `streamd status`, `streamd top` and the page name the same figures, to the record.
func TestTheViewsAgreeAtRest(t *testing.T) {
	const bills, copies, strangers = 12_347, 1_203, 17 // strangers have no ID and are forwarded
	b, p, c, k := daemonOf(t, strings.Replace(pipelineText, "id: value.id\n", "id: value.id\n      on_missing_id: forward\n", 1))
	send := func(n int, value string) {
		r := &kgo.Record{Key: fmt.Append(nil, n), Value: []byte(value)}
		k.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	for n := range bills {
		send(n, fmt.Sprintf(`{"id":"%d"}`, n))
	}
	for n := range copies {
		send(n, fmt.Sprintf(`{"id":"%d"}`, n))
	}
	for n := range strangers {
		send(n, `{}`)
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var status processor.Status
	waitFor(t, "rest", func() bool {
		if c.Get(t.Context(), "/api/v1/pipelines/p", &status) != nil {
			return false
		}
		done := uint64(0)
		for _, o := range status.Operators {
			if o.Name == "unique" {
				done = o.Counters["in"]
			}
		}
		return done == bills+copies+strangers
	})
	text, err := c.Read(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	metric := func(name, operator string) (sum uint64) {
		if families[name] == nil {
			t.Errorf("no metric %s", name)
		}
		for _, m := range families[name].GetMetric() {
			of := operator == ""
			for _, l := range m.Label {
				of = of || l.GetName() == "operator" && l.GetValue() == operator
			}
			if of {
				sum += uint64(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			}
		}
		return sum
	}
	counters := map[string]uint64{}
	for _, o := range status.Operators {
		if o.Name == "unique" {
			for kind, n := range o.Counters {
				counters[kind] += n
			}
		}
	}
	page, err := c.Read(t.Context(), "/?pipeline=p&step=unique")
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(string(page), " ")), " ")
	for _, v := range []struct {
		what         string
		want         uint64
		metric, api  uint64
		page, status string
	}{
		{"in", bills + copies + strangers, metric("streamd_operator_records_in_total", "unique"), counters["in"], "in 13 567 ", ""},
		{"out", bills + strangers, metric("streamd_operator_records_out_total", "unique"), bills + strangers, "out 12 364 ", ""},
		{"checked", bills + copies, metric("streamd_dedup_checked_records_total", "unique"), counters["dedup/checked"], "checked 13 550 ", ""},
		{"duplicates", copies, metric("streamd_dedup_duplicates_total", "unique"), counters["dedup/dup_committed"] + counters["dedup/dup_open"], "duplicates 1 203 ", " 1203 "},
		{"missing IDs", strangers, metric("streamd_dedup_missing_ids_total", "unique"), counters["dedup/missing/forward"], "missing IDs 17 ", ""},
		{"IDs", bills, metric("streamd_txlog_ids", "unique"), bills, "IDs held 12 347 ", ""},
		{"lag", 0, metric("streamd_consumer_lag_records", ""), 0, "lag 0 ", " 0 "},
		{"consumed", bills + copies + strangers, metric("streamd_consumed_records_total", ""), bills + copies + strangers, "", ""},
		{"produced", bills + strangers, metric("streamd_produced_records_total", ""), bills + strangers, "", ""},
	} {
		if v.metric != v.want || v.api != v.want || !strings.Contains(shown, v.page) {
			t.Errorf("%s: want %d; metrics %d, API %d, on the page %q: %v", v.what, v.want, v.metric, v.api, v.page, strings.Contains(shown, v.page))
		}
		if got := view(t, "status", "--addr", p.socket); !strings.Contains(got, v.status) {
			t.Errorf("%s: status has no %q:\n%s", v.what, v.status, got)
		}
	}
	theLastDuplicatesAgree(t, status, shown, view(t, "top", "--addr", p.socket, "--show", "duplicates"), b.Address())
	if got := view(t, "top", "--addr", p.socket, "--once"); !strings.Contains(got, "lag 0 ") || !strings.Contains(got, "12.3k IDs") || !strings.Contains(got, "in/0\n") {
		t.Errorf("top:\n%s", got)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// theLastDuplicatesAgree: the API, the page and top name the same ones, and each is the record of a copy at the end of its partition.
func theLastDuplicatesAgree(t *testing.T, status processor.Status, page, top, address string) {
	t.Helper()
	var last []processor.DuplicateStatus
	for _, o := range status.Operators {
		if o.Name == "unique" {
			last = o.Dedup.Last
		}
	}
	if len(last) != 20 {
		t.Fatalf("%d last duplicates: %+v", len(last), last)
	}
	k, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics("in"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	seen, copies := map[string]bool{}, map[string]bool{} // by value, by position
	for n := 0; n < 13_567; {
		f := k.PollFetches(t.Context())
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		f.EachRecord(func(r *kgo.Record) {
			n++
			copies[fmt.Sprintf("in/%d@%d", r.Partition, r.Offset)] = seen[string(r.Value)] && string(r.Value) != "{}"
			seen[string(r.Value)] = true
		})
	}
	for _, d := range last {
		if !copies[d.Position] {
			t.Errorf("%s is no copy", d.Position)
		}
		if !strings.Contains(page, d.Position+" ") || !strings.Contains(page, d.ID) || !strings.Contains(top, d.Position+" ") || !strings.Contains(top, d.ID) {
			t.Errorf("%s %s is not on the page, or not in top:\n%s", d.Position, d.ID, top)
		}
	}
}

// At rest the API, the page, status and top name the figures of sources outside of Kafka that the metrics have, to the record.
func TestTheSourcesAgreeAtRest(t *testing.T) {
	const lines, posts, bad = 1_234, 17, 3
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.log"), []byte(strings.Repeat("{}\n", lines)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, p, c, _ := daemonOf(t, fmt.Sprintf(`
version: 1
name: p
kafka: {brokers: ["localhost:1"]}
sources:
  logs: {topic: logs.in, file: {paths: [%q]}}
  posted: {topic: posted.in, http: {address: "127.0.0.1:0"}}
steps:
  - {name: publish, from: logs, to: {topic: out}}
  - {name: again, from: posted, to: {topic: out}}
`, dir+"/*.log"))
	var status web.Status
	source := func(name string) ingress.Status {
		status = web.Status{}
		if c.Get(t.Context(), "/api/v1/pipelines/p", &status) == nil {
			for _, s := range status.Sources {
				if s.Name == name {
					return s
				}
			}
		}
		return ingress.Status{Waits: "not there"}
	}
	waitFor(t, "the port", func() bool { return source("posted").Waits == "" })
	for n := range posts + bad {
		body := "{}"
		if n >= posts {
			body = "{"
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, source("posted").Where, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", fmt.Sprint(n))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // its code says all
	}
	waitFor(t, "rest", func() bool { return source("logs").Records >= lines && source("posted").HTTP.Open == 0 })
	text, err := c.Read(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.Read(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(string(page), " ")), " ")
	printed, top := view(t, "status", "--addr", p.socket), view(t, "top", "--addr", p.socket, "--once")
	if s := source("posted"); s.Records != posts || s.Refused["bad_request"] != bad || len(s.Refused) != 1 {
		t.Errorf("%+v", s)
	}
	if s := source("logs"); s.Records != lines || s.Bytes != 2*lines || *s.Files != (ingress.FilesStatus{Known: 1}) {
		t.Errorf("%+v %+v", s, s.Files)
	}
	for _, want := range []struct{ in, text string }{
		{string(text), `streamd_ingress_records_total{pipeline="p",source="logs"} 1234`},
		{string(text), `streamd_ingress_records_total{pipeline="p",source="posted"} 17`},
		{string(text), `streamd_ingress_refused_total{pipeline="p",reason="bad_request",source="posted"} 3`},
		{string(text), `streamd_ingress_files{pipeline="p",source="logs"} 1`},
		{shown, " 1 234 0 1 files, 0 B behind"},
		{shown, " 17 3 bad request 0 in flight"},
		{printed, "1234 records, refused: 0; 1 files, 0 B behind"},
		{printed, "17 records, refused: 3 bad request; 0 in flight"},
		{top, " 1 234  0 "},
		{top, " 17  3 bad request  0 in flight"},
	} {
		if !strings.Contains(want.in, want.text) {
			t.Errorf("no %q in\n%.3000s", want.text, want.in)
		}
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// view is what a command prints.
func view(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Errorf("%v: exit code %d, %s", args, code, &stderr)
	}
	return stdout.String()
}
