//go:build bubble

package synctest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// oracle is what must come of the input, computed from the raw topic without the engine.
type oracle struct {
	accepted [partitions][]bill // in their order
	totals   map[string][]string
	regions  map[string]total
	checked  int
}

func newOracle(w *world) *oracle {
	o := &oracle{totals: map[string][]string{}, regions: map[string]total{}}
	inRegion := map[string]bool{}
	for p, recs := range w.read(billsTopic) {
		seen := map[string]bool{}
		state := map[string]total{}
		for _, r := range recs {
			o.checked++
			b, err := parseBill(string(r.Key), string(r.Value))
			if err != nil {
				panic(err)
			}
			if strings.HasPrefix(b.id, "late-") || seen[b.id] {
				continue
			}
			seen[b.id] = true
			o.accepted[p] = append(o.accepted[p], b)
			t := total{}
			if b.cents != 0 {
				t = state[b.account].with(b.cents)
			}
			state[b.account] = t
			k := accountKey(p, b.account)
			o.totals[k] = append(o.totals[k], t.String())
			if !inRegion[b.id] { // there the scope is the region's partition: both copies meet
				inRegion[b.id] = true
				o.regions[b.region] = o.regions[b.region].with(b.cents)
			}
		}
	}
	return o
}

func accountKey(p int, account string) string { return fmt.Sprintf("%d %s", p, account) }

// check compares the raw topics with the oracle.
func (w *world) check() {
	o := newOracle(w)
	w.checkEcho(o)
	w.checkTotals(o)
	w.checkSums(o)
	w.checkReader()
	w.checkCounters(o)
}

// checkEcho is C1 and C3: every accepted copy once, in its input's order.
func (w *world) checkEcho(o *oracle) {
	place := map[int][2]int{} // of a serial: partition, and place in it from 1
	for p, bills := range o.accepted {
		for i, b := range bills {
			place[b.serial] = [2]int{p, i + 1}
		}
	}
	count := map[int]int{}
	for _, recs := range w.read(echoTopic) {
		last := [partitions]int{}
		for _, r := range recs {
			b, err := parseBill(string(r.Key), string(r.Value))
			at := place[b.serial]
			if err != nil || at[1] == 0 {
				w.fail("C1: %s/%d@%d: bill %s in copy %d is in the echo, but should have been dropped (%v)", r.Topic, r.Partition, r.Offset, b.id, b.serial, err)
				continue
			}
			count[b.serial]++
			if at[1] < last[at[0]] {
				w.fail("C3: %s/%d@%d: bill %s is out of order", r.Topic, r.Partition, r.Offset, b.id)
			}
			last[at[0]] = at[1]
		}
	}
	for _, bills := range o.accepted {
		for _, b := range bills {
			if n := count[b.serial]; n != 1 {
				w.fail("C1: bill %s in copy %d is %d times in the echo", b.id, b.serial, n)
			}
		}
	}
}

