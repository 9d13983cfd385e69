package processor

import (
	"strings"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// The counters that the task itself keeps. The names are stored: never change one.
const (
	counterConsumedRecords topology.CounterKind = "consumed/records" // of a topic
	counterConsumedBytes   topology.CounterKind = "consumed/bytes"
	counterProducedRecords topology.CounterKind = "produced/records"
	counterProducedBytes   topology.CounterKind = "produced/bytes"
	// Of a sub-topology: its ID log and its state changelogs together.
	counterChangelogRecords topology.CounterKind = "changelog/records"
	counterChangelogBytes   topology.CounterKind = "changelog/bytes"
)

// counters are a task's persistent counters: increments count only once their transaction is
// committed (INV-9).
type counters struct {
	names []string // as stored
	cells []*counterCell
	index map[topology.CounterID]int
}

type counterCell struct{ now, committed uint64 }

// separator stands between kind and name in a stored counter.
const separator = ":"

// load takes over the counters of a commit point.
func (c *counters) load(stored []record.Counter) {
	for _, s := range stored {
		kind, of, _ := strings.Cut(s.Name, separator)
		i := c.at(topology.CounterID{Kind: topology.CounterKind(kind), Of: of})
		c.cells[i].now, c.cells[i].committed = s.Value, s.Value
	}
}

func (c *counters) at(id topology.CounterID) int {
	if i, ok := c.index[id]; ok {
		return i
	}
	if c.index == nil {
		c.index = map[topology.CounterID]int{}
	}
	i := len(c.cells)
	c.index[id] = i
	c.names = append(c.names, string(id.Kind)+separator+id.Of)
	c.cells = append(c.cells, &counterCell{})
	return i
}

// cell returns the place to count at.
func (c *counters) cell(id topology.CounterID) *uint64 { return &c.cells[c.at(id)].now }

func (c *counters) add(id topology.CounterID, n uint64) { c.cells[c.at(id)].now += n }

// snapshot returns the counters as of now, in the order of their first use: all that are not zero, or
// those that changed since the last commit.
func (c *counters) snapshot(all bool) []record.Counter {
	var out []record.Counter
	for i, x := range c.cells {
		if x.now != x.committed || all && x.now != 0 {
			out = append(out, record.Counter{Name: c.names[i], Value: x.now})
		}
	}
	return out
}

// committedValues returns all counters as of the last commit.
func (c *counters) committedValues() []record.Counter {
	out := make([]record.Counter, 0, len(c.cells))
	for i, x := range c.cells {
		out = append(out, record.Counter{Name: c.names[i], Value: x.committed})
	}
	return out
}

func (c *counters) commit() {
	for _, x := range c.cells {
		x.committed = x.now
	}
}

func (c *counters) abort() {
	for _, x := range c.cells {
		x.now = x.committed
	}
}
