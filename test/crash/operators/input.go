package operators

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Input is one record of an input.
type Input struct {
	Topic     string
	Partition int32
	Key       string
	At        time.Time
	Value     Event
}

// keys is how many keys there are.
const keys = 400

// Step is how far event time goes on from one record of all inputs to the next, on average.
const Step = 20 * time.Millisecond

// Begin is the event time of the first record.
func Begin() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// Generate makes so many records, and one more for the end of each partition of each input. They come behind those of Prelude.
func Generate(seed uint64, records int) []Input {
	random := rand.New(rand.NewPCG(seed, 7))
	out := make([]Input, 0, records+len(Inputs())*Partitions)
	topics := []string{Visits, Visits, Impressions, Clicks, Orders, Purchases, Bills, Calls}
	newest := Begin()
	var bills []Input
	for i := range records {
		newest = newest.Add(time.Duration(random.Int64N(int64(2*Step/time.Millisecond))) * time.Millisecond)
		topic := topics[random.IntN(len(topics))]
		// Some keys come often, so that windows hold several records and timers are put off; most do not, so that sessions end.
		key := int(random.Float64() * random.Float64() * keys)
		in := Input{Topic: topic, Partition: int32(key % Partitions), Key: fmt.Sprintf("key-%d", key), At: newest, Value: Event{ID: fmt.Sprint(i)}}
		in.At = newest.Add(-time.Duration(random.Int64N(int64(Disorder/time.Millisecond))) * time.Millisecond)
		switch topic {
		case Purchases:
			in.Value.After = random.Int64N(2 * dear)
		case Bills:
			in = bill(random, in, bills)
			bills = append(bills, in)
		case Orders, Calls:
			in.Value.Do, in.Value.After = "set", random.Int64N(20_000)
			if topic == Calls {
				in.Value.After %= Longest.Milliseconds()
			}
			if random.IntN(5) == 0 {
				in.Value.Do, in.Value.After = "cancel", 0
			}
		}
		out = append(out, in)
		if i%rateEvery == 0 {
			out = append(out, rateRow(i/rateEvery%rates, int64(i)+2, newest)) // behind those of Prelude
			if i >= records/2 {
				out = append(out, rateRow(lateRate, int64(i)+2, newest))
			}
		}
	}
	return append(out, ends(newest.Add(time.Hour))...)
}

// bill makes a bill that is new, of one that came before, or too late.
func bill(random *rand.Rand, in Input, before []Input) Input {
	in.Value.After = random.Int64N(2 * dear)
	switch n := random.IntN(100); {
	case n < 35 && len(before) > 0: // most of them soon
		from := max(len(before)-20, 0)
		if n < 10 {
			from = 0
		}
		in = before[from+random.IntN(len(before)-from)]
		if n%4 == 0 {
			in.Value.After++
		}
	case n < 45:
		in.At = in.At.Add(-retention - Disorder)
	}
	return in
}

// ManyTimers sets so many timers, each of a key of its own, of which most are waiting at a time, and ends as Generate does.
func ManyTimers(seed uint64, timers int) []Input {
	random := rand.New(rand.NewPCG(seed, 9))
	out := make([]Input, 0, timers+len(Inputs())*Partitions)
	span := time.Duration(timers) * Step
	newest := Begin()
	for i := range timers {
		newest = newest.Add(Step)
		v := Event{ID: fmt.Sprint(i), Do: "set", After: random.Int64N(span.Milliseconds())}
		out = append(out, Input{Topic: Orders, Partition: int32(i % Partitions), Key: fmt.Sprintf("key-%d", i), At: newest, Value: v})
	}
	return append(out, ends(newest.Add(span))...)
}

// ends are the last records: they close all windows and let all timers go off. Their own windows stay open, and they
// match nothing.
func ends(at time.Time) (out []Input) {
	for _, topic := range Inputs() {
		for p := range int32(Partitions) {
			out = append(out, Input{Topic: topic, Partition: p, Key: fmt.Sprintf("end-%s-%d", topic, p), At: at, Value: Event{ID: "end"}})
		}
	}
	return out
}
