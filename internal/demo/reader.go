package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// reader reads the totals as any consumer with read_committed would.
type reader struct {
	client *kgo.Client

	mu       sync.Mutex // guards all below
	latest   sums
	latestAt time.Time
	// again counts totals that do not follow the one before: each one counts more bills than the last,
	// so one that counts as many or fewer was written twice.
	again int
	bad   error // a record that is no total
}

func newReader(address string) (*reader, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics(outputTopic), kgo.ClientID("streamd-demo-reader"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("demo: reader: %w", err)
	}
	return &reader{client: c, latest: sums{}}, nil
}

// run reads until ctx ends.
func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		// Errors of a fetch are retried inside; what does not arrive fails the check.
		fetches := r.client.PollFetches(ctx)
		r.mu.Lock()
		fetches.EachRecord(r.add)
		r.mu.Unlock()
	}
}

func (r *reader) add(rec *kgo.Record) {
	var v struct {
		Total json.RawMessage `json:"total"`
		Bills uint64          `json:"bills"`
	}
	err := json.Unmarshal(rec.Value, &v)
	if err != nil {
		r.bad = fmt.Errorf("demo: %s/%d@%d is no total: %w", rec.Topic, rec.Partition, rec.Offset, err)
		return
	}
	cents, err := parseAmount(strings.Trim(string(v.Total), `"`))
	if err != nil {
		r.bad = err
		return
	}
	account := strings.Trim(string(rec.Key), `"`)
	if v.Bills <= r.latest[account].bills {
		r.again++
	}
	r.latest[account] = total{cents, v.Bills}
	r.latestAt = time.Now()
}

// totals returns the newest total of each account, and when the last one was read.
func (r *reader) totals() (sums, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.latest), r.latestAt
}

// waitFor waits until the totals are as wanted, and says what differs if they do not become so. What
// was counted too often cannot become right, so it does not wait for that.
func (r *reader) waitFor(want sums, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		final, err := r.compare(want)
		if err == nil || final || time.Now().After(deadline) {
			return err
		}
	}
}

// compare says what differs, and whether that is final.
func (r *reader) compare(want sums) (final bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad != nil {
		return true, r.bad
	}
	if r.again > 0 {
		return true, fmt.Errorf("%d totals were written more than once", r.again)
	}
	wrong, example := 0, ""
	for i := range accounts {
		a := fmt.Sprintf("account-%02d", i)
		have, want := r.latest[a], want[a]
		if have == want {
			continue
		}
		wrong++
		final = final || have.bills >= want.bills
		if example == "" {
			example = fmt.Sprintf("%s has %d bills worth %s, want %d worth %s", a, have.bills, amount(have.cents), want.bills, amount(want.cents))
		}
	}
	if wrong > 0 {
		return final, fmt.Errorf("%d of %d accounts differ: %s", wrong, accounts, example)
	}
	if len(r.latest) > len(want) {
		return true, fmt.Errorf("there are %d accounts, want %d", len(r.latest), len(want))
	}
	return false, nil
}

func (r *reader) close() { r.client.Close() }
