package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// recoveryLimit is C9: after the last fault everything is caught up within the transaction timeout, the
// session timeout and 10 s. Windows are closed once time has gone on by itself.
func (w *world) recoveryLimit() time.Duration {
	limit := transactionTimeout + sessionTimeout + 10*time.Second
	if w.conf.Hops > 0 {
		limit += visitsClose
	}
	return limit
}

// inputTopics are what the group reads.
func (w *world) inputTopics() []string {
	var all []string
	for _, s := range w.topo.Subtopologies() {
		for _, in := range s.Sources {
			all = append(all, w.topo.SourceTopic(in))
		}
	}
	return all
}

// outputTopics are what a reader of the results sees.
func (w *world) outputTopics() []string {
	all := []string{echoTopic, totalsTopic, sumsTopic, copyTopic, deadTopic}
	if w.conf.Wide {
		all = append(all, onceTopic)
	}
	if w.conf.Linked {
		all = append(all, dealsTopic, remindTopic)
	}
	if w.conf.Hops > 0 {
		all = append(all, countsTopic)
	}
	if w.conf.Rated {
		all = append(all, ratedTopic)
	}
	return all
}

// allTopics are all topics of the run, internal ones included.
func (w *world) allTopics() []string {
	all := append(w.inputTopics(), w.outputTopics()...)
	for _, s := range w.topo.Subtopologies() {
		if !s.Stateful() {
			continue
		}
		all = append(all, w.topo.IDLogTopic(s))
		for _, st := range s.Stores {
			all = append(all, w.topo.StoreTopic(st.Name))
		}
	}
	return all
}

func (w *world) each(topics []string, f func(tp record.TopicPartition)) {
	for _, name := range topics {
		for p := range record.Partition(w.partitions) {
			f(record.TopicPartition{Topic: name, Partition: p})
		}
	}
}

// finished says whether all is quiet: no fault to come, everybody here, nothing left to read, nothing open.
func (w *world) finished() bool {
	if !w.quiet || w.group.pending || w.group.plan != nil {
		return false
	}
	for _, o := range w.owners {
		if o.wanted && (o.resume == nil || !o.joined || len(o.news) > 0 || w.now().Before(o.paused)) {
			return false
		}
	}
	return w.allRun() && w.lacking() == nil && !w.ratesBehind() && !w.windowsToWaitFor()
}

// allRun says whether every task runs in exactly one process.
func (w *world) allRun() bool {
	running := 0
	for _, o := range w.owners {
		if o.resume == nil {
			continue
		}
		if o.revoke != nil {
			return false
		}
		all, run := o.stepper.Tasks()
		if run < all {
			return false
		}
		running += run
	}
	return running == len(w.topo.Subtopologies())*w.partitions
}

// between says whether every process waits for input: none is in the middle of a commit, nor waits for an
// answer to one.
func (w *world) between() bool {
	for _, o := range w.owners {
		if o.resume == nil {
			continue
		}
		if !o.stepped {
			return false
		}
		switch o.where {
		case "step", string(simbroker.Sleep), string(simbroker.Fetch):
		default:
			return false
		}
	}
	return true
}

// behind says what is not done yet.
func (w *world) behind() string {
	if why := w.lacking(); why != nil {
		return why()
	}
	if w.ratesBehind() {
		return "a global table is not read"
	}
	if w.windowsOpen() {
		_, all := w.counted()
		return fmt.Sprintf("%d of %d visits are counted, %d are late", all, w.load.visits.sent, w.lateVisits())
	}
	return ""
}

// lacking is behind without its words, nil if all is done: no lag of the group, no undecided transaction (C8). It is asked
// at every step.
func (w *world) lacking() (why func() string) {
	w.each(w.inputTopics(), func(tp record.TopicPartition) {
		if why != nil {
			return
		}
		_, stable, end := w.b.Offsets(tp)
		if next := w.b.Position(group, tp).Next; end > 0 && next != end {
			why = func() string {
				return fmt.Sprintf("%s is committed to %d, stable to %d, ends at %d", tp, next, stable, end)
			}
		}
	})
	if why != nil {
		return why
	}
	if ids := w.b.Undecided(); len(ids) > 0 {
		return func() string { return fmt.Sprintf("undecided transactions of %v", ids) }
	}
	if w.b.Pending(group) {
		return func() string { return "the group has pending offsets" }
	}
	w.each(w.allTopics(), func(tp record.TopicPartition) {
		if why != nil {
			return
		}
		if _, stable, end := w.b.Offsets(tp); stable != end {
			why = func() string { return fmt.Sprintf("%s: last stable offset %d, end %d", tp, stable, end) }
		}
	})
	if why != nil {
		return why
	}
	return w.refused()
}

