package proof

import (
	"context"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

// CheckQuiet is C8: no transaction is open in any of the topics.
func CheckQuiet(ctx context.Context, c *rawlog.Cluster, topics ...string) (*Result, error) {
	r := NewResult("C8", "no transaction is open")
	bounds, err := c.Bounds(ctx, topics...)
	if err != nil {
		return nil, err
	}
	// Once more: what producers wrote between the two questions about one partition is no open transaction.
	later, err := c.Bounds(ctx, topics...)
	if err != nil {
		return nil, err
	}
	for _, p := range rawlog.Sorted(bounds) {
		r.Compared++
		if open, end := later[p].Stable, bounds[p].End; open < end {
			r.Differ(rawlog.At(p, open), "a transaction is open since here, the end is %d", end)
		}
	}
	return r, nil
}

// AwaitCaughtUp is C9: the group has committed all of the topics within the limit. The result tells how
// long it took. A topic must have no markers behind its last record but those of transactions that
// the group's own application wrote; behind such, the position is the end as well.
func AwaitCaughtUp(ctx context.Context, c *rawlog.Cluster, group string, limit time.Duration, topics ...string) (*Result, error) {
	r := NewResult("C9", "lag reaches zero within the bound")
	begin := time.Now()
	last := ""
	for {
		behind, n, err := lag(ctx, c, group, topics)
		r.Compared = n
		if behind == "" && err == nil {
			r.Note("after %v, the bound is %v", time.Since(begin).Round(10*time.Millisecond), limit)
			return r, nil
		}
		if last = behind; err != nil {
			last = err.Error()
		}
		if time.Since(begin) > limit {
			r.Differ("group "+group, "after %v: %s", limit, last)
			return r, nil
		}
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("%w: %s", err, last)
		}
	}
}

// lag says which partition the group is behind in, empty if in none.
func lag(ctx context.Context, c *rawlog.Cluster, group string, topics []string) (behind string, compared int64, err error) {
	bounds, err := c.Bounds(ctx, topics...)
	if err != nil {
		return "", 0, err
	}
	offsets, err := c.Committed(ctx, group)
	if err != nil {
		return "", 0, err
	}
	for _, p := range rawlog.Sorted(bounds) {
		compared++
		o, ok := offsets[p]
		if b := bounds[p]; b.End > b.Start && (!ok || o.Next < b.End) {
			left, err := recordsBetween(ctx, c, p, max(o.Next, b.Start), b)
			if err != nil {
				return "", 0, err
			}
			if left {
				return fmt.Sprintf("%s is committed to %d of %d", p, o.Next, b.End), compared, nil
			}
		}
	}
	return "", compared, nil
}

// recordsBetween says whether there is a committed record from next on, or an undecided one.
func recordsBetween(ctx context.Context, c *rawlog.Cluster, p rawlog.Partition, next int64, b rawlog.Bounds) (bool, error) {
	if b.Stable < b.End {
		return true, nil
	}
	found := false
	f := c.Follow(p, next)
	for !found && f.Next() < b.End {
		if err := f.Poll(ctx, func(rawlog.Record) error { found = true; return nil }); err != nil {
			return false, err
		}
	}
	return found, nil
}
