package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/streamd/streamd/internal/metric"
)

// What Prometheus scrapes from a process at work: clean names, nothing outside of the catalogue, and
// figures that agree with each other at every single scrape.
func TestMetricsOfAProcess(t *testing.T) {
	_, _, c := running(t)
	known := map[string]bool{}
	for _, d := range slices.Concat(metric.Catalogue(), metric.IngressCatalogue(), metric.ProcessCatalogue()) {
		known[d.Name] = true
	}
	for range 20 {
		text, err := c.Read(t.Context(), "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.New(bytes.NewReader(text)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("promlint: %s: %s", p.Metric, p.Text)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		sum := func(name string, labels ...string) (v float64) {
			for _, m := range families[name].GetMetric() {
				match := 0
				for _, l := range m.Label {
					for i := 0; i < len(labels); i += 2 {
						if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
							match++
						}
					}
				}
				if match*2 == len(labels) {
					v += m.GetCounter().GetValue()
				}
			}
			return v
		}
		for name := range families {
			if len(name) > 8 && name[:8] == "streamd_" && !known[name] {
				t.Errorf("%s is not in the catalogue", name)
			}
		}
		in := sum("streamd_operator_records_in_total", "operator", "unique")
		checked, missing := sum("streamd_dedup_checked_records_total"), sum("streamd_dedup_missing_ids_total")
		duplicates, out := sum("streamd_dedup_duplicates_total"), sum("streamd_operator_records_out_total", "operator", "unique")
		bloom := sum("streamd_dedup_bloom_lookups_total")
		if checked == 0 || in != checked+missing || checked != duplicates+out {
			t.Errorf("in %v, checked %v, missing %v, duplicates %v, out %v", in, checked, missing, duplicates, out)
		}
		if most := checked - sum("streamd_dedup_duplicates_total", "seen", "open_transaction"); bloom > most {
			t.Errorf("%v Bloom lookups, want %v at most", bloom, most)
		}
		if consumed, produced := sum("streamd_consumed_records_total"), sum("streamd_produced_records_total"); consumed != in || produced != out {
			t.Errorf("consumed %v, in %v, out %v, produced %v", consumed, in, out, produced)
		}
	}
}
