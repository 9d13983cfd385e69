package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// logAt handles lines at moments of its own.
func logAt(t *testing.T, h slog.Handler, second int, level slog.Level, message string, attrs ...any) {
	t.Helper()
	r := slog.NewRecord(time.Unix(int64(second), 0), level, message, 0)
	r.Add(attrs...)
	if err := h.Handle(context.Background(), r); err != nil {
		t.Fatal(err)
	}
}

func textOnly(w *bytes.Buffer) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})
}

// TestRepeatsAreLimited: a line that comes again and again is not shown each time, what was left out is counted, and lines of
// others are not touched.
func TestRepeatsAreLimited(t *testing.T) {
	var b bytes.Buffer
	h := limitRepeats(textOnly(&b))
	for range 100 {
		logAt(t, h, 1, slog.LevelWarn, "no broker", "err", "gone")
	}
	logAt(t, h, 2, slog.LevelWarn, "no broker", "task", "in/0")
	logAt(t, h.WithAttrs([]slog.Attr{slog.String("pipeline", "other")}), 2, slog.LevelWarn, "no broker")
	logAt(t, h, 2, slog.LevelError, "no broker")
	if n := strings.Count(b.String(), "\n"); n != repeatsShown+3 {
		t.Fatalf("%d lines, want %d:\n%s", n, repeatsShown+3, &b)
	}
	b.Reset()
	logAt(t, h, 11, slog.LevelWarn, "no broker", "err", "gone")
	if want := "msg=\"no broker\" err=gone suppressed=95\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// TestSuppressedIsSaid: also if the line never comes again.
func TestSuppressedIsSaid(t *testing.T) {
	var b bytes.Buffer
	h := limitRepeats(textOnly(&b))
	one := h.WithAttrs([]slog.Attr{slog.String("task", "in/0")})
	for i := range 8 {
		logAt(t, one, 1, slog.LevelWarn, "again", "n", i)
	}
	b.Reset()
	logAt(t, h, 20, slog.LevelInfo, "other")
	if want := "msg=again task=in/0 n=7 suppressed=3\nmsg=other\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	b.Reset()
	logAt(t, h, 21, slog.LevelInfo, "other")
	if strings.Contains(b.String(), "suppressed") {
		t.Errorf("said twice: %q", b.String())
	}
}

// TestKindsAreBounded: as many kinds as there may be, lines pass and memory has an end.
func TestKindsAreBounded(t *testing.T) {
	var b bytes.Buffer
	h := limitRepeats(textOnly(&b)).(*limitHandler)
	for i := range 2 * repeatsKinds {
		logAt(t, h, 1, slog.LevelInfo, fmt.Sprint(i))
	}
	if n := strings.Count(b.String(), "\n"); n != 2*repeatsKinds || len(h.repeats.kinds) != repeatsKinds {
		t.Errorf("%d lines, %d kinds", n, len(h.repeats.kinds))
	}
}

// TestRecentLog: the last lines are kept, whatever their number and from how many goroutines.
func TestRecentLog(t *testing.T) {
	x := &recentLog{}
	log := slog.New(x.handler(slog.DiscardHandler))
	log.Info("not logged, not kept")
	if len(x.text()) != 0 {
		t.Error("a line that nobody logs is kept")
	}
	log = slog.New(x.handler(textOnly(&bytes.Buffer{}))).With("pipeline", "p").WithGroup("g")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				log.Info("line", "pad", strings.Repeat("x", 500))
			}
		})
	}
	all.Wait()
	log.Info("the last one")
	text := string(x.text())
	if len(text) > maxRecentBytes || len(text) < maxRecentBytes/2 || !strings.HasSuffix(strings.TrimSpace(text), `"msg":"the last one","pipeline":"p"}`) {
		t.Errorf("%d bytes, at the end %q", len(text), text[max(0, len(text)-200):])
	}
}

// Whoever reads a line need not guess the unit of a number.
func TestDurationsHaveTheirUnit(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, LogConfig{Level: "info", Format: LogJSON})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("restored", "took", 1500*time.Millisecond)
	if !strings.Contains(out.String(), `"took":"1.5s"`) {
		t.Error(out.String())
	}
}
