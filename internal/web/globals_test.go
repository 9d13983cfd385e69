package web

import (
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/processor"
)

func TestThePageShowsGlobalTables(t *testing.T) {
	st := running()
	if page := get(handlerOf(t, Entry{Name: "bills", Pipeline: fake{st}}), "/").Body.String(); strings.Contains(page, `id="globals"`) {
		t.Error("global tables of a pipeline without one")
	}
	now := time.Now()
	st.Globals = []processor.GlobalStatus{
		{Name: "rates", Topic: "rates.t", State: processor.GlobalStale, Reason: "no <leader>", Rows: 12_345, Bytes: 3 << 20, MaxBytes: 64 << 20, AsOf: now.Add(-5 * time.Minute), Lag: 17},
		{Name: "names", Topic: "names.t", State: processor.GlobalReading, Remaining: 611_000},
		{Name: "shops", Topic: "shops.t", State: processor.GlobalCurrent, AsOf: now},
	}
	page := get(handlerOf(t, Entry{Name: "bills", Pipeline: fake{st}}), "/").Body.String()
	for _, want := range []string{
		`<span class="state bad">stale</span> <span class="why">no &lt;leader&gt;`, `<td class="n">12 345</td><td>3.0 MiB of 64.0 MiB</td><td class="n">17</td><td>5m ago</td><td>rates.t<`,
		`<span class="state g-reading">reading</span></td>`, `611k left</td><td>–<`, `<span class="state g-current">current</span></td>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestThePageShowsEffects(t *testing.T) {
	st := running()
	st.Operators = append(st.Operators, processor.OperatorStatus{Name: "pay", Kind: "effect", Counters: map[string]uint64{"in": 9}, Effect: &processor.EffectStatus{Waiting: 1204, Running: 5, Uncertain: 3, Hanging: 2}})
	page := get(handlerOf(t, Entry{Name: "bills", Pipeline: fake{st}}), "/?step=pay").Body.String()
	for _, want := range []string{
		"<td>1 204 calls wait, 5 run, 3 of them uncertain, 2 given up and not back</td>",
		"<dt>calls waiting</dt><dd>1 204 ", "<dt>calls running</dt><dd>5</dd>", "<dt>calls uncertain</dt><dd>3 ", "<dt>calls hanging</dt><dd>2 ",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	if got := EffectDetail(&processor.EffectStatus{}); got != "0 calls wait, 0 run" {
		t.Error(got)
	}
}