// refused is lacking for what a full disk has not taken: its owner goes on without it and tries again.
func (w *world) refused() (why func() string) {
	for _, o := range w.owners {
		if len(o.disk.refused) == 0 || o.resume == nil {
			continue
		}
		for _, task := range o.stepper.Status().Tasks {
			if o.disk.refused[task.Name] {
				return func() string {
					return fmt.Sprintf("the disk of %s has not taken what %s has committed", o.instance, task.Name)
				}
			}
		}
	}
	return nil
}

// check compares the logs and the disks with the oracle. The world is at rest.
func (w *world) check() {
	o := w.oracle()
	w.checkEcho(o)
	w.checkTotals(o)
	w.checkSums(o)
	w.checkNotes()
	w.checkDead()
	w.checkOnce()
	w.checkLinked()
	w.checkVisits()
	w.checkRates(o)
	w.checkTasks()
	w.checkCounters(o)
	w.watch.check()
}

// oracle is what the input should lead to, computed without the engine.
type oracle struct {
	accepted [][]bill // by input partition, in order
	totals   map[string][]string
	ids      map[string]int64 // cents of every accepted ID
	times    map[string]int   // in how many partitions an ID was accepted
	regions  map[string]total
}

func (w *world) oracle() *oracle {
	o := &oracle{totals: map[string][]string{}, ids: map[string]int64{}, times: map[string]int{}, regions: map[string]total{}}
	for p := range w.partitions {
		seen := map[string]bool{}
		accounts := map[string]total{}
		var accepted []bill
		for _, x := range w.load.log[p] {
			if seen[x.id] || strings.HasPrefix(x.id, "late-") || strings.HasPrefix(x.id, "bad-") {
				continue
			}
			seen[x.id] = true
			accepted = append(accepted, x)
			o.ids[x.id] = x.cents
			o.times[x.id]++
			t := accounts[x.account].with(x.cents)
			if x.cents == 0 {
				t = total{}
			}
			accounts[x.account] = t
			k := totalKey(p, x.account)
			o.totals[k] = append(o.totals[k], fmt.Sprintf("%s|%s", t, x.id))
			if sum := o.regions[x.region]; o.times[x.id] == 1 {
				o.regions[x.region] = total{n: sum.n + 1, sum: sum.sum + x.cents}
			}
		}
		o.accepted = append(o.accepted, accepted)
	}
	return o
}

func totalKey(p int, account string) string { return strconv.Itoa(p) + " " + account }

// checkEcho is C1 and C3: every accepted bill once, and in the order of its input partition.
func (w *world) checkEcho(o *oracle) {
	got := map[string][]string{} // IDs by output partition
	count := map[string]int{}
	w.each([]string{echoTopic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			x, err := parseBill(string(r.Key), string(r.Value))
			if err != nil {
				w.fail("C1: %s@%d: %v", tp, r.Offset, err)
				continue
			}
			if id, _ := r.Headers.Get("streamd-id"); len(id) > 0 && string(id) != x.id {
				w.fail("C1: %s@%d: the ID header says %q, the bill %q", tp, r.Offset, id, x.id)
			}
			count[x.id]++
			got[tp.String()] = append(got[tp.String()], x.id)
		}
	})
	for id, want := range o.times {
		if n := count[id]; n != want {
			w.fail("C1: bill %s is %d times in the echo, want %d", id, n, want)
		}
	}
	for id := range count {
		if _, ok := o.ids[id]; !ok {
			w.fail("C1: bill %s is in the echo, but should have been dropped", id)
		}
	}
	for p, accepted := range o.accepted {
		from := map[string]int{} // place of each ID in its input partition
		for i, x := range accepted {
			from[x.id] = i + 1
		}
		for tp, ids := range got {
			last := 0
			for _, id := range ids {
				// What came in two partitions has no one place.
				if at := from[id]; at > 0 && o.times[id] == 1 {
					if at < last {
						w.fail("C3: bill %s of input %d is out of order in %s", id, p, tp)
					}
					last = at
				}
			}
		}
	}
}

