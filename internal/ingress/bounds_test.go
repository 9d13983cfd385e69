package ingress

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// The bound is of what a request holds in memory, not of the bytes of its body: small records, each with a long ID, take the most.
func TestSmallRecordsCountForWhatTheyHold(t *testing.T) {
	r := newRig(t)
	const limit = 1 << 20
	h := NewHTTP(HTTPConfig{}, NewQueue(r.log(), limit, patience)) // nobody writes
	body := "[" + strings.Repeat("1,", 999) + "1]"
	other, err := h.queue.Reserve(1)
	if err != nil {
		t.Fatal(err)
	}
	h.cfg.Timeout = 50 * time.Millisecond // of one that is let in
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	req.Header.Set(DefaultIDHeader, strings.Repeat("k", 4000))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("a thousand records with IDs of 4000 bytes, in a queue of %d bytes: %d %s", limit, w.Code, text(w))
	}
	if h.queue.used != 1 {
		t.Errorf("%d bytes stay reserved, want 1", h.queue.used)
	}
	// Alone it comes in, as any that is larger than all there is.
	other.Release()
	room, err := h.queue.Reserve(10)
	if err == nil {
		err = room.Resize(2 * limit)
	}
	if err != nil || h.queue.used != 2*limit {
		t.Errorf("alone: %v, %d bytes", err, h.queue.used)
	}
	if _, err := h.queue.Reserve(1); !errors.Is(err, ErrBusy) {
		t.Errorf("beside it: %v", err)
	}
}

// A body that comes too slowly may come in time the next time: a client must not take it for a request to be mended.
func TestSlowBody(t *testing.T) {
	h := NewHTTP(HTTPConfig{}, NewQueue(newRig(t).log(), 1<<20, patience))
	req := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(`[1,`), iotest.ErrReader(&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded})))
	req.Header.Set(DefaultIDHeader, "k")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != http.StatusRequestTimeout || w.Header().Get("Retry-After") == "" || w.Header().Get("Connection") != "close" || h.queue.used != 0 {
		t.Errorf("%d %v %s, %d bytes reserved", w.Code, w.Header(), text(w), h.queue.used)
	}
}
