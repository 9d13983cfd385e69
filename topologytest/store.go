package topologytest

import (
	"maps"
	"slices"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// StoreView shows the committed content of a state store, over all partitions.
type StoreView[K, V any] struct {
	d      *Driver
	topic  string
	keys   serde.Serde[K]
	values serde.Serde[V]
}

// Entry is one key of a store.
type Entry[K, V any] struct {
	Partition record.Partition
	Key       K
	Value     V
}

// Store looks into a state store by its name: that of the aggregate, or that given to topology.KeyValue. What it shows is read from the
// committed changelog: it is what any instance would have after a full restore. The keys of windows' stores have another form
// than those of the stream (docs/format.md).
func Store[K, V any](d *Driver, name string, keys serde.Serde[K], values serde.Serde[V]) *StoreView[K, V] {
	d.t.Helper()
	for _, s := range d.topo.Subtopologies() {
		for _, x := range s.Stores {
			if x.Name == name {
				return &StoreView[K, V]{d: d, topic: d.topo.StoreTopic(name), keys: keys, values: values}
			}
		}
	}
	d.t.Fatalf("topologytest: the topology has no state store %q", name)
	return nil
}

// All lets the application work and returns all entries, by partition and then by the bytes of the key.
func (s *StoreView[K, V]) All() []Entry[K, V] {
	s.d.t.Helper()
	s.d.Run()
	var out []Entry[K, V]
	for p := record.Partition(0); ; p++ {
		tp := record.TopicPartition{Topic: s.topic, Partition: p}
		if _, stable, _ := s.d.b.Offsets(tp); stable < 0 {
			return out
		}
		content := fold(s.d.b.Committed(tp))
		for _, k := range slices.Sorted(maps.Keys(content)) {
			e := Entry[K, V]{Partition: p}
			var err error
			if e.Key, err = s.keys.Decode([]byte(k)); err != nil {
				s.d.t.Fatalf("store %q: key %q: %v", s.topic, k, err)
			}
			if e.Value, err = s.values.Decode(content[k]); err != nil {
				s.d.t.Fatalf("store %q: value of key %q: %v", s.topic, k, err)
			}
			out = append(out, e)
		}
	}
}

// Get lets the application work and returns the value of a key, false if there is none. The key is looked for in all partitions.
func (s *StoreView[K, V]) Get(key K) (value V, ok bool) {
	s.d.t.Helper()
	want, err := s.keys.Append(nil, key)
	if err != nil {
		s.d.t.Fatalf("store %q: key: %v", s.topic, err)
	}
	for _, e := range s.All() {
		if k, err := s.keys.Append(nil, e.Key); err == nil && string(k) == string(want) {
			return e.Value, true
		}
	}
	return value, false
}

// fold is what a changelog says.
func fold(changes []broker.Record) map[string][]byte {
	content := map[string][]byte{}
	for _, r := range changes {
		if r.Value == nil {
			delete(content, string(r.Key))
		} else {
			content[string(r.Key)] = r.Value
		}
	}
	return content
}