// checkTotals is C2: the i-th output of an account is what its first i bills come to.
func (w *world) checkTotals(o *oracle) {
	got := map[string][]string{}
	for _, recs := range w.read(totalsTopic) {
		for _, r := range recs {
			part, rest, _ := strings.Cut(string(r.Value), " ")
			p, _ := strconv.Atoi(part)
			k := accountKey(p, string(r.Key))
			got[k] = append(got[k], rest)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(o.totals)) {
		if !slices.Equal(got[k], o.totals[k]) {
			w.fail("C2: totals of %s: %v, want %v", k, got[k], o.totals[k])
		}
	}
	if len(got) != len(o.totals) {
		w.fail("C2: totals of %d accounts, want %d", len(got), len(o.totals))
	}
}

// checkSums is C4: the sum of a region grows by one bill at a time, and ends at the sum of its accounts.
func (w *world) checkSums(o *oracle) {
	cents := map[string]int64{}
	for _, bills := range o.accepted {
		for _, b := range bills {
			cents[b.id] = b.cents
		}
	}
	last := map[string]total{}
	seen := map[string]bool{}
	for _, recs := range w.read(sumsTopic) {
		for _, r := range recs {
			region := string(r.Key)
			t, id, err := parseSum(string(r.Value))
			if want := last[region].with(cents[id]); err != nil || t != want || seen[id] {
				w.fail("C4: %s/%d@%d: region %s: %q, want %v (bill seen before: %v)", r.Topic, r.Partition, r.Offset, region, r.Value, want, seen[id])
				return
			}
			seen[id] = true
			last[region] = t
		}
	}
	if !maps.Equal(last, o.regions) {
		w.fail("C4: regions end with %v, want %v", last, o.regions)
	}
}

// checkCounters is C10: the counted duplicates are those that were sent. Counters are committed with the
// records, and move with their task.
func (w *world) checkCounters(o *oracle) {
	w.awaitTasks()
	var dropped, late, checked uint64
	for _, c := range w.clients {
		for _, op := range c.status().Operators {
			if op.Name == "unique" {
				dropped += op.Counters[string(topology.CounterDuplicateCommitted)] + op.Counters[string(topology.CounterDuplicateOpen)]
				late += op.Counters[string(topology.CounterTooLate)]
				checked += op.Counters[string(topology.CounterChecked)]
			}
		}
	}
	if int(dropped) != w.load.duplicates || int(late) != w.load.late || int(checked) != o.checked {
		w.fail("C10: counted %d duplicates, %d late, %d checked; sent %d, %d, %d", dropped, late, checked, w.load.duplicates, w.load.late, o.checked)
	}
}

// awaitTasks waits until each task runs in some client: one that moves shows its counters nowhere for as long.
func (w *world) awaitTasks() {
	for begin := time.Now(); time.Since(begin) < recoveryLimit; time.Sleep(100 * time.Millisecond) {
		running := 0
		for _, c := range w.clients {
			for _, task := range c.status().Tasks {
				if task.State == processor.TaskRunning {
					running++
				}
			}
		}
		if running == len(w.inputs())*partitions {
			return
		}
	}
	w.fail("C9: not every task runs %v after the last repeats", recoveryLimit)
}

// watcher is C7: a read_committed reader that runs all the time. Its library goes back to the start of a
// partition when the leader's epoch moves; what it reads twice must be the same twice.
type watcher struct {
	w    *world
	c    *kgo.Client
	done chan struct{}
	stop context.CancelFunc
	seen map[string]*sight
}

// sight is what was seen of a partition.
type sight struct {
	offsets []int64
	values  map[int64]string
}

func newWatcher(w *world) *watcher {
	ctx, cancel := context.WithCancel(w.ctx)
	r := &watcher{w: w, done: make(chan struct{}), stop: cancel, seen: map[string]*sight{}}
	r.c = w.kgo(
		kgo.ConsumeTopics(echoTopic, totalsTopic, sumsTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond),
	)
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			r.c.PollFetches(ctx).EachRecord(r.see)
		}
	}()
	return r
}

func (r *watcher) see(x *kgo.Record) {
	k := partitionKey(x.Topic, int(x.Partition))
	s := r.seen[k]
	if s == nil {
		s = &sight{values: map[int64]string{}}
		r.seen[k] = s
	}
	v := string(x.Key) + "=" + string(x.Value)
	old, again := s.values[x.Offset]
	switch {
	case again && old != v:
		r.w.fail("C7: %s@%d was %q, and is %q now", k, x.Offset, old, v)
	case again:
		return
	case len(s.offsets) > 0 && x.Offset < s.offsets[len(s.offsets)-1]:
		r.w.fail("C7: %s@%d became visible after %d", k, x.Offset, s.offsets[len(s.offsets)-1])
	}
	s.offsets = append(s.offsets, x.Offset)
	s.values[x.Offset] = v
}

func partitionKey(topic string, p int) string { return fmt.Sprintf("%s/%d", topic, p) }

// close ends the reader. It may be called twice.
func (r *watcher) close() {
	r.stop()
	<-r.done
	r.c.Close()
}

// checkReader compares what was seen on the way with what stands in the topics at the end.
func (w *world) checkReader() {
	time.Sleep(2 * time.Second) // it reads to the end
	w.watch.close()
	for _, topic := range []string{echoTopic, totalsTopic, sumsTopic} {
		for p, recs := range w.read(topic) {
			k := partitionKey(topic, p)
			s := w.watch.seen[k]
			if s == nil {
				s = &sight{}
			}
			var want []int64
			for _, r := range recs {
				want = append(want, r.Offset)
				if v := string(r.Key) + "=" + string(r.Value); s.values[r.Offset] != v {
					w.fail("C7: %s@%d is %q, a reader saw %q on the way", k, r.Offset, v, s.values[r.Offset])
				}
			}
			if !slices.Equal(s.offsets, want) {
				w.fail("C7: a reader saw the offsets %v of %s on the way, at the end there are %v", s.offsets, k, want)
			}
		}
	}
}

