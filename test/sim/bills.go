package sim

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// The topics of the workload.
const (
	app         = "bills-app"
	billsTopic  = "bills"
	echoTopic   = "echo"
	totalsTopic = "account-totals"
	sumsTopic   = "region-sums"
	notesTopic  = "notes" // through a task without state: only the committed offsets hold its position
	copyTopic   = "notes-copy"
	deadTopic   = "dead" // bills that cannot be read, as they came
	onceTopic   = "once" // of the wide topology: each ID once, whatever partition it came in
	idHeader    = "id"
	window      = time.Hour
)

// bill is one input. A bill of 0 cents closes its account: its total is deleted.
type bill struct {
	id, account, region string
	cents               int64
	at                  time.Time
}

func (b bill) value() string {
	if strings.HasPrefix(b.id, "bad-") {
		return b.id + "|not a bill"
	}
	return b.id + "|" + b.region + "|" + strconv.FormatInt(b.cents, 10)
}

func parseBill(account, value string) (bill, error) {
	f := strings.Split(value, "|")
	if len(f) != 3 {
		return bill{}, fmt.Errorf("bill %q", value)
	}
	cents, err := strconv.ParseInt(f[2], 10, 64)
	return bill{id: f[0], account: account, region: f[1], cents: cents}, err
}

// total is what an account has come to in one input partition.
type total struct{ n, sum, low, high int64 }

func (t total) with(cents int64) total {
	if t.n == 0 {
		return total{1, cents, cents, cents}
	}
	return total{t.n + 1, t.sum + cents, min(t.low, cents), max(t.high, cents)}
}

func (t total) String() string { return fmt.Sprintf("%d,%d,%d,%d", t.n, t.sum, t.low, t.high) }

func parseTotal(s string) (t total, err error) {
	for i, f := range strings.Split(s, ",") {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil || i > 3 {
			return t, fmt.Errorf("total %q: %w", s, err)
		}
		*[...]*int64{&t.n, &t.sum, &t.low, &t.high}[i] = v
	}
	return t, nil
}

