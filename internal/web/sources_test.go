package web

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/ingress"
)

func TestThePageShowsSources(t *testing.T) {
	if page := get(handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}}), "/").Body.String(); strings.Contains(page, `id="sources"`) {
		t.Error("sources of a pipeline without one")
	}
	now := time.Now()
	all := []ingress.Status{
		{
			Name: "posted", Kind: ingress.KindHTTP, Where: "http://h:1/<b>", Topic: "bills.in", Records: 12_345, Refused: map[string]uint64{"busy": 2, "bad_request": 1_017},
			Waits: "Kafka: no <leader>", LastError: "no <leader>", LastErrorAt: now.Add(-5 * time.Minute), HTTP: &ingress.SenderStatus{Open: 3, OldestSince: now.Add(-5 * time.Minute)},
		},
		{Name: "logs", Kind: ingress.KindFiles, LongLines: 4, Files: &ingress.FilesStatus{Known: 1204, Behind: 3 << 20}},
		{Name: "orders", Kind: ingress.KindTable, Table: &ingress.TableStatus{Reading: true, Number: 9001, ReadAt: now.Add(-5 * time.Minute), Behind: 7, Undecided: "transactions 3/17", UndecidedSeconds: 300}},
		{Name: "other", Kind: ingress.KindTable, Table: &ingress.TableStatus{}},
		{Name: "lines", Kind: ingress.KindTCP, TCP: &ingress.SenderStatus{Open: 5}},
	}
	h := handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}, Sources: func() []ingress.Status { return all }})
	page := get(h, "/").Body.String()
	for _, want := range []string{
		`<td>http</td><td><span class="why bad">Kafka: no &lt;leader&gt;</span></td><td class="n">12 345</td><td class="why">1 017 bad request, 2 busy</td><td class="why">3 in flight, oldest 5m</td>`,
		`<span class="why">5m ago: no &lt;leader&gt;</span></td><td class="why">http://h:1/&lt;b&gt;</td><td>bills.in</td>`, `<td>–</td><td class="n">0</td><td class="why">4 long lines</td><td class="why">1 204 files, 3.0 MiB behind</td>`,
		`<td class="why">number 9 001 read 5m ago, 7 numbers behind, undecided for 5m: transactions 3/17</td>`, `<td class="why">not read here</td>`, `<td class="why">5 connections</td>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	for path, at := range map[string]func([]byte) []ingress.Status{
		"/api/v1/pipelines/bills": func(b []byte) []ingress.Status {
			var s Status
			if err := json.Unmarshal(b, &s); err != nil || s.Pipeline != "bills" {
				t.Error(s.Pipeline, err)
			}
			return s.Sources
		},
		"/api/v1/pipelines": func(b []byte) []ingress.Status {
			var s struct{ Pipelines []Summary }
			if err := json.Unmarshal(b, &s); err != nil || len(s.Pipelines) != 1 {
				t.Fatal(err, len(s.Pipelines))
			}
			return s.Pipelines[0].Sources
		},
	} {
		got := at(get(h, path).Body.Bytes())
		if len(got) != len(all) || got[0].Refused["bad_request"] != 1017 || got[2].Table.Number != 9001 {
			t.Errorf("%s: %+v", path, got)
		}
	}
}