// read returns what is committed in a topic, by partition.
func (w *world) read(topic string) [partitions][]*kgo.Record {
	var out [partitions][]*kgo.Record
	var ends [partitions]int64
	left := 0
	from := map[int32]kgo.Offset{}
	for _, p := range w.k.PartitionInfos(topic) {
		if p.HighWatermark > p.LogStartOffset {
			ends[p.Partition] = p.HighWatermark
			from[p.Partition] = kgo.NewOffset().At(p.LogStartOffset)
			left++
		}
	}
	if left == 0 {
		return out
	}
	// The last offset of a log is a record or a marker: markers are kept to know where it ends.
	c := w.kgo(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	defer c.Close()
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	for left > 0 {
		f := c.PollFetches(ctx)
		if ctx.Err() != nil {
			w.fail("C8: %s cannot be read to its end", topic)
			return out
		}
		f.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				out[r.Partition] = append(out[r.Partition], r)
			}
			if r.Offset == ends[r.Partition]-1 {
				left--
			}
		})
	}
	return out
}

// checkStores is C5 and C6: the stores on disk are the fold of the changelog, and sequences, offsets and
// positions agree. The clients have ended.
func (w *world) checkStores() {
	last := map[string]uint64{} // highest sequence on any disk, by task
	for _, c := range w.clients {
		w.checkStore(c, last)
	}
	topo := w.clients[0].topo
	for _, s := range topo.Subtopologies() {
		for p, recs := range w.read(topo.IDLogTopic(s)) {
			name := s.Name + "/" + strconv.Itoa(p)
			point := w.checkIDLog(name, recs)
			at, ok := w.k.GroupInfo(app).Commits[topo.SourceTopic(s.Sources[0])][int32(p)]
			if !ok && point.Sequence == 0 {
				continue
			}
			m, err := changelog.ParseMetadata(at.Metadata)
			if err != nil || m.Sequence != point.Sequence || m.Incarnation != point.Incarnation || len(point.Inputs) != 1 || int64(point.Inputs[0].Next) != at.Offset {
				w.fail("C6: %s: offset %d of commit %d; the ID log has commit %d with %v (%v)", name, at.Offset, m.Sequence, point.Sequence, point.Inputs, err)
			}
			if last[name] != point.Sequence {
				w.fail("C6: %s: the newest store is at commit %d, the ID log at %d", name, last[name], point.Sequence)
			}
		}
	}
}

// checkIDLog reads the commit records of a task: each follows the one before it.
func (w *world) checkIDLog(name string, recs []*kgo.Record) (point record.CommitPoint) {
	for _, r := range recs {
		kind, err := changelog.KindOf(r.Key)
		if err != nil {
			w.fail("C6: %s: ID log: %v", name, err)
		}
		if kind == changelog.KindBlock {
			continue
		}
		next, err := changelog.DecodeCommit(r.Value)
		if err != nil || next.Sequence != point.Sequence+1 || point.Incarnation != 0 && next.Incarnation != point.Incarnation {
			w.fail("C6: %s: commit record %d of incarnation %x after %d of %x (%v)", name, next.Sequence, next.Incarnation, point.Sequence, point.Incarnation, err)
		}
		point = next
	}
	return point
}

// checkStore opens one client's directory.
func (w *world) checkStore(c *client, last map[string]uint64) {
	log, err := txlog.Open(txlog.Options{Dir: c.dir, App: app, Cluster: "bubble", MinFreeBytes: 1 << 20})
	if err != nil {
		w.fail("C5: %s: %v", c.name, err)
		return
	}
	defer log.Close()
	if why, aside := log.SetAside(); aside {
		w.fail("C5: %s: the store was set aside: %s", c.name, why)
	}
	for _, name := range log.Tasks() {
		task, err := log.Task(name)
		if err == nil {
			err = task.Check()
		}
		if err != nil {
			w.fail("C5: %s: task %s: %v", c.name, name, err)
			continue
		}
		position, ok := task.Position()
		if !ok {
			continue
		}
		last[name] = max(last[name], position.Sequence)
		for _, at := range position.Changelogs[1:] {
			want := map[string]string{}
			for _, r := range w.read(at.Topic)[at.Partition] {
				if r.Offset >= int64(at.Next) {
					break
				}
				if want[string(r.Key)] = string(r.Value); r.Value == nil {
					delete(want, string(r.Key))
				}
			}
			got := map[string]string{}
			store := w.storeOf(at.Topic)
			if err := task.Range(store, nil, nil, func(k, v []byte) bool { got[string(k)] = string(v); return true }); err != nil {
				w.fail("C5: %s: task %s: %v", c.name, name, err)
			}
			if !maps.Equal(got, want) {
				w.fail("C5: %s: task %s at commit %d: store %s is %v, the changelog says %v", c.name, name, position.Sequence, store, got, want)
			}
		}
	}
}

func (w *world) storeOf(topic string) string {
	topo := w.clients[0].topo
	for _, s := range topo.Subtopologies() {
		for _, st := range s.Stores {
			if topo.StoreTopic(st.Name) == topic {
				return st.Name
			}
		}
	}
	return ""
}
