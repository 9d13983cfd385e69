package daemon

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits of repeats in a log.
const (
	repeatsShown  = 5 // lines of one kind in repeatsSpan
	repeatsSpan   = 10 * time.Second
	repeatsKinds  = 1024 // kinds that are counted at once; lines of others pass
	suppressedKey = "suppressed"
)

// kindKeys are the attributes by which lines with one message are told apart: what one step or task says does not hide what another one says.
var kindKeys = map[string]bool{"pipeline": true, "step": true, "task": true, "topic": true, "sink": true, "worker": true}

// limitRepeats returns a handler that hands on no more than a few lines of a kind (level, message and where it was) in a while, and then how
// many it has left out, as suppressed=N of the next one, or of a line of its own when another line comes. Time is that of the lines.
func limitRepeats(next slog.Handler) slog.Handler {
	return &limitHandler{next: next, repeats: &repeats{kinds: map[string]*kind{}}}
}

// repeats is what the handlers of one logger share.
type repeats struct {
	mu    sync.Mutex // guards kinds; next is never called under it
	kinds map[string]*kind
}

// kind is what is known of lines of one kind.
type kind struct {
	since             time.Time
	shown, suppressed int
	// last is the newest line that was left out, and by its own handler, with its attributes.
	last slog.Record
	next slog.Handler
}

// limitHandler implements slog.Handler.
type limitHandler struct {
	next    slog.Handler
	repeats *repeats
	bound   string // kind attributes by WithAttrs
	grouped bool   // attributes are inside of a group: they are no kind attributes
}

// Enabled implements slog.Handler.
func (h *limitHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *limitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.next = h.next.WithAttrs(attrs)
	if !h.grouped {
		for _, a := range attrs {
			c.bound += kindPart(a)
		}
	}
	return &c
}

// WithGroup implements slog.Handler.
func (h *limitHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.next, c.grouped = h.next.WithGroup(name), h.grouped || name != ""
	return &c
}

func kindPart(a slog.Attr) string {
	if !kindKeys[a.Key] {
		return ""
	}
	return "\x00" + a.Key + "\x00" + a.Value.Resolve().String()
}

// Handle implements slog.Handler.
func (h *limitHandler) Handle(ctx context.Context, r slog.Record) error {
	var key strings.Builder
	key.WriteString(strconv.Itoa(int(r.Level)) + "\x00" + r.Message + h.bound)
	if !h.grouped {
		r.Attrs(func(a slog.Attr) bool {
			key.WriteString(kindPart(a))
			return true
		})
	}
	show, over := h.repeats.look(key.String(), r, h.next)
	for _, k := range over {
		if err := k.next.Handle(ctx, withSuppressed(k.last, k.suppressed)); err != nil {
			return err
		}
	}
	if show == nil {
		return nil
	}
	return h.next.Handle(ctx, withSuppressed(r, *show))
}

func withSuppressed(r slog.Record, n int) slog.Record {
	if n == 0 {
		return r
	}
	r = r.Clone()
	r.AddAttrs(slog.Int(suppressedKey, n))
	return r
}

// look says whether a line is shown, with how many that were left out before it, and which kinds are over with lines that were left out.
func (x *repeats) look(key string, r slog.Record, next slog.Handler) (show *int, over []kind) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for other, k := range x.kinds {
		if age := r.Time.Sub(k.since); age >= 0 && age < repeatsSpan || other == key {
			continue
		}
		if k.suppressed > 0 {
			over = append(over, *k)
		}
		delete(x.kinds, other)
	}
	none := 0
	k := x.kinds[key]
	switch {
	case k == nil && len(x.kinds) >= repeatsKinds:
		return &none, over
	case k == nil:
		x.kinds[key] = &kind{since: r.Time, shown: 1}
		return &none, over
	case r.Time.Sub(k.since) >= repeatsSpan || r.Time.Before(k.since):
		n := k.suppressed
		*k = kind{since: r.Time, shown: 1}
		return &n, over
	case k.shown < repeatsShown:
		k.shown++
		return &none, over
	}
	k.suppressed++
	k.last, k.next = r, next
	return nil, over
}
