//go:build bubble

package synctest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// The topics of the workload, and its application.
const (
	app         = "bills-app"
	billsTopic  = "bills"
	echoTopic   = "echo"
	totalsTopic = "totals"
	sumsTopic   = "sums"
	idHeader    = "id"
	window      = time.Hour
)

// bill is one input record. A bill of 0 cents closes its account: its total is deleted. Every copy that
// is sent has a serial of its own, so that the checks can tell copies with one ID apart.
type bill struct {
	serial  int
	id      string
	account string
	region  string
	cents   int64
}

func (b bill) value() string { return fmt.Sprintf("%d|%s|%s|%d", b.serial, b.id, b.region, b.cents) }

func parseBill(account, value string) (b bill, err error) {
	f := strings.Split(value, "|")
	if len(f) != 4 {
		return b, fmt.Errorf("bill %q", value)
	}
	b = bill{id: f[1], account: account, region: f[2]}
	if b.serial, err = strconv.Atoi(f[0]); err == nil {
		b.cents, err = strconv.ParseInt(f[3], 10, 64)
	}
	return b, err
}

// total is what an account has come to in one partition, or a region.
type total struct{ n, sum, low, high int64 }

func (t total) with(cents int64) total {
	if t.n == 0 {
		return total{1, cents, cents, cents}
	}
	return total{t.n + 1, t.sum + cents, min(t.low, cents), max(t.high, cents)}
}

func (t total) String() string { return fmt.Sprintf("%d,%d,%d,%d", t.n, t.sum, t.low, t.high) }

func parseTotal(s string) (t total, err error) {
	_, err = fmt.Sscanf(s, "%d,%d,%d,%d", &t.n, &t.sum, &t.low, &t.high)
	return t, err
}

