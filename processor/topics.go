package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/topology"
)

// ErrTopics: the topics of the cluster are not what the topology needs. Starting again does not help;
// each joined error names a topic, the numbers and the remedy.
var ErrTopics = errors.New("processor: the cluster's topics do not fit the topology")

const (
	// idLogSlack is what an ID log keeps beyond the dedup window: retention works by whole segments, and
	// the window is in stream time while retention is in the broker's.
	idLogSlack = 24 * time.Hour
	// idLogLeast is the least an ID log keeps. It holds the commit records, which must outlive the
	// group's offsets (offsets.retention.minutes, 7 days by default).
	idLogLeast = 8 * 24 * time.Hour
	// minMessageBytes is assumed for a topic whose max.message.bytes is not told.
	minMessageBytes = 1 << 20
	// changelogOverhead bounds what Kafka and our own format add to a changelog record.
	changelogOverhead = 1 << 10
)

// buildPlan looks at the topics, makes the internal ones that are missing, and checks all.
func buildPlan(ctx context.Context, c broker.Cluster, topo *topology.Topology, cfg *config) ([]*subPlan, error) {
	subs := topo.Subtopologies()
	seen, err := userTopics(ctx, c, topo, cfg)
	if err != nil {
		return nil, err
	}
	if err := checkIDLogs(ctx, c, topo, cfg); err != nil {
		return nil, err
	}
	counts, err := partitionCounts(topo, seen)
	if err != nil {
		return nil, err
	}
	if err := checkJoins(topo, seen, counts); err != nil {
		return nil, err
	}
	var want []broker.Topic
	for _, s := range subs {
		for _, src := range s.Sources {
			if src.Internal {
				want = append(want, broker.Topic{Name: topo.SourceTopic(src), Partitions: counts[src.Topic], Cleanup: broker.Delete, Retention: -1})
			}
		}
		want = append(want, changelogTopics(topo, s, tasksOf(s, topo, seen, counts))...)
	}
	have, err := ensureTopics(ctx, c, want)
	if err != nil {
		return nil, err
	}
	for name, t := range seen {
		have[name] = t
	}
	var resets changelog.Resets
	if slices.ContainsFunc(subs, (*topology.Subtopology).Stateful) {
		// Who may not look goes on without: then a store that is older than a reset is refused.
		if resets, err = changelog.ReadResets(ctx, c, topo.Name()); err != nil && !errors.Is(err, broker.ErrAuthorization) {
			return nil, fmt.Errorf("processor: %w", err)
		}
	}
	plans := make([]*subPlan, 0, len(subs))
	for _, s := range subs {
		p := planOf(topo, s, have, cfg)
		p.resets = resets
		plans = append(plans, p)
	}
	countUpstreams(plans)
	return plans, nil
}

// countUpstreams finds how many tasks tell their time in each input, and which of those who hear it keep it nowhere.
func countUpstreams(plans []*subPlan) {
	forgetful := map[string]bool{}
	writers := map[string]int32{} // by what stands in Sink.Topic
	for _, p := range plans {
		for _, k := range p.sub.Sinks {
			if k.Marks {
				writers[k.Topic] = p.tasks
			}
		}
	}
	for _, p := range plans {
		p.upstreams, p.forgetful = make([]int32, len(p.sub.Sources)), forgetful
		for i, src := range p.sub.Sources {
			if src.Marks {
				p.upstreams[i] = writers[src.Topic]
				forgetful[src.Topic] = !p.sub.Stateful()
			}
		}
	}
}

// userTopics describes the topics that are not ours. All that are missing are named at once.
func userTopics(ctx context.Context, c broker.Cluster, topo *topology.Topology, cfg *config) (map[string]broker.Topic, error) {
	use := map[string]string{}
	var names []string
	add := func(topic, what string) {
		if _, ok := use[topic]; !ok {
			use[topic] = what
			names = append(names, topic)
		}
	}
	for _, s := range topo.Subtopologies() {
		for _, x := range s.Sources {
			if !x.Internal {
				add(x.Topic, "input topic")
			}
		}
		for _, x := range s.Sinks {
			if !x.Internal {
				add(x.Topic, "output topic")
			}
		}
	}
	for _, g := range topo.Globals() {
		add(g.Topic, "topic of global table "+strconv.Quote(g.Name)+",")
	}
	if cfg.deadLetter != "" {
		add(cfg.deadLetter, "dead letter topic")
	}
	seen, err := c.Topics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("processor: describe topics: %w", err)
	}
	var missing []error
	for _, n := range names {
		if _, ok := seen[n]; !ok {
			missing = append(missing, fmt.Errorf("%s %q does not exist: create it, for example with: kafka-topics.sh --create --topic %s --partitions N --bootstrap-server BROKER; "+
				"in the broker of streamd dev: start that with the pipeline file, or with --topic %s:N", use[n], n, n, n))
		}
	}
	if missing != nil {
		return nil, errors.Join(ErrTopics, errors.Join(missing...))
	}
	return seen, nil
}

// partitionCounts finds the number of partitions of each repartition topic: what the topology says, or
// as many as the widest input of the sub-topology that writes it.
func partitionCounts(topo *topology.Topology, seen map[string]broker.Topic) (map[string]int32, error) {
	counts, aligned := map[string]int32{}, map[string]bool{}
	for range topo.Subtopologies() { // a repartition topic may feed the next one
		for _, s := range topo.Subtopologies() {
			widest := tasksOf(s, topo, seen, counts)
			for _, k := range s.Sinks {
				switch {
				case !k.Internal:
				case k.Partitions > 0:
					counts[k.Topic] = k.Partitions
				case aligned[k.Topic]:
				case widest > counts[k.Topic]:
					counts[k.Topic] = widest
				}
			}
		}
		alignJoins(topo, seen, counts, aligned)
	}
	for _, s := range topo.Subtopologies() {
		for _, x := range s.Sources {
			if x.Internal && counts[x.Topic] == 0 {
				return nil, fmt.Errorf("%w: the number of partitions of repartition topic %q cannot be derived: give it in the topology", ErrTopics, x.Topic)
			}
		}
	}
	return counts, nil
}

