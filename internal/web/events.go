package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Limits of the event streams.
const (
	maxStreams   = 64               // at once: each is a connection and a goroutine
	eventTimeout = 10 * time.Second // for a client to take one event
)

// Event is what /api/v1/events sends.
type Event struct {
	Time      time.Time       `json:"time"`
	Pipelines []PipelineEvent `json:"pipelines"`
}

// PipelineEvent is one pipeline of an Event.
type PipelineEvent struct {
	Summary
	Live Live `json:"live"`
}

func (h *Handler) event(now time.Time) Event {
	out := Event{Time: now, Pipelines: make([]PipelineEvent, 0, len(h.Pipelines))}
	for i, e := range h.Pipelines {
		out.Pipelines = append(out.Pipelines, PipelineEvent{e.summary(), h.history.series[i].view("").live})
	}
	return out
}

// events sends an event at once and then every two seconds, until the client goes away, does not read, or the
// server stops.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	if h.streams.Add(1) > maxStreams {
		h.streams.Add(-1)
		w.Header().Set("Retry-After", "10")
		h.fail(w, http.StatusServiceUnavailable, fmt.Sprintf("%d clients watch already", maxStreams))
		return
	}
	defer h.streams.Add(-1)
	c := http.NewResponseController(w)
	head := w.Header()
	head.Set("Content-Type", "text/event-stream")
	head.Set("X-Accel-Buffering", "no") // or a proxy keeps the events until it has many
	tick := time.NewTicker(h.interval)
	defer tick.Stop()
	for id := 1; ; id++ {
		now := time.Now()
		h.history.sample(now, h.interval/2)
		data, err := json.Marshal(h.event(now))
		if err != nil {
			h.Logger.Error("an event could not be encoded", "err", err)
			return
		}
		// The server's limit is for short answers. A wrapped writer that cannot change it has its own ideas.
		_ = c.SetWriteDeadline(time.Now().Add(h.patience))
		if _, err := fmt.Fprintf(w, "id: %d\nevent: status\ndata: %s\n\n", id, data); err != nil {
			return
		}
		if err := c.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}
