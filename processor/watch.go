package processor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
)

const (
	// watchInterval is how often the brokers are asked how far the inputs go.
	watchInterval = 10 * time.Second
	// stuckAfter is how long an input may stand still before the state says so: less than the transaction
	// timeout that producers have by default (60 s), and more than any commit takes.
	stuckAfter = 30 * time.Second
)

// watch asks the brokers for what the readers do not hear of: a reader that gets nothing cannot tell
// whether there is nothing, whether a transaction that nobody ends holds it up, or whether it has died.
type watch struct {
	*engine
	seen map[record.TopicPartition]watched
}

// watched is an input partition as it was, and since when at least: when an input was silent for long, what comes then has not
// been waiting for all that time.
type watched struct {
	next, stable, high record.Offset
	moved, ended       time.Time // next had something before it and stayed where it was since then; stable likewise
}

// watchLoop looks until ctx ends.
func (e *engine) watchLoop(ctx context.Context) {
	w := watch{engine: e}
	for sleep(ctx, watchInterval) == nil {
		w.look(ctx)
		w.instances(ctx)
	}
}

// look compares once. Brokers that do not answer are no news: whoever has work to do says that.
func (w *watch) look(ctx context.Context) {
	inputs := w.stats.inputs()
	var tps []record.TopicPartition
	for _, in := range inputs {
		tps = append(tps, in.tp)
	}
	stable, high := map[record.TopicPartition]record.Offset{}, map[record.TopicPartition]record.Offset{}
	if len(tps) > 0 {
		ctx, cancel := context.WithTimeout(ctx, watchInterval)
		defer cancel()
		var err error
		if stable, err = w.cluster.StableOffsets(ctx, tps); err == nil {
			high, err = w.cluster.HighWatermarks(ctx, tps)
		}
		if err != nil {
			w.log.Debug("cannot ask how far the inputs go", "err", err)
			return
		}
	}
	now := w.now()
	seen := make(map[record.TopicPartition]watched, len(inputs))
	stuck := map[string]string{}
	for _, in := range inputs {
		was, known := w.seen[in.tp]
		is := watched{next: in.next, stable: stable[in.tp], high: high[in.tp], moved: now, ended: now}
		if known && was.next == is.next && was.next < was.stable {
			is.moved = was.moved
		}
		if known && was.stable == is.stable && was.stable < was.high {
			is.ended = was.ended
		}
		seen[in.tp] = is
		if reason := is.stuck(in.tp, now); reason != "" && in.running {
			stuck[in.task] = reason
		}
	}
	w.seen = seen
	w.tell(w.stats.watched(stable, stuck))
}

// stuck says what keeps an input from moving, if something does.
func (x watched) stuck(tp record.TopicPartition, now time.Time) string {
	switch {
	case x.next >= x.stable && x.stable < x.high && now.Sub(x.ended) >= stuckAfter:
		return fmt.Sprintf("a transaction in %s that nobody has ended holds up its readers at offset %d, before %d others, for %v: "+
			"its producer is to end it, or an operator: see streamd inspect transactions", tp, x.stable, x.high-x.stable, now.Sub(x.ended).Round(time.Second))
	case x.next < x.stable && now.Sub(x.moved) >= stuckAfter:
		return fmt.Sprintf("no progress in %s at offset %d, before %d others, for %v", tp, x.next, x.stable-x.next, now.Sub(x.moved).Round(time.Second))
	}
	return ""
}

// tell logs what is new.
func (w *watch) tell(begun map[string]string, over []string) {
	for task, reason := range begun {
		w.log.Warn("task is held up", "task", task, "reason", reason)
	}
	for _, task := range over {
		w.log.Info("task goes on", "task", task)
	}
}

// watchedInput is an input partition of a task.
type watchedInput struct {
	task    string
	running bool
	tp      record.TopicPartition
	next    record.Offset
}

// inputs lists the input partitions of the tasks that have been restored.
func (s *stats) inputs() []watchedInput {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []watchedInput
	for name, v := range s.tasks {
		for _, in := range v.status.Inputs {
			tp := record.TopicPartition{Topic: in.Topic, Partition: record.Partition(in.Partition)}
			out = append(out, watchedInput{task: name, running: v.status.State == TaskRunning, tp: tp, next: in.Next})
		}
	}
	slices.SortFunc(out, func(a, b watchedInput) int { return strings.Compare(a.tp.String(), b.tp.String()) })
	return out
}

// watched takes over how far the inputs go and which tasks are held up. It returns what has changed.
func (s *stats) watched(stable map[record.TopicPartition]record.Offset, stuck map[string]string) (begun map[string]string, over []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.tasks {
		for i := range v.status.Inputs {
			in := &v.status.Inputs[i]
			if at, ok := stable[record.TopicPartition{Topic: in.Topic, Partition: record.Partition(in.Partition)}]; ok && at > in.Stable {
				in.Stable, in.Lag = at, max(0, int64(at-in.Next))
			}
		}
	}
	begun = map[string]string{}
	for task, reason := range stuck {
		if s.stuck[task] == "" {
			begun[task] = reason
		}
	}
	for task := range s.stuck {
		if stuck[task] == "" {
			over = append(over, task)
		}
	}
	slices.Sort(over)
	s.stuck = stuck
	return begun, over
}

// failing notes why a worker's transaction is not committed; nil: it was, or there is none.
func (s *stats) failing(worker int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.failed, worker)
		return
	}
	s.failed[worker] = err.Error()
}

// down notes why the rows of a sink's task are not written; nil: they are, or it is gone.
func (s *stats) down(task string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.unwritten, task)
		return
	}
	s.unwritten[task] = err.Error()
}

// held says what keeps the tasks from working, though they run. Empty: nothing. s.mu is held.
func (s *stats) held() string {
	var reasons []string
	for _, why := range s.failed {
		reasons = append(reasons, "transactions are not committed: "+why)
	}
	for task, why := range s.unwritten {
		reasons = append(reasons, "rows are not written: "+task+": "+why)
	}
	for task, why := range s.stuck {
		if s.unwritten[task] == "" { // which says more
			reasons = append(reasons, why)
		}
	}
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; ")
}