// tasksOf is the number of partitions of a sub-topology's widest input, as far as it is known.
func tasksOf(s *topology.Subtopology, topo *topology.Topology, seen map[string]broker.Topic, counts map[string]int32) (n int32) {
	for _, x := range s.Sources {
		if x.Internal {
			n = max(n, counts[x.Topic])
		} else {
			n = max(n, seen[x.Topic].Partitions)
		}
	}
	return n
}

// changelogTopics are the topics that a stateful sub-topology keeps its log and its stores in.
func changelogTopics(topo *topology.Topology, s *topology.Subtopology, tasks int32) []broker.Topic {
	if !s.Stateful() {
		return nil
	}
	keep := idLogLeast
	for _, d := range s.Dedups {
		keep = max(keep, d.Config.Retention+idLogSlack)
	}
	out := []broker.Topic{{Name: topo.IDLogTopic(s), Partitions: tasks, Cleanup: broker.Delete, Retention: keep, LogAppendTime: true}}
	for _, st := range s.Stores {
		out = append(out, broker.Topic{Name: topo.StoreTopic(st.Name), Partitions: tasks, Cleanup: broker.Compact})
	}
	return out
}

// ensureTopics makes what is missing and refuses what is there and wrong, with the numbers.
func ensureTopics(ctx context.Context, c broker.Cluster, want []broker.Topic) (map[string]broker.Topic, error) {
	names := make([]string, len(want))
	for i := range want {
		names[i] = want[i].Name
	}
	have, err := c.Topics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("processor: describe internal topics: %w", err)
	}
	made := false
	for _, t := range want {
		if _, ok := have[t.Name]; ok {
			continue
		}
		t.Replicas = -1
		if err := c.CreateTopic(ctx, t); err != nil && !errors.Is(err, broker.ErrTopicExists) {
			return nil, fmt.Errorf("processor: create internal topic %q: %w", t.Name, err)
		}
		made = true
	}
	if made {
		if have, err = c.Topics(ctx, names...); err != nil {
			return nil, fmt.Errorf("processor: describe internal topics: %w", err)
		}
	}
	var wrong []error
	for _, t := range want {
		wrong = append(wrong, checkTopic(t, have)...)
	}
	if wrong != nil {
		return nil, errors.Join(ErrTopics, errors.Join(wrong...))
	}
	return have, nil
}

func checkTopic(want broker.Topic, have map[string]broker.Topic) (wrong []error) {
	h, ok := have[want.Name]
	if !ok {
		return []error{fmt.Errorf("internal topic %q does not exist after it was created", want.Name)}
	}
	bad := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("internal topic %q "+format, append([]any{want.Name}, args...)...))
	}
	if h.Partitions != want.Partitions {
		bad("has %d partitions, its sub-topology has %d tasks: the partitions of an input topic were changed. State cannot be split: "+
			"set the number of partitions back, or start anew under another application name", h.Partitions, want.Partitions)
	}
	if h.Cleanup != want.Cleanup {
		bad("has cleanup.policy=%s, want %s: set it with kafka-configs.sh --alter", h.Cleanup, want.Cleanup)
	}
	if want.Cleanup == broker.Delete && want.Retention > 0 && h.Retention >= 0 && h.Retention < want.Retention {
		bad("has retention.ms=%d, the dedup window needs %d: raise it with kafka-configs.sh --alter", h.Retention.Milliseconds(), want.Retention.Milliseconds())
	}
	if want.LogAppendTime && !h.LogAppendTime {
		bad("has message.timestamp.type=CreateTime, want LogAppendTime: a wrong producer clock could delete it. Set it with kafka-configs.sh --alter")
	}
	return wrong
}

func planOf(topo *topology.Topology, s *topology.Subtopology, have map[string]broker.Topic, cfg *config) *subPlan {
	p := &subPlan{sub: s}
	for _, x := range s.Sources {
		t := have[topo.SourceTopic(x)]
		p.inputs = append(p.inputs, t)
		p.tasks = max(p.tasks, t.Partitions)
	}
	for _, x := range s.Sinks {
		target := targetOf(x.Name, have[topo.SinkTopic(x)])
		target.ahead = x.Ahead(cfg.guarantee)
		p.sinks = append(p.sinks, target)
	}
	if s.Stateful() {
		p.idLog = have[topo.IDLogTopic(s)]
		for _, st := range s.Stores {
			p.stores = append(p.stores, have[topo.StoreTopic(st.Name)])
		}
	}
	if cfg.deadLetter != "" {
		p.deadLetter = targetOf("", have[cfg.deadLetter])
	}
	return p
}

func targetOf(operator string, t broker.Topic) sinkTarget {
	return sinkTarget{operator: operator, topic: t.Name, partitions: t.Partitions, maxBytes: maxMessage(t)}
}

func maxMessage(t broker.Topic) int {
	if t.MaxMessageBytes == 0 {
		return minMessageBytes
	}
	return t.MaxMessageBytes
}

// messageLimit is what key and value of one changelog record may take.
func messageLimit(t broker.Topic) int { return maxMessage(t) - changelogOverhead }
