package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
)

// results is what is committed, without what may differ: which transaction a record came in, and how partitions are
// interleaved where a topic is fed by several.
func results(w *world) string {
	var out []string
	for p := range record.Partition(w.partitions) {
		for _, topic := range []string{copyTopic, deadTopic} { // fed by one partition
			for _, r := range w.b.Committed(record.TopicPartition{Topic: topic, Partition: p}) {
				out = append(out, fmt.Sprintf("%s/%d %q", topic, p, r.Value))
			}
		}
	}
	by := map[string][]string{} // each key's records, in order
	w.each([]string{echoTopic, totalsTopic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			k := fmt.Sprintf("%s %q", tp.Topic, r.Key)
			if tp.Topic == totalsTopic { // and input partition
				k += " " + strings.SplitN(string(r.Value), "|", 2)[0]
			}
			by[k] = append(by[k], string(r.Value))
		}
	})
	for k, v := range by {
		if strings.HasPrefix(k, echoTopic) {
			slices.Sort(v) // two input partitions may have a key
		}
		out = append(out, k+" "+strings.Join(v, " "))
	}
	last := map[string]string{}
	w.each([]string{sumsTopic}, func(tp record.TopicPartition) {
		for _, r := range w.b.Committed(tp) {
			n, sum, _, err := parseSum(string(r.Value))
			last[string(r.Key)] = fmt.Sprintf("%d bills, %d cents (%v)", n, sum, err)
		}
	})
	for k, v := range last {
		out = append(out, "region "+k+" "+v)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// feed puts one and the same input into a world.
func (w *world) feed(bills int) {
	rng := rand.New(rand.NewPCG(42, 42))
	l := &loader{rng: rng, b: w.b, partitions: w.partitions, accounts: 12, log: make([][]bill, w.partitions), notes: make([][]string, w.partitions)}
	for n := range bills {
		s := l.bill(epoch.Add(time.Duration(n) * time.Millisecond))
		if rng.IntN(60) == 0 {
			l.sendBad(s, l.send)
			continue
		}
		l.send(s)
		l.made = append(l.made, s)
		for rng.IntN(5) == 0 {
			l.send(l.made[rng.IntN(len(l.made))])
			l.duplicates++
		}
	}
	w.load.log, w.load.notes, w.load.made = l.log, l.notes, l.made
	w.load.duplicates, w.load.bad, w.load.extra = l.duplicates, l.bad, 0
}

// The same input gives the same committed output whatever the sizes of fetches and transactions, the commit
// interval, the protocol, the number of instances and the faults are.
func TestOutputDoesNotDependOnHowItRuns(t *testing.T) {
	const bills = 150
	var want string
	for seed := range uint64(60) {
		conf := FromSeed(1000 + seed)
		rng := rand.New(rand.NewPCG(seed, 0x3e7a))
		conf.Partitions, conf.Bills, conf.Wide, conf.Twins, conf.Linked, conf.Hops, conf.Rated = 3, 0, false, false, false, 0, false
		conf.Schedule = slices.DeleteFunc(conf.Schedule, Fault.jumps) // time is a part of the input
		conf.Options = []processor.Option{
			processor.WithTransactionLimits(1+rng.IntN(60), 1<<(10+rng.IntN(12)), transactionTimeout),
			processor.WithCommitInterval(time.Duration(10+rng.IntN(200)) * time.Millisecond),
		}
		if seed == 0 {
			conf.Schedule, conf.Owners, conf.Options, conf.Protocol = nil, 1, nil, simbroker.V1
		}
		w := newWorld(conf)
		w.feed(bills)
		w.run()
		w.close()
		if len(w.errors) > 0 {
			t.Fatalf("%s: %v", conf, w.errors)
		}
		got := results(w)
		if seed == 0 {
			want = got
		}
		if got != want {
			t.Fatalf("%s, %v: %s", conf, conf.Schedule, firstDifference(strings.Split(got, "\n"), strings.Split(want, "\n")))
		}
	}
}