// checkTotals is C2: the i-th output of an account is what i bills come to.
func (w *world) checkTotals(o *oracle) {
	got := map[string][]string{}
	w.each([]string{totalsTopic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			part, rest, _ := strings.Cut(string(r.Value), "|")
			p, err := strconv.Atoi(part)
			if err != nil {
				w.fail("C2: %s@%d: %q", tp, r.Offset, r.Value)
				continue
			}
			k := totalKey(p, string(r.Key))
			got[k] = append(got[k], rest)
		}
	})
	for k, want := range o.totals {
		if !slices.Equal(got[k], want) {
			w.fail("C2: totals of %s: %s", k, firstDifference(got[k], want))
		}
	}
	for k := range got {
		if o.totals[k] == nil {
			w.fail("C2: totals of %s, which has no bills", k)
		}
	}
}

func firstDifference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		g, h := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			h = want[i]
		}
		if g != h {
			return fmt.Sprintf("output %d is %s, want %s (%d outputs, want %d)", i+1, g, h, len(got), len(want))
		}
	}
	return "equal"
}

// checkSums is C4, and C2 for the second sub-topology: each bill of a region once, the sum goes up by its cents.
func (w *world) checkSums(o *oracle) {
	last := map[string]total{}
	seen := map[string]bool{}
	w.each([]string{sumsTopic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			region := string(r.Key)
			n, sum, id, err := parseSum(string(r.Value))
			t := last[region]
			if err != nil || n != t.n+1 || sum != t.sum+o.ids[id] || seen[id] {
				w.fail("C4: %s@%d: region %s: %s after %d bills with %d cents (seen: %v)", tp, r.Offset, region, r.Value, t.n, t.sum, seen[id])
				return
			}
			seen[id] = true
			last[region] = total{n: n, sum: sum}
		}
	})
	for region, want := range o.regions {
		if got := last[region]; got != want {
			w.fail("C4: region %s ends with %d bills and %d cents, want %d and %d", region, got.n, got.sum, want.n, want.sum)
		}
	}
}

// checkNotes is C1 and C3 where no log of IDs helps: every note once and in order.
func (w *world) checkNotes() {
	for p := range record.Partition(w.partitions) {
		var want, got []string
		for _, note := range w.load.notes[p] {
			want = append(want, note+"!")
		}
		for _, r := range w.b.Committed(record.TopicPartition{Topic: copyTopic, Partition: p}) {
			got = append(got, string(r.Value))
		}
		if !slices.Equal(got, want) {
			w.fail("C1: notes of partition %d: %s", p, firstDifference(got, want))
		}
	}
}

// checkDead is C1 for the records that no operator can handle: a dead letter each time, in order, with the
// bytes that came.
func (w *world) checkDead() {
	for p, log := range w.load.log {
		var want, got []string
		for _, x := range log {
			if strings.HasPrefix(x.id, "bad-") {
				want = append(want, x.account+" "+x.value())
			}
		}
		for _, r := range w.b.Committed(record.TopicPartition{Topic: deadTopic, Partition: record.Partition(p)}) {
			got = append(got, string(r.Key)+" "+string(r.Value))
		}
		if !slices.Equal(got, want) {
			w.fail("C1: dead letters of partition %d: %s", p, firstDifference(got, want))
		}
	}
}

// checkOnce is C1 for the dedup over all partitions: each ID once, whichever partition it came in.
func (w *world) checkOnce() {
	if !w.conf.Wide {
		return
	}
	want, got := map[string]bool{}, map[string]bool{}
	for _, log := range w.load.log {
		for _, x := range log {
			// One operator that fails undoes the record everywhere in its sub-topology.
			if !strings.HasPrefix(x.id, "bad-") {
				want[x.id] = true
			}
		}
	}
	w.each([]string{onceTopic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			id, _, _ := strings.Cut(string(r.Value), "|")
			if got[id] || !want[id] {
				w.fail("C1: %s@%d: bill %s is there again, or was never sent", tp, r.Offset, id)
			}
			got[id] = true
		}
	})
	if len(got) != len(want) {
		w.fail("C1: %d of %d bills are in %s", len(got), len(want), onceTopic)
	}
}

