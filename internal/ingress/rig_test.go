package ingress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

const logTopic = "log"

// rig is a cluster with an ingress log of three partitions.
type rig struct {
	t       *testing.T
	b       *simbroker.Broker
	metrics *metric.Ingress
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b := simbroker.New(time.Unix(1_700_000_000, 0))
	if err := b.Client("setup").CreateTopic(t.Context(), broker.Topic{Name: logTopic, Partitions: 3}); err != nil {
		t.Fatal(err)
	}
	m, err := metric.NewIngress(nil, "p", []metric.Source{{Name: "s"}})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, b, m}
}

// log makes the Log of a process.
func (r *rig) log() *Log {
	return NewLog(LogConfig{
		Cluster: r.b.Client("ingress"), Topic: broker.Topic{Name: logTopic, Partitions: 3}, TransactionalID: "p-ingress-s",
		Source: "s", Logger: slog.New(slog.DiscardHandler), Metrics: r.metrics, Retry: time.Microsecond,
	})
}

// process is an endpoint whose queue runs. A simulated crash of it ends the writing and answers nobody, as a kill does.
type process struct {
	*HTTP
	stop func() error // ends as a process that is told to; the queue's error
	dead chan struct{}
}

func (r *rig) process(cfg HTTPConfig, limit int64) *process {
	r.t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patience
	}
	q := NewQueue(r.log(), limit, patience)
	p := &process{HTTP: NewHTTP(cfg, q), dead: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	go func() {
		defer close(p.dead)
		defer func() {
			if x := recover(); x != nil {
				if _, ok := x.(simbroker.Crash); !ok {
					panic(x)
				}
				err = errors.New("killed")
			}
		}()
		err = q.Run(ctx)
	}()
	p.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case <-p.dead:
		case <-time.After(patience):
			r.t.Error("the queue does not end")
		}
		return err
	})
	r.t.Cleanup(func() { _ = p.stop() })
	return p
}

// post sends a request and returns the answer; nil if the process was killed before it answered.
func (p *process) post(body, contentType, key string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if key != "" {
		req.Header.Set(DefaultIDHeader, key)
	}
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.ServeHTTP(w, req)
	}()
	select {
	case <-done:
		return w
	case <-p.dead:
		select {
		case <-done: // it was answered, and killed then
			return w
		case <-time.After(20 * time.Millisecond): // a client that got nothing sends again, so that nothing depends on how long this is
			return nil
		}
	}
}

// line is a committed record of the log.
type line struct {
	partition record.Partition
	id, key   string
	value     string
}

func (r *rig) lines() (out []line) {
	for p := range record.Partition(3) {
		for _, x := range r.b.Committed(record.TopicPartition{Topic: logTopic, Partition: p}) {
			id, _ := x.Headers.Get(IDHeader)
			out = append(out, line{p, string(id), string(x.Key), string(x.Value)})
		}
	}
	return out
}

// counts says how often each ID stands in the log.
func (r *rig) counts() map[string]int {
	n := map[string]int{}
	for _, l := range r.lines() {
		n[l.id]++
	}
	return n
}

func text(w *httptest.ResponseRecorder) string {
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}
