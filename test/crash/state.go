package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// LocalState says what CheckLocalState has compared.
type LocalState struct {
	Tasks   int // tasks that have the store
	Keys    int // their keys in the store
	Current int // tasks that are at the end of their changelog: the others are what an owner of old left behind
}

// CheckLocalState compares the state in a daemon's directory, whose process has ended, with the changelog: each task's
// part of the store must be the fold of the committed records before its position (INV-2), be it that of the present
// owner or one that was left behind. The topic must not have been compacted yet.
func CheckLocalState(ctx context.Context, brokers []string, dir, app, store, topic string) (LocalState, error) {
	var sum LocalState
	cluster, err := clusterOf(dir)
	if err != nil {
		return sum, err
	}
	log, err := txlog.Open(txlog.Options{Dir: dir, App: app, Cluster: cluster})
	if err != nil {
		return sum, fmt.Errorf("crash: %w", err)
	}
	defer log.Close()
	if reason, aside := log.SetAside(); aside {
		return sum, fmt.Errorf("crash: the store in %s was set aside: %s", dir, reason)
	}
	for _, name := range log.Tasks() {
		task, err := log.Task(name)
		if err != nil {
			return sum, fmt.Errorf("crash: %w", err)
		}
		if err := task.Check(); err != nil {
			return sum, fmt.Errorf("crash: task %s: %w", name, err)
		}
		position, ok := task.Position()
		if !ok {
			continue
		}
		for _, c := range position.Changelogs {
			if c.Topic != topic {
				continue
			}
			want, end, err := fold(ctx, brokers, c.TopicPartition, int64(c.Next))
			if err != nil {
				return sum, err
			}
			sum.Tasks++
			sum.Keys += len(want)
			if int64(c.Next) >= end {
				sum.Current++
			}
			if err := compare(task, store, want); err != nil {
				return sum, fmt.Errorf("crash: task %s at %d of %d: %w", name, c.Next, end, err)
			}
		}
	}
	return sum, nil
}

// compare says how the store differs from what it should hold. It uses want up.
func compare(task *txlog.Task, store string, want map[string][]byte) error {
	var wrong error
	err := task.Range(store, nil, nil, func(k, v []byte) bool {
		w, ok := want[string(k)]
		switch {
		case !ok:
			wrong = fmt.Errorf("key %q is there, the changelog does not have it", k)
		case !bytes.Equal(v, w):
			wrong = fmt.Errorf("key %q is %q, the changelog says %q", k, v, w)
		}
		delete(want, string(k))
		return wrong == nil
	})
	if err != nil {
		return err
	}
	if wrong != nil {
		return wrong
	}
	for k := range want {
		return fmt.Errorf("key %q of the changelog is missing, one of %d", k, len(want))
	}
	return nil
}

// clusterOf reads the cluster's ID from the directory's STATE (docs/format.md).
func clusterOf(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "STATE"))
	if err != nil {
		return "", fmt.Errorf("crash: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var state struct {
		Cluster string `json:"cluster"`
	}
	if err := json.Unmarshal([]byte(line), &state); err != nil {
		return "", fmt.Errorf("crash: STATE in %s: %w", dir, err)
	}
	return state.Cluster, nil
}

// fold returns the last value of each key among the committed records before next, and where the last one of all ends:
// behind it there are only markers.
func fold(ctx context.Context, brokers []string, tp record.TopicPartition, next int64) (values map[string][]byte, last int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := int32(tp.Partition)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{tp.Topic: {p: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return nil, 0, fmt.Errorf("crash: %w", err)
	}
	defer client.Close()
	ends, err := listEnds(ctx, client, tp.Topic, 0)
	if err != nil {
		return nil, 0, err
	}
	values = map[string][]byte{}
	for read := int64(0); read < ends[p]; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, 0, fmt.Errorf("crash: reading %v from %d to %d: %w", tp, read, ends[p], err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			read = r.Offset + 1
			if r.Attrs.IsControl() {
				return
			}
			last = read
			switch {
			case r.Offset >= next:
			case r.Value == nil:
				delete(values, string(r.Key))
			default:
				values[string(r.Key)] = r.Value
			}
		})
	}
	return values, last, nil
}
