package daemon

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/pipeline"
)

// watch makes the metrics and the watches of a pipeline's sources outside of Kafka. They are there before a source is opened, so that one that cannot
// be is seen.
func (m *member) watch(registry *prometheus.Registry) error {
	var sources []metric.Source
	for _, s := range m.p.Sources {
		if s.Ingress != nil {
			sources = append(sources, metric.Source{Name: s.Name, Files: s.Ingress.File != nil, Table: s.Ingress.Table != nil})
		}
	}
	if len(sources) == 0 {
		return nil
	}
	var err error
	if m.ingress, err = metric.NewIngress(registry, m.p.Name, sources); err != nil {
		return err
	}
	m.watches = map[string]*ingress.Watch{}
	var order []*ingress.Watch
	for _, s := range m.p.Sources {
		if s.Ingress == nil {
			continue
		}
		kind, where := whereOf(s)
		w := ingress.NewWatch(sources[len(order)], kind, s.Topic, where, m.ingress)
		m.watches[s.Name], order = w, append(order, w)
	}
	m.web.Sources = func() []ingress.Status {
		out := make([]ingress.Status, len(order))
		for i, w := range order {
			out[i] = w.Status()
		}
		return out
	}
	return nil
}

// whereOf says where a source's records come from, as its file has it.
func whereOf(s pipeline.Source) (ingress.Kind, string) {
	in := s.Ingress
	switch {
	case in.File != nil:
		return ingress.KindFiles, strings.Join(in.File.Paths, ", ")
	case in.Table != nil:
		return ingress.KindTable, in.Table.Where()
	case in.TCP != nil:
		return ingress.KindTCP, in.TCP.Address
	}
	return ingress.KindHTTP, securityOf(s).scheme() + "://" + in.HTTP.Address + in.HTTP.Path
}