// checkTasks is C5 and C6: disk, changelog and committed offsets of each task agree.
func (w *world) checkTasks() {
	for _, s := range w.topo.Subtopologies() {
		if !s.Stateful() {
			continue
		}
		for p := range record.Partition(w.partitions) {
			w.checkTask(s, p)
		}
	}
}

func (w *world) checkTask(s *topology.Subtopology, p record.Partition) {
	name := s.Name + "/" + strconv.Itoa(int(p))
	var point record.CommitPoint
	var blocks []record.OperatorBlock
	var state []string
	for _, r := range w.b.Committed(record.TopicPartition{Topic: w.topo.IDLogTopic(s), Partition: p}) {
		kind, err := changelog.KindOf(r.Key)
		if err == nil && kind == changelog.KindBlock {
			var b record.OperatorBlock
			if b, err = changelog.DecodeBlock(r.Key, r.Value); err == nil {
				blocks = append(blocks, b)
			}
		} else if err == nil {
			var next record.CommitPoint
			next, err = changelog.DecodeCommit(r.Value)
			if next.Sequence != point.Sequence+1 || point.Incarnation != 0 && next.Incarnation != point.Incarnation {
				w.fail("C6: %s: commit record %d of incarnation %x after %d of %x", name, next.Sequence, next.Incarnation, point.Sequence, point.Incarnation)
			}
			point = next
		}
		if err != nil {
			w.fail("C5: %s: ID log: %v", name, err)
		}
	}
	all, remembered := remembered(blocks, point.StreamTime)
	if dup := slices.Compact(slices.Clone(remembered)); len(dup) != len(remembered) {
		w.fail("C5: %s: the ID log holds an ID twice within the window", name)
	}
	for _, st := range s.Stores {
		last := map[string][]byte{}
		for _, r := range w.b.Committed(record.TopicPartition{Topic: w.topo.StoreTopic(st.Name), Partition: p}) {
			if last[string(r.Key)] = r.Value; r.Value == nil {
				delete(last, string(r.Key))
			}
		}
		for k, v := range last {
			state = append(state, fmt.Sprintf("%s %q=%q", st.Name, k, v))
		}
	}
	slices.Sort(state)
	if !w.checkOffsets(s, p, name, point) {
		return // nothing came here
	}
	if o := w.ownerOf(record.TopicPartition{Topic: w.topo.SourceTopic(s.Sources[0]), Partition: p}); o != nil {
		w.checkDisk(o, name, point, state)
		_, ids := o.disk.task(name).content()
		if gone := lacks(ids, remembered); gone != "" {
			w.fail("C5: %s on %s: the disk lacks ID %s", name, o.instance, gone)
		}
		if more := lacks(all, ids); more != "" {
			w.fail("C5: %s on %s: the disk has ID %s, which was never committed", name, o.instance, more)
		}
	}
}

// checkOffsets is C6 for the inputs of a task: each stands where its last commit record says, and the newest of them name that
// commit. false: nothing was committed.
func (w *world) checkOffsets(s *topology.Subtopology, p record.Partition, name string, point record.CommitPoint) bool {
	at := map[string]record.Offset{}
	for _, in := range point.Inputs {
		at[in.Topic] = in.Next
	}
	var last changelog.Metadata
	some := false
	for _, x := range s.Sources {
		input := record.TopicPartition{Topic: w.topo.SourceTopic(x), Partition: p}
		committed := w.b.Position(group, input)
		if committed.Next == record.NoOffset {
			continue
		}
		some = true
		m, err := changelog.ParseMetadata(committed.Metadata)
		if err != nil {
			w.fail("C6: %s: %s: %v", name, input, err)
		}
		if m.Sequence > last.Sequence {
			last = m
		}
		if next, ok := at[input.Topic]; !ok || next != committed.Next {
			w.fail("C6: %s: %s: offset %d, commit record %v", name, input, committed.Next, point.Inputs)
		}
	}
	if some && (last.Sequence != point.Sequence || last.Incarnation != point.Incarnation) {
		w.fail("C6: %s: offsets say commit %d, the ID log %d", name, last.Sequence, point.Sequence)
	}
	return some
}

