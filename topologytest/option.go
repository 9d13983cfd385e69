package topologytest

import (
	"time"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// Option configures a Driver, or the drivers of a Fuzz.
type Option func(*config)

type config struct {
	partitions map[string]int32
	topics     []string // those of partitions, in the order of the options
	instances  int
	start      time.Time
	options    []processor.Option
	build      func() (*topology.Topology, error)
	duplicates float64
	reorder    int

	// Of Fuzz.
	runs    int
	seed    uint64
	compare map[string]Comparison

	metrics *metric.Set // shared by the drivers of a Fuzz: making it takes longer than a run
}

func configOf(opts []Option) config {
	c := config{
		partitions: map[string]int32{}, instances: 1, start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		runs: 50, seed: 1, compare: map[string]Comparison{},
	}
	for _, o := range opts {
		o(&c)
	}
	return c
}

// Partitions makes a topic with n partitions, at least 1. Topics that the topology names and no option does have one. A topic that
// only options name, as that of dead letters, must be made this way.
func Partitions(topic string, n int32) Option {
	return func(c *config) {
		if _, ok := c.partitions[topic]; !ok {
			c.topics = append(c.topics, topic)
		}
		c.partitions[topic] = n
	}
}

// Instances sets how many processes share the work, 1 to 26. Default 1.
func Instances(n int) Option { return func(c *config) { c.instances = n } }

// StartAt sets the clock at the start. Default: 2026-01-01 00:00 UTC.
func StartAt(at time.Time) Option { return func(c *config) { c.start = at } }

// Options gives options of the application, as processor.New gets them: the error policy, the limits of transactions. The
// brokers, the state directory and the number of workers have no meaning here.
func Options(opts ...processor.Option) Option {
	return func(c *config) { c.options = append(c.options, opts...) }
}

// Rebuild gives each process that starts a topology of its own, so that what the functions of the old one held in memory is gone
// as in a real crash. Default: all processes use the topology that New was given.
func Rebuild(build func() (*topology.Topology, error)) Option {
	return func(c *config) { c.build = build }
}

// Duplicates is Driver.Duplicate from the start. In a Fuzz the run without faults has none.
func Duplicates(probability float64) Option {
	return func(c *config) { c.duplicates = probability }
}

// Reordered is Driver.Reorder from the start. In a Fuzz the run without faults keeps the order.
func Reordered(places int) Option { return func(c *config) { c.reorder = places } }

// Runs sets how many schedules a Fuzz tries. Default 50.
func Runs(n int) Option { return func(c *config) { c.runs = n } }

// Seed sets what the choices of a Fuzz, of Duplicate and of Reorder are drawn from. Default 1. A Fuzz of seed s and n
// runs tries the schedules s to s+n-1.
func Seed(seed uint64) Option { return func(c *config) { c.seed = seed } }

// Compare says how a Fuzz compares the records of an output topic. Default: as strictly as the topology allows, see
// Comparison.
func Compare(topic string, how Comparison) Option {
	return func(c *config) { c.compare[topic] = how }
}
