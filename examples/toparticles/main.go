package main

import (
	"cmp"
	"context"
	"log"
	"os"
	"slices"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// article is what an article-views record says was viewed.
type article struct{ Industry, Title string }

type views struct {
	Title string
	Count int64
}

// put replaces the count of an article and keeps the three largest ones.
func put(top []views, r record.Record[string, views]) ([]views, error) {
	top = slices.DeleteFunc(slices.Clone(top), func(v views) bool { return v.Title == r.Value.Title })
	top = append(top, r.Value)
	slices.SortFunc(top, func(a, b views) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Title, b.Title)) })
	return top[:min(3, len(top))], nil
}

func build() (*topology.Topology, error) {
	b := topology.New("toparticles")
	seen := topology.From(b, "article-views", serde.String(), serde.JSON[article]())
	byArticle := topology.KeyBy(seen, "by-article", serde.JSON[article](), func(r record.Record[string, article]) (article, error) { return r.Value, nil })
	hours := window.Tumbling(time.Hour)
	counts := topology.Count(topology.WindowedBy(byArticle, hours), "views", topology.EmitOnClose())
	ofArticle := topology.MapValues(counts, func(r record.Record[window.Key[article], int64]) (views, error) {
		return views{r.Key.Key.Title, r.Value}, nil
	}).WithValues(serde.JSON[views]())
	byIndustry := topology.KeyBy(ofArticle, "by-industry", serde.String(), func(r record.Record[window.Key[article], views]) (string, error) {
		return r.Key.Key.Industry, nil
	})
	top := topology.Aggregate(topology.WindowedBy(byIndustry, hours), "top", serde.JSON[[]views](), put, topology.EmitOnClose())
	topology.To(top, "top-articles", window.KeySerde(serde.String()), serde.JSON[[]views]())
	return b.Build()
}

func main() {
	topo, err := build()
	if err != nil {
		log.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(os.Args[1:]...))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(app.Run(context.Background()))
}