// billsTopology: dedup -> echo; a total for each account; by region, dedup again, a sum for each region.
func billsTopology() (*topology.Topology, error) {
	text := serde.String()
	b := topology.New(app)
	in := topology.From(b, billsTopic, text, text, topology.IDHeader(idHeader))
	unique := topology.Dedup(in, "unique", topology.Retention(window), topology.OnTooLate(topology.Drop))
	topology.To(unique, echoTopic, text, text)

	accounts := topology.KeyValue("accounts", text, text)
	totals := topology.Process(unique, "totals",
		func(ctx topology.Context, r record.Record[string, string], emit topology.Emit[string, string]) error {
			x, err := parseBill(r.Key, r.Value)
			if err != nil {
				return err
			}
			var t total
			if old, ok, err := accounts.Get(ctx, x.account); err != nil {
				return err
			} else if ok {
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
			emit(record.Record[string, string]{Key: r.Key, Value: fmt.Sprintf("%d %s", ctx.Position().Partition, t)})
			return err
		}, topology.WithStore(accounts))
	topology.To(totals, totalsTopic, text, text)

	regions := topology.KeyBy(unique, "by-region", text, func(r record.Record[string, string]) (string, error) {
		x, err := parseBill(r.Key, r.Value)
		return x.region, err
	})
	once := topology.Dedup(regions, "region-unique", topology.Retention(window), topology.OnTooLate(topology.Forward))
	sums := topology.Aggregate(once, "sums", text, func(old string, r record.Record[string, string]) (string, error) {
		x, err := parseBill(r.Key, r.Value)
		if err != nil {
			return "", err
		}
		t, _, err := parseSum(old)
		return fmt.Sprintf("%s %s", t.with(x.cents), x.id), err
	})
	topology.To(sums, sumsTopic, text, text)
	return b.Build()
}

// parseSum decodes a region's sum and the ID of the last bill in it. Nothing is the sum of no bills.
func parseSum(s string) (t total, id string, err error) {
	if s == "" {
		return t, "", nil
	}
	head, id, _ := strings.Cut(s, " ")
	t, err = parseTotal(head)
	return t, id, err
}

// loader writes the input: bursts of bills, some of them sent again, some aborted first.
type loader struct {
	w        *world
	rng      *rand.Rand
	plain    *kgo.Client
	aborter  *kgo.Client
	accounts int
	left     int    // bills still to be made
	made     []bill // accepted ones, each with its partition
	at       []int32
	serial   int

	duplicates int // copies that must be dropped
	late       int // older than the window: must be dropped
}

func (l *loader) record(b bill, partition int32, at time.Time) *kgo.Record {
	return &kgo.Record{
		Topic: billsTopic, Partition: partition, Timestamp: at, Key: []byte(b.account), Value: []byte(b.value()),
		Headers: []kgo.RecordHeader{{Key: idHeader, Value: []byte(b.id)}},
	}
}

// run sends everything, at random intervals up to gap.
func (l *loader) run(ctx context.Context, gap time.Duration) {
	for l.left > 0 {
		l.burst(ctx)
		time.Sleep(time.Duration(l.rng.Int64N(int64(gap))))
	}
}

// burst sends a few bills.
func (l *loader) burst(ctx context.Context) {
	now := time.Now()
	var out []*kgo.Record
	send := func(b bill, p int32, at time.Time) {
		l.serial++
		b.serial = l.serial
		out = append(out, l.record(b, p, at))
	}
	for range 1 + l.rng.IntN(12) {
		if l.left == 0 {
			break
		}
		l.left--
		b := l.bill()
		p := int32(record.PartitionForKey([]byte(b.account), partitions))
		// A late one is told from a new one only once the task has committed a stream time.
		if l.rng.IntN(50) == 0 && l.w.committed(billsTopic, p) > 0 {
			b.id = "late-" + b.id
			l.late++
			send(b, p, now.Add(-3*window))
			continue
		}
		send(b, p, now)
		l.made, l.at = append(l.made, b), append(l.at, p)
		for l.rng.IntN(5) == 0 { // again: in the same burst, or any one before
			i := max(0, len(l.made)-1-l.rng.IntN(1+l.rng.IntN(len(l.made))))
			send(l.made[i], l.at[i], now)
			l.duplicates++
		}
		if l.rng.IntN(100) == 0 { // in another partition it passes: the scope of an ID is the partition
			p = (p + 1) % partitions
			send(b, p, now)
			l.made, l.at = append(l.made, b), append(l.at, p)
		}
	}
	if l.rng.IntN(8) == 0 {
		l.abort(ctx, out)
	}
	if err := l.plain.ProduceSync(ctx, out...).FirstErr(); err != nil {
		l.w.fail("load: %v", err)
	}
}

// abort sends the same bills in a transaction that is aborted: nobody may see them.
func (l *loader) abort(ctx context.Context, recs []*kgo.Record) {
	err := l.aborter.BeginTransaction()
	for _, r := range recs {
		c := *r
		l.aborter.Produce(ctx, &c, nil)
	}
	if err == nil {
		err = l.aborter.Flush(ctx)
	}
	if err == nil {
		err = l.aborter.EndTransaction(ctx, kgo.TryAbort)
	}
	if err != nil {
		l.w.fail("load: abort: %v", err)
	}
}

func (l *loader) bill() bill {
	account := l.rng.IntN(1 + l.rng.IntN(l.accounts)) // skewed to the low ones
	b := bill{
		id: fmt.Sprintf("b%d-%d", l.left, l.serial), account: fmt.Sprintf("acc-%d", account), region: fmt.Sprintf("r%d", account%4),
		cents: int64(1 + l.rng.IntN(1000)),
	}
	if l.rng.IntN(8) == 0 {
		b.cents = 0
	}
	return b
}

// again sends n bills of before once more: a filter, a log or a disk that lost an ID lets one pass.
func (l *loader) again(ctx context.Context, n int) {
	var out []*kgo.Record
	for _, i := range l.rng.Perm(len(l.made))[:min(n, len(l.made))] {
		l.serial++
		b := l.made[i]
		b.serial = l.serial
		out = append(out, l.record(b, l.at[i], time.Now()))
		l.duplicates++
	}
	if err := l.plain.ProduceSync(ctx, out...).FirstErr(); err != nil {
		l.w.fail("load: %v", err)
	}
}