// billsTopology builds the workload's topology. What it computes is repeated, without it, by the oracle. The
// wide one has a dedup over all partitions too; what else there is says its configuration.
func billsTopology(c Config) (*topology.Topology, error) {
	b := topology.New(app)
	in := topology.From(b, billsTopic, serde.String(), serde.String(), topology.IDHeader(idHeader))
	unique := topology.Dedup(in, "unique", topology.Retention(window), topology.OnTooLate(topology.Drop))
	topology.To(unique, echoTopic, serde.String(), serde.String())

	accounts := topology.KeyValue("accounts", serde.String(), serde.String())
	totals := topology.Process(unique, "totals",
		func(ctx topology.Context, r record.Record[string, string], emit topology.Emit[string, string]) error {
			x, err := parseBill(r.Key, r.Value)
			if err != nil {
				return err
			}
			var t total
			old, ok, err := accounts.Get(ctx, x.account)
			if err != nil {
				return err
			}
			if ok {
				if t, err = parseTotal(old); err != nil {
					return err
				}
			}
			if x.cents == 0 {
				t = total{}
				err = accounts.Delete(ctx, x.account)
			} else {
				t = t.with(x.cents)
				err = accounts.Put(ctx, x.account, t.String())
			}
			if err != nil {
				return err
			}
			emit(record.Record[string, string]{Key: r.Key, Value: fmt.Sprintf("%d|%s|%s", ctx.Position().Partition, t, x.id)})
			return nil
		}, topology.WithStore(accounts))
	topology.To(totals, totalsTopic, serde.String(), serde.String())

	byRegion := topology.KeyBy(unique, "by-region", serde.String(), func(r record.Record[string, string]) (string, error) {
		x, err := parseBill(r.Key, r.Value)
		return x.region, err
	})
	once := topology.Dedup(byRegion, "region-unique", topology.Retention(window), topology.OnTooLate(topology.Forward))
	sums := topology.Aggregate(once, "sums", serde.String(), func(old string, r record.Record[string, string]) (string, error) {
		x, err := parseBill(r.Key, r.Value)
		if err != nil {
			return "", err
		}
		n, sum := int64(0), int64(0)
		if old != "" {
			if n, sum, _, err = parseSum(old); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d|%d|%s", n+1, sum+x.cents, x.id), nil
	})
	topology.To(sums, sumsTopic, serde.String(), serde.String())

	if c.Wide {
		everywhere := topology.Dedup(in, "everywhere", topology.Retention(window), topology.OnTooLate(topology.Forward), topology.ScopeStream())
		topology.To(everywhere, onceTopic, serde.String(), serde.String())
	}

	if c.Linked {
		link(b)
	}
	if c.Hops > 0 {
		countVisits(b, c.Hops)
	}
	if c.Rated {
		lookUp(b, unique)
	}

	notes := topology.From(b, notesTopic, serde.String(), serde.String())
	topology.To(topology.MapValues(notes, func(r record.Record[string, string]) (string, error) { return r.Value + "!", nil }), copyTopic, serde.String(), serde.String())
	return b.Build()
}

// parseSum decodes a region's sum: how many bills, their cents, the ID of the last one.
func parseSum(s string) (n, sum int64, id string, err error) {
	f := strings.Split(s, "|")
	if len(f) != 3 {
		return 0, 0, "", fmt.Errorf("sum %q", s)
	}
	if n, err = strconv.ParseInt(f[0], 10, 64); err == nil {
		sum, err = strconv.ParseInt(f[1], 10, 64)
	}
	return n, sum, f[2], err
}

// loader writes the input: bursts of bills, some of them sent again.
type loader struct {
	rng        *rand.Rand
	b          *simbroker.Broker
	producer   broker.Producer // for bursts that are aborted
	partitions int
	accounts   int
	left       int // bills still to be made
	flood      int // so many bursts to come follow each other closely
	extra      int // how often it may be given some more
	made       []sent
	log        [][]bill // by partition: all that was sent, in order, with what is to be dropped
	next       time.Time
	gap        time.Duration // longest, between two bursts
	notes      [][]string    // by partition
	noLate     bool
	bad        int     // such that cannot be read: to be dead letters, each time
	twins      bool    // the same ID in two partitions
	linked     *linked // nil: none
	visits     *visits // nil: none
	rates      *rates  // nil: none
	hops       int     // of the visits
	resend     int     // so many of what was made before come again in the next burst
	duplicates int     // sent again in the same partition: to be dropped
	late       int     // older than the window: to be dropped
}

// sent is a bill with the partition that it went to.
type sent struct {
	bill
	partition int
}

const group = app

func (l *loader) input(p int) record.TopicPartition {
	return record.TopicPartition{Topic: billsTopic, Partition: record.Partition(p)}
}

// newest is the latest time of a bill that was sent to a partition.
func (l *loader) newest(partition int) (at time.Time) {
	for _, x := range l.log[partition] {
		if x.at.After(at) {
			at = x.at
		}
	}
	return at
}

// burst appends the next bills, if it is time.
func (l *loader) burst(now time.Time, abort func(p broker.Producer)) {
	if l.left <= 0 || now.Before(l.next) {
		return
	}
	l.next = now.Add(time.Duration(l.rng.Int64N(int64(l.gap))))
	if l.flood > 0 {
		l.flood--
		l.next = now.Add(4 * time.Millisecond)
	}
	by := make([][]broker.Record, l.partitions)
	put := func(s sent) {
		by[s.partition] = append(by[s.partition], s.record())
		l.log[s.partition] = append(l.log[s.partition], s.bill)
	}
	again := func(s sent) {
		// A producer that knows no better gives the repetition a time of its own.
		if l.rng.IntN(2) == 0 && now.Sub(s.at) < window-2*time.Minute {
			s.at = now
		}
		put(s)
		l.duplicates++
	}
	for ; l.resend > 0 && len(l.made) > 0; l.resend-- {
		again(l.made[l.rng.IntN(len(l.made))])
	}
	for range 1 + l.rng.IntN(20) {
		if l.left == 0 {
			break
		}
		l.left--
		s := l.bill(now)
		// A late one is told from a new one only once the task has a stream time, so not in its first transaction, and
		// only by what came in its partition lately: behind a silence nothing is late.
		if l.rng.IntN(50) == 0 && !l.noLate && l.b.Position(group, l.input(s.partition)).Next > 0 && now.Sub(l.newest(s.partition)) < window {
			s.at = now.Add(-3 * window)
			s.id = "late-" + s.id
			l.late++
			put(s)
			continue
		}
		if l.rng.IntN(60) == 0 {
			l.sendBad(s, put)
			continue
		}
		put(s)
		l.made = append(l.made, s)
		for l.rng.IntN(5) == 0 { // again: the same burst, or any bill before
			again(l.made[max(0, len(l.made)-1-l.rng.IntN(1+l.rng.IntN(len(l.made))))])
		}
		// The same ID in another partition passes where the scope is the partition, and only there: the next
		// sub-topology and the dedup over all partitions drop it.
		if l.twins && l.partitions > 1 && l.rng.IntN(100) < 3 {
			s.partition = (s.partition + 1) % l.partitions
			put(s)
			l.made = append(l.made, s)
		}
	}
	if l.visits != nil {
		l.visits.burst(l.b, now, l.hops > 1)
	}
	if l.rates != nil {
		l.rates.burst(l, now, abort)
	}
	if l.rng.IntN(8) == 0 {
		// An aborted attempt at the same bills: nobody may see it.
		for p, recs := range by {
			for _, r := range recs {
				l.producer.Add(broker.Output{TopicPartition: l.input(p), Timestamp: r.Timestamp, Key: r.Key, Value: r.Value, Headers: r.Headers})
			}
		}
		abort(l.producer)
	}
	for p, recs := range by {
		l.b.Append(l.input(p), recs...)
		if len(recs) > 0 {
			note := fmt.Sprint("note ", len(l.notes[p]))
			l.notes[p] = append(l.notes[p], note)
			l.b.Append(record.TopicPartition{Topic: notesTopic, Partition: record.Partition(p)},
				broker.Record{Timestamp: now, Key: l.keyOf(p), Value: []byte(note)})
			if l.linked != nil {
				l.linked.burst(l.b, p, now)
			}
		}
	}
}

// send appends one bill at once.
func (l *loader) send(s sent) {
	l.b.Append(l.input(s.partition), s.record())
	l.log[s.partition] = append(l.log[s.partition], s.bill)
}

// record is the bill as it is sent.
func (s sent) record() broker.Record {
	return broker.Record{Timestamp: s.at, Key: []byte(s.account), Value: []byte(s.value()), Headers: record.Headers{{Key: idHeader, Value: []byte(s.id)}}}
}

// sendBad sends a bill that no operator can add up, sometimes twice: a record that fails leaves nothing,
// neither its output of before nor its ID.
func (l *loader) sendBad(s sent, put func(sent)) {
	s.id = "bad-" + s.id
	for n := 1 + l.rng.IntN(2); n > 0; n-- {
		put(s)
		l.bad++
	}
}

// keyOf is a key that belongs to a partition, so that a copy goes to the same one.
func (l *loader) keyOf(partition int) []byte {
	for i := 0; ; i++ {
		k := fmt.Append(nil, i)
		if int(record.PartitionForKey(k, int32(l.partitions))) == partition {
			return k
		}
	}
}

func (l *loader) bill(now time.Time) sent {
	account := l.rng.IntN(1 + l.rng.IntN(l.accounts)) // skewed to the low ones
	name := fmt.Sprintf("acc-%d", account)
	s := sent{bill: bill{
		id: fmt.Sprintf("b%d", len(l.made)+l.late+l.bad), account: name, region: fmt.Sprintf("r%d", account%5),
		cents: int64(1 + l.rng.IntN(1000)), at: now,
	}, partition: int(record.PartitionForKey([]byte(name), int32(l.partitions)))}
	if l.rng.IntN(8) == 0 {
		s.cents = 0
	}
	return s
}
