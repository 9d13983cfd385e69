package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kgo"

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

// view is what a command prints.
func view(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Errorf("%v: exit code %d, %s", args, code, &stderr)
	}
	return stdout.String()
}
