package ids

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// step is a dedup operator and where its IDs are.
type step struct {
	processor.IDLog
	spec topology.DedupSpec
	// byID says that the tasks' records are partitioned by their ID (scope: stream).
	byID bool
}

// find looks for the operator called name; empty: the only one.
func find(ctx context.Context, c broker.Cluster, topo *topology.Topology, name string) (*step, error) {
	spec, err := choose(topo, name)
	if err != nil {
		return nil, err
	}
	logs, err := processor.IDLogs(ctx, c, topo)
	if err != nil {
		return nil, err
	}
	for _, l := range logs {
		for _, d := range l.Sub.Dedups {
			if d.Name != spec.Name {
				continue
			}
			s := &step{IDLog: l, spec: d}
			for _, src := range l.Sub.Sources {
				s.byID = s.byID || src.Internal && topo.SourceTopic(src) == topo.Name()+"-"+d.Name+"-repartition"
			}
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w: step %q has no log of IDs", daemon.ErrConfig, spec.Name)
}

// choose finds the operator in the topology.
func choose(topo *topology.Topology, name string) (topology.DedupSpec, error) {
	var all []topology.DedupSpec
	for _, s := range topo.Subtopologies() {
		all = append(all, s.Dedups...)
		for _, d := range s.LeftOut {
			if d.Name == name {
				return d, fmt.Errorf("%w: step %q has no log of IDs: %q before it lets no repeats through. Import into %[3]q", daemon.ErrConfig, name, d.By)
			}
		}
	}
	var names []string
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	switch {
	case len(all) == 0:
		return topology.DedupSpec{}, fmt.Errorf("%w: the pipeline has no dedup step", daemon.ErrConfig)
	case name == "" && len(all) == 1:
		return all[0], nil
	case name == "":
		return topology.DedupSpec{}, daemon.Usagef("the pipeline has several dedup steps: say which with --step: %s", strings.Join(names, ", "))
	}
	return topology.DedupSpec{}, fmt.Errorf("%w: no dedup step is called %q; there are: %s", daemon.ErrConfig, name, strings.Join(names, ", "))
}

// Placing says to which tasks an imported ID goes. A record is compared with the IDs of its own task only.
type Placing string

// The ways.
const (
	// ByID: the hash of the ID, as scope: stream does.
	ByID Placing = "id"
	// ByKey: the hash of the key that stands beside the ID, as Kafka's producers do.
	ByKey Placing = "key"
	// ByPartition: the number that stands beside the ID, as an export has it.
	ByPartition Placing = "partition"
	// Everywhere: each task gets each ID.
	Everywhere Placing = "everywhere"
)

// placing checks what was asked for; empty: what the scope says.
func (s *step) placing(asked Placing) (Placing, error) {
	switch {
	case asked == "" && s.byID:
		return ByID, nil
	case asked == "" && s.Topic.Partitions == 1:
		return Everywhere, nil
	case asked == "":
		return "", daemon.Usagef("step %q compares IDs within each of %d partitions, so that an ID has to come to the partition of its records. Say how they are "+
			"partitioned: --partition-by id if the ID is the key of the records, --partition-by key if the key stands beside the ID (--key-column), "+
			"--partition-by everywhere for a copy in each (%[2]d times the memory); or give the step scope: stream", s.spec.Name, s.Topic.Partitions)
	case !slices.Contains([]Placing{ByID, ByKey, ByPartition, Everywhere}, asked):
		return "", daemon.Usagef("--partition-by %q is not one of id, key, partition, everywhere", asked)
	case s.byID && asked == ByKey:
		return "", daemon.Usagef("step %q has scope: stream, which partitions by ID: --partition-by key would put IDs where no record looks for them", s.spec.Name)
	}
	return asked, nil
}

// compare looks whether the records are where the IDs are put. Copies of the others would come again without a word. note says that there
// was nothing to compare with.
func (s *step) compare(ctx context.Context, p *pipeline.Pipeline, topo *topology.Topology, by Placing) (note string, err error) {
	if s.byID || s.Topic.Partitions == 1 || by != ByID && by != ByKey {
		return "", nil
	}
	records, err := verify.SampleKeys(ctx, p, topo, s.Sub, s.spec.Name)
	if err != nil {
		return "", err
	}
	if len(records) == 0 {
		return "no record of the inputs could be looked at to see whether their partitions follow from their " + string(by), nil
	}
	wrong, unknown, first, why := 0, 0, verify.Keyed{}, ""
	for _, r := range records {
		reason := ""
		switch {
		case by == ByID && r.Key == nil: // it may be where its ID belongs, as streamd's own sources put it
			unknown++
			continue
		case by == ByID && !r.IsID:
			reason = "is not its ID"
		case !r.Hashed:
			reason = "belongs to another partition, as Kafka's clients hash keys"
		default:
			continue
		}
		if wrong++; wrong == 1 {
			first, why = r, reason
		}
	}
	switch {
	case wrong == 0 && unknown > 0:
		return fmt.Sprintf("%d of the %d newest records have no key: whether their partitions follow from their id is not known", unknown, len(records)), nil
	case wrong == 0:
		return "", nil
	}
	key := "no key, which"
	if first.Key != nil {
		key = fmt.Sprintf("the key %.60q, which", first.Key)
	}
	remedy := "--partition-by everywhere is always right"
	if by == ByID {
		remedy += ", --partition-by key if the key stands beside the ID"
	}
	return "", daemon.Usagef("--partition-by %s would put IDs where no copy meets them: %s has %s %s, and so have %d of the %d newest records. Remedy: %s",
		by, first.Place, key, why, wrong, len(records), remedy)
}

// tasks returns the tasks that an ID goes to, into room.
func (p Placing) tasks(room []record.Partition, e *entry, n int32) ([]record.Partition, error) {
	switch p {
	case ByID:
		if e.id == nil {
			return nil, fmt.Errorf("%w: a hash does not tell the partition of its ID: import it with --partition-by partition or everywhere", errEntry)
		}
		return append(room, record.PartitionForKey(e.id, n)), nil
	case ByKey:
		if e.key == nil {
			return nil, fmt.Errorf("%w: no key", errEntry)
		}
		return append(room, record.PartitionForKey(e.key, n)), nil
	case ByPartition:
		if e.partition < 0 || e.partition >= n {
			return nil, fmt.Errorf("%w: partition %d, the step has %d tasks", errEntry, e.partition, n)
		}
		return append(room, record.Partition(e.partition)), nil
	}
	for i := range n {
		room = append(room, record.Partition(i))
	}
	return room, nil
}
