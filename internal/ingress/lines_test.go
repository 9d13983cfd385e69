package ingress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
)

// linesServer runs a source of lines.
func linesServer(t *testing.T, r *rig, cfg LinesConfig) (address string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewLines(cfg, NewQueue(r.log(), 1<<20, patience), Limit(l, 4), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return l.Addr().String(), stop
}

// sender is a connection of a client.
type sender struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, address string) *sender {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &sender{t, c, bufio.NewReader(c)}
}

func (s *sender) send(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s, text); err != nil {
		s.t.Fatal(err)
	}
}

// hear reads answers up to one with this begin, and returns it.
func (s *sender) hear(begin string) string {
	s.t.Helper()
	for {
		line, err := s.r.ReadString('\n')
		if strings.HasPrefix(line, begin) {
			return line
		}
		if err != nil {
			s.t.Fatalf("%q, %v; want %q", line, err, begin)
		}
	}
}

func TestLinesAreAcknowledged(t *testing.T) {
	r := newRig(t)
	address, stop := linesServer(t, r, LinesConfig{Acknowledge: true, IDField: "id", KeyField: "k"})
	c := dial(t, address)
	c.send("{\"id\":1,\"k\":\"é😀\"}\r\n\n{\"id\":\"b\",\"k\":2}\n{\"id\":3")
	c.hear("ok 2\n")
	if n := r.counts(); len(n) != 2 || n["1"] != 1 || n["b"] != 1 {
		t.Errorf("%v", n)
	}
	c.send(",\"k\":1}\n")
	c.hear("ok 3\n")
	// A sender whose answer was lost sends again: the same IDs, in the same partitions.
	again := dial(t, address)
	again.send("{\"id\":1,\"k\":\"é😀\"}\n")
	again.hear("ok 1\n")
	if n := r.counts(); len(n) != 3 || n["1"] != 2 {
		t.Errorf("%v", n)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestBadLines(t *testing.T) {
	for name, c := range map[string]struct{ send, want string }{
		"no JSON":       {"{\"id\":1}\n{\"id\" 2}\n{\"id\":3}\n", "error after 1: it is not JSON"},
		"no ID":         {"{\"x\":1}\n", `error after 0: field "id" is missing`},
		"no UTF-8":      {"{\"id\":\"\xff\"}\n", "error after 0: it is not UTF-8"},
		"too long":      {"{\"id\":1}\n" + strings.Repeat("x", 200) + "\n", "error after 1: the line is longer than 100 bytes"},
		"without end":   {strings.Repeat("x", 10_000), "error after 0: the line is longer"},
		"a long object": {"{\"id\":\"" + strings.Repeat("x", 150) + "\"}\n", "error after 0: the line is longer"},
	} {
		r := newRig(t)
		address, stop := linesServer(t, r, LinesConfig{Acknowledge: true, IDField: "id", MaxLine: 100})
		s := dial(t, address)
		_, _ = io.WriteString(s, c.send) // it may be refused in its middle
		if got := s.hear("error"); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := r.counts(); n["3"] != 0 || strings.Contains(c.want, "after 1") != (n["1"] == 1) {
			t.Errorf("%s: %v", name, n)
		}
	}
}

// Nothing is acknowledged that is not committed, at the end neither; what was read then is finished.
func TestLinesStop(t *testing.T) {
	r := newRig(t)
	hold, started := make(chan struct{}), make(chan struct{})
	var begun sync.Once
	r.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.Produce {
			begun.Do(func() { close(started) })
			<-hold
		}
		return simbroker.Action{}
	})
	address, stop := linesServer(t, r, LinesConfig{Acknowledge: true})
	busy, idle := dial(t, address), dial(t, address)
	busy.send("1\n2\n")
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if b, err := idle.r.ReadByte(); err == nil { // whoever sends nothing is let go at once
		t.Errorf("%q", b)
	}
	if len(r.lines()) != 0 {
		t.Error("committed already")
	}
	close(hold)
	busy.hear("ok ")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if n := len(r.lines()); n == 0 {
		t.Error("acknowledged and not there")
	}
}

// A sender that is too fast waits: the room in the queue is taken, and nothing is dropped.
func TestLinesBackpressure(t *testing.T) {
	r := newRig(t)
	address, stop := linesServer(t, r, LinesConfig{Acknowledge: true})
	var senders sync.WaitGroup
	for s := range 3 {
		c := dial(t, address)
		senders.Go(func() {
			var b strings.Builder
			for i := range 2000 {
				fmt.Fprintf(&b, "\"%d-%d %s\"\n", s, i, strings.Repeat("x", 300))
			}
			if _, err := io.WriteString(c, b.String()); err != nil {
				t.Error(err)
			}
		})
		c.hear("ok 2000\n")
	}
	senders.Wait()
	if err := stop(); err != nil {
		t.Error(err)
	}
	values := map[string]bool{}
	for _, l := range r.lines() {
		values[l.value] = true
	}
	if len(values) != 6000 || len(r.lines()) != 6000 {
		t.Errorf("%d values, %d records", len(values), len(r.lines()))
	}
}

// Nothing is made of lines before there is room for what it takes.
func TestLinesTakeRoomFirst(t *testing.T) {
	const limit = 64 << 10
	s := NewLines(LinesConfig{IDField: "id", KeyField: "id"}, NewQueue(newRig(t).log(), limit, patience), nil, slog.New(slog.DiscardHandler))
	text := fmt.Sprintf("{\"id\":%q}\n", strings.Repeat("x", 3000))
	lines := func() *bufio.Reader {
		return bufio.NewReaderSize(strings.NewReader(strings.Repeat(text, 5)+"1"), 20_000)
	}
	recs, room, err := s.portion(t.Context(), lines())
	size := 0
	for i := range recs {
		size += recs[i].size()
	}
	if err != nil || len(recs) != 5 || int64(size) > room.bytes || s.queue.used != room.bytes {
		t.Fatalf("%v: %d records of %d bytes, with room for %+v", err, len(recs), size, room)
	}
	// Who waits for room has made nothing yet, and looked at nothing.
	if _, err := s.queue.Reserve(limit - room.bytes); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	text = "no JSON\n"
	if recs, room, err := s.portion(ctx, lines()); len(recs) > 0 || room != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%d records, %+v, %v", len(recs), room, err)
	}
}
