package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"
)

// maxRecentBytes is how much of its log a process keeps for a support bundle.
const maxRecentBytes = 256 << 10

// RecentPath is where the admin socket has the last lines of the log.
const RecentPath = "/debug/logs"

// recentLog keeps the last lines of a log, as JSON.
type recentLog struct {
	mu    sync.Mutex // guards what follows
	lines [][]byte
	size  int
}

// Write takes one line.
func (x *recentLog) Write(line []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lines = append(x.lines, bytes.Clone(line))
	x.size += len(line)
	for x.size > maxRecentBytes && len(x.lines) > 1 {
		x.size -= len(x.lines[0])
		x.lines = x.lines[1:]
	}
	return len(line), nil
}

// text is what is kept, oldest first.
func (x *recentLog) text() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return bytes.Join(x.lines, nil)
}

// ServeHTTP answers with it.
func (x *recentLog) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	_, _ = w.Write(x.text()) // a client that is gone needs no answer
}

// handler hands on what next takes, and keeps it.
func (x *recentLog) handler(next slog.Handler) slog.Handler {
	return &recentHandler{Handler: next, kept: jsonHandler(x, slog.LevelDebug)}
}

// recentHandler implements slog.Handler. What is not logged is not kept.
type recentHandler struct {
	slog.Handler
	kept slog.Handler
}

// Handle implements slog.Handler.
func (h *recentHandler) Handle(ctx context.Context, r slog.Record) error {
	_ = h.kept.Handle(ctx, r) // memory takes everything
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *recentHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return &recentHandler{h.Handler.WithAttrs(a), h.kept.WithAttrs(a)}
}

// WithGroup implements slog.Handler.
func (h *recentHandler) WithGroup(name string) slog.Handler {
	return &recentHandler{h.Handler.WithGroup(name), h.kept.WithGroup(name)}
}
