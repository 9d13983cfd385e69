package crash

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics is one scrape.
type Metrics map[string]*dto.MetricFamily

// Scrape reads /metrics of a daemon.
func Scrape(ctx context.Context, address string) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("crash: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("crash: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("crash: /metrics answered %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("crash: /metrics: %w", err)
	}
	return families, nil
}

// Sum adds the samples of a metric that have all the given label values: counters and gauges by value, histograms by their number
// of observations. series is how many there were.
func (m Metrics) Sum(name string, labels map[string]string) (sum float64, series int) {
	family, ok := m[name]
	if !ok {
		return 0, 0
	}
	for _, x := range family.GetMetric() {
		if !hasLabels(x, labels) {
			continue
		}
		series++
		switch {
		case x.Counter != nil:
			sum += x.Counter.GetValue()
		case x.Gauge != nil:
			sum += x.Gauge.GetValue()
		case x.Histogram != nil:
			sum += float64(x.Histogram.GetSampleCount())
		case x.Untyped != nil:
			sum += x.Untyped.GetValue()
		}
	}
	return sum, series
}

func hasLabels(x *dto.Metric, want map[string]string) bool {
	found := 0
	for _, l := range x.GetLabel() {
		if v, ok := want[l.GetName()]; ok && v == l.GetValue() {
			found++
		}
	}
	return found == len(want)
}
