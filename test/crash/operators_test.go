//go:build kafka

package crash

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/crash/operators"
)

// TestOperatorsUnderKills: windows, also behind a repartition topic, sessions, joins of two streams, of a stream with a table, of two tables, and with a global table that changes meanwhile, all
// aggregations, the ways of keeping one record, timers by key and schedules, in event time and by the host's clock, the outputs of a dedup, and steps without state, on two instances that are
// killed with kill -9 at random, some of them with their disk. What is committed is what the oracle says: each window closes once, each impression has its clicks or one result without, each
// timer fires once and none early, no tick comes twice and what they count is neither lost nor counted twice, each bill goes the way of a new one, a copy, a conflict or a late one, whatever was read
// again, each aggregation has each of its results once and in order.
func TestOperatorsUnderKills(t *testing.T) {
	kills := 10
	if os.Getenv("STREAMD_SOAK") != "" {
		kills = 100
	}
	// The input lasts as long as the kills, one in 1.05 s on average.
	const rate = 3000
	operatorsUnderKills(t, kills, rate, func(seed uint64) []operators.Input { return operators.Generate(seed, kills*rate*21/20) })
}

// TestTimersUnderKills: 100,000 timers, or a tenth of them, most of which wait at the same time, while the instances are killed.
func TestTimersUnderKills(t *testing.T) {
	kills, timers := 4, 10_000
	if os.Getenv("STREAMD_SOAK") != "" {
		kills, timers = 20, 100_000
	}
	operatorsUnderKills(t, kills, timers/kills*20/21, func(seed uint64) []operators.Input { return operators.ManyTimers(seed, timers) })
}

// operatorsUnderKills sends the input at a rate, in records a second, while two instances are killed in turn, and compares.
func operatorsUnderKills(t *testing.T, kills, rate int, generate func(seed uint64) []operators.Input) {
	limit := 4*time.Minute + time.Duration(kills)*5*time.Second
	f := newProgramFixture(t, limit, "./test/crash/operators/run", `["BROKERS"]`)
	for _, topics := range [][]string{operators.Inputs(), operators.Outputs(), {operators.Rates}} {
		if err := CreateTopics(f.ctx, f.kafka.Addresses(), operators.Partitions, topics...); err != nil {
			t.Fatal(err)
		}
	}
	answer := operators.NewAnswer(time.Now) // the processes have the same clock
	readers := map[string]*Reader{}
	for _, topic := range operators.Outputs() {
		readers[topic] = f.follow(topic, func(_ string, value []byte) { answer.Add(topic, value) })
	}
	if err := sendOperators(f.ctx, f.kafka.Addresses(), operators.Prelude(), 100_000); err != nil {
		t.Fatal(err)
	}
	daemons := []*Daemon{f.daemon("a", "--instance-id", "a"), f.daemon("b", "--instance-id", "b")}
	for _, d := range daemons {
		f.start(d)
	}
	if err := AwaitCommitted(f.ctx, f.kafka.Addresses(), operators.App, operators.Rows); err != nil {
		t.Fatal(err)
	}
	input, sent := generate(f.random.Uint64()), make(chan error, 1)
	go func() { sent <- sendOperators(f.ctx, f.kafka.Addresses(), input, rate) }()
	for i := range kills {
		d := daemons[f.random.IntN(len(daemons))]
		if i%4 == 3 { // each in its turn loses its disk, so that one with tasks does
			d = daemons[i/4%len(daemons)]
		}
		f.pause(d, 100*time.Millisecond, 2*time.Second)
		d.Kill()
		if i%4 == 3 {
			if err := os.RemoveAll(d.Dir); err != nil {
				t.Fatal(err)
			}
		}
		f.start(d)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for _, topic := range operators.Inputs() {
		if err := AwaitCommitted(f.ctx, f.kafka.Addresses(), operators.App, topic); err != nil {
			t.Fatal(err)
		}
	}
	want := operators.Oracle(input)
	total := operators.Total(want)
	f.awaitAnswer(readers, answer, total)
	for topic, r := range readers {
		if err := r.AwaitEnd(f.ctx); err != nil {
			t.Fatalf("%s: %v", topic, err)
		}
	}
	for _, err := range answer.Verify(want) {
		t.Error(err)
	}
	t.Logf("%d kills; %d records in, out %v; up to version %d of a rate was met; %d ticks by the clock were skipped", kills, len(input), total, answer.Rates(), answer.Skipped())
	for _, d := range daemons {
		if code, err := d.Stop(30 * time.Second); err != nil || code != 0 {
			t.Errorf("after SIGTERM: exit code %d, %v", code, err)
		}
	}
}

// awaitAnswer waits for as many records as there must be. A loss ends the waiting at its limit; what is lost is then said by Verify.
func (f *fixture) awaitAnswer(readers map[string]*Reader, answer *operators.Answer, want map[string]int64) {
	ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	for topic, r := range readers {
		if err := r.AwaitCount(ctx, func() int64 { return answer.Count(topic) }, want[topic]); err != nil {
			f.Error(err)
		}
	}
}

// sendOperators sends the records in their order, each acknowledged once.
func sendOperators(ctx context.Context, brokers []string, input []operators.Input, rate int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	start := time.Now()
	for i, in := range input {
		if i%100 == 0 {
			if err := sleepUntil(ctx, start.Add(time.Duration(i)*time.Second/time.Duration(rate))); err != nil {
				return context.Cause(ctx)
			}
		}
		value, err := json.Marshal(in.Value)
		if err != nil {
			return err
		}
		client.Produce(ctx, &kgo.Record{Topic: in.Topic, Partition: in.Partition, Key: []byte(in.Key), Value: value, Timestamp: in.At}, func(_ *kgo.Record, err error) {
			if err != nil {
				cancel(err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return context.Cause(ctx)
}