// remembered returns the IDs of all blocks, and of those that are within the window: both sorted.
func remembered(blocks []record.OperatorBlock, streamTime time.Time) (all, within []string) {
	for _, b := range blocks {
		ids := idsOf(b.Operator, b.IDBlock)
		all = append(all, ids...)
		if b.StreamTime.After(streamTime.Add(-window)) {
			within = append(within, ids...)
		}
	}
	slices.Sort(all)
	slices.Sort(within)
	return all, within
}

// lacks returns the first of want that is not in have; both are sorted. Empty: none.
func lacks(have, want []string) string {
	for _, x := range want {
		if _, ok := slices.BinarySearch(have, x); !ok {
			return x
		}
	}
	return ""
}

func (w *world) checkDisk(o *owner, name string, point record.CommitPoint, state []string) {
	t := o.disk.task(name)
	if t.position.Sequence != point.Sequence || t.position.Incarnation != point.Incarnation || !t.position.Complete {
		w.fail("C6: %s on %s: the disk is at commit %d (complete %v), the ID log at %d", name, o.instance, t.position.Sequence, t.position.Complete, point.Sequence)
	}
	if got, _ := t.content(); !slices.Equal(got, state) {
		w.fail("C5: %s on %s: state: %s", name, o.instance, firstDifference(got, state))
	}
}

func (w *world) ownerOf(tp record.TopicPartition) *owner {
	for _, o := range w.owners {
		if o.resume != nil && slices.Contains(w.group.g.Owned(o.instance), tp) {
			return o
		}
	}
	return nil
}

// checkCounters is C10: the duplicates counted by the metrics are those that were sent.
func (w *world) checkCounters(o *oracle) {
	var dropped, late, checked uint64
	for _, x := range w.owners {
		if x.resume == nil {
			continue
		}
		for _, op := range x.stepper.Status().Operators {
			if op.Name != "unique" {
				continue
			}
			dropped += op.Counters[string(topology.CounterDuplicateCommitted)] + op.Counters[string(topology.CounterDuplicateOpen)]
			late += op.Counters[string(topology.CounterTooLate)]
			checked += op.Counters[string(topology.CounterChecked)]
		}
	}
	sent := w.load.duplicates + w.load.late + w.load.bad
	for _, accepted := range o.accepted {
		sent += len(accepted)
	}
	// After a long night a bill that is sent again may be too late instead of a duplicate: dropped all the same.
	if dropped+late != uint64(w.load.duplicates+w.load.late) || int(checked) != sent || w.jumped == 0 && int(late) != w.load.late {
		w.fail("C10: counted %d duplicates, %d late, %d checked; sent %d, %d, %d", dropped, late, checked, w.load.duplicates, w.load.late, sent)
	}
}

// observer is C7: a read_committed reader that runs all the time.
type observer struct {
	w    *world
	r    broker.Reader
	seen map[record.TopicPartition][]record.Offset
	next map[record.TopicPartition]record.Offset
}

func newObserver(w *world) *observer {
	c := w.b.Client("observer")
	o := &observer{w: w, r: c.NewReader(broker.ReaderConfig{}), seen: map[record.TopicPartition][]record.Offset{}, next: map[record.TopicPartition]record.Offset{}}
	w.each(w.outputTopics(), func(tp record.TopicPartition) { o.r.Seek(tp, 0, 1) })
	return o
}

func (o *observer) poll() {
	for _, b := range o.r.Poll(context.Background(), 0) {
		if b.Err != nil {
			o.w.fail("C7: %s: %v", b.TopicPartition, b.Err)
		}
		for _, r := range b.Records {
			o.seen[b.TopicPartition] = append(o.seen[b.TopicPartition], r.Offset)
		}
		o.next[b.TopicPartition] = b.Next
	}
}

// check compares what was seen on the way with what stands in the logs at the end.
func (o *observer) check() {
	o.w.each(o.w.outputTopics(), func(tp record.TopicPartition) {
		_, _, end := o.w.b.Offsets(tp)
		for range 1000 {
			if o.next[tp] == end {
				break
			}
			o.poll()
		}
		var want []record.Offset
		for _, e := range o.w.b.Log(tp) {
			if !e.Control && e.Status == simbroker.Committed {
				want = append(want, e.Offset)
			}
		}
		if !slices.Equal(o.seen[tp], want) {
			o.w.fail("C7: a reader saw %d records of %s on the way, at the end there are %d", len(o.seen[tp]), tp, len(want))
		}
	})
}
