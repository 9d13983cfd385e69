package ingress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
)

// LinesConfig says what connections may send. Zero values stand for the defaults.
type LinesConfig struct {
	Values Values // default ValuesJSON
	// Acknowledge answers "ok N" when Kafka has the first N lines of the connection, empty ones not counted.
	Acknowledge bool
	// IDField and KeyField are top-level fields of the lines, as of HTTPConfig. Without IDField each line gets a new ID each time it is sent.
	IDField, KeyField string
	// MaxLine is the longest line in bytes; default 64 KiB, and never more than the topic takes.
	MaxLine int
	// Idle is how long a connection may send nothing; default 5 minutes.
	Idle time.Duration
}

// Bounds of one portion of a connection.
const (
	defaultMaxLineTCP = 64 << 10
	maxPortionLines   = 1000
	// writeTimeout is how long a sender may leave an acknowledgement unread.
	writeTimeout = 30 * time.Second
)

// Lines takes a record from each line of TCP connections.
type Lines struct {
	cfg    LinesConfig
	queue  *Queue
	listen net.Listener
	logger *slog.Logger

	mu    sync.Mutex // guards conns and ended
	conns map[net.Conn]bool
	ended bool
}

// NewLines makes a server of connections in front of a queue.
func NewLines(cfg LinesConfig, q *Queue, l net.Listener, logger *slog.Logger) *Lines {
	if cfg.Values == "" {
		cfg.Values = ValuesJSON
	}
	if cfg.MaxLine <= 0 {
		cfg.MaxLine = defaultMaxLineTCP
	}
	cfg.MaxLine = min(cfg.MaxLine, q.log.MaxRecord()-record.MaxIDBytes-overhead)
	if cfg.Idle <= 0 {
		cfg.Idle = 5 * time.Minute
	}
	return &Lines{cfg: cfg, queue: q, listen: l, logger: logger, conns: map[net.Conn]bool{}}
}

// Run serves until ctx ends. Then it reads nothing more, writes and acknowledges what it has read, and returns nil. An error is the
// queue's.
func (s *Lines) Run(ctx context.Context) error {
	queueCtx, stopQueue := context.WithCancel(context.WithoutCancel(ctx))
	defer stopQueue()
	// What a connection waits for ends with the queue at the latest.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	written := make(chan error, 1)
	go func() {
		written <- s.queue.Run(queueCtx)
		stopWork()
	}()
	var open sync.WaitGroup
	var accepting sync.WaitGroup
	accepting.Go(func() { s.accept(work, &open) })
	select {
	case <-ctx.Done():
	case <-work.Done():
	}
	s.queue.ending()
	_ = s.listen.Close() // which ends the accepting
	accepting.Wait()
	s.end()
	late := time.AfterFunc(s.queue.drain, func() {
		stopWork()
		s.cut()
	})
	open.Wait()
	late.Stop()
	stopQueue()
	return <-written
}

func (s *Lines) accept(ctx context.Context, open *sync.WaitGroup) {
	for {
		c, err := s.listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files, perhaps
			s.logger.Warn("ingress: no connection is accepted; trying again", "source", s.queue.log.cfg.Source, "err", err)
			if sleep(ctx, 100*time.Millisecond) != nil {
				return
			}
			continue
		}
		if !s.enter(c) {
			_ = c.Close()
			continue
		}
		open.Go(func() {
			defer s.leave(c)
			defer s.queue.log.cfg.Watch.begin()()
			s.serve(ctx, c)
		})
	}
}

func (s *Lines) enter(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.conns[c] = true
	}
	return !s.ended
}

func (s *Lines) leave(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// end wakes everybody who waits for lines.
func (s *Lines) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.conns {
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
}

// cut closes what is still open, for the one that does not read what it is told.
func (s *Lines) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close() // who did not read sends again
	}
}

// patient sets how long the next lines may take, unless the end has come.
func (s *Lines) patient(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended && c.SetReadDeadline(time.Now().Add(s.cfg.Idle)) == nil
}

// serve takes the lines of one connection, a portion at a time. It reads the next ones when Kafka has those before, so that
// a sender that is too fast waits.
func (s *Lines) serve(ctx context.Context, c net.Conn) {
	r := bufio.NewReaderSize(c, s.cfg.MaxLine+2)
	taken := 0
	for s.patient(c) {
		recs, room, err := s.portion(ctx, r)
		if len(recs) == 0 && room != nil {
			room.Release()
		}
		if len(recs) > 0 {
			if aerr := s.queue.Append(ctx, recs, room); aerr != nil {
				s.refuse(c, taken, aerr)
				return
			}
			taken += len(recs)
			if s.cfg.Acknowledge && s.say(c, fmt.Sprintf("ok %d\n", taken)) != nil {
				return
			}
		}
		var bad *badRecord
		var none *noRoomError
		switch {
		case errors.As(err, &bad):
			s.refuse(c, taken, bad.err)
			return
		case errors.As(err, &none):
			s.refuse(c, taken, none.error)
			return
		case err != nil:
			return // the end of the connection. A line without its end is not whole
		}
	}
}

// noRoomError is why a sender is not waited for any more.
type noRoomError struct{ error }

func (e *noRoomError) Unwrap() error { return e.error }

// portion waits for a line, and takes those behind it that have come already, in the room that it returns: that is taken before anything is made of
// them. Records are taken also if there is an error.
func (s *Lines) portion(ctx context.Context, r *bufio.Reader) (recs []Record, room *Reservation, err error) {
	line, err := s.line(r)
	if err != nil {
		return nil, nil, err
	}
	have, _ := r.Peek(r.Buffered()) // it reads nothing, so that line stays what it is
	if room, err = s.reserve(ctx, len(line)+len(have), 1+bytes.Count(have, []byte("\n"))); err != nil {
		return nil, nil, &noRoomError{err}
	}
	for {
		if len(bytes.TrimSpace(line)) > 0 {
			rec, err := s.record(bytes.Clone(line))
			if err != nil {
				return recs, room, &badRecord{len(recs), err}
			}
			recs = append(recs, rec)
		}
		if have, _ := r.Peek(r.Buffered()); len(recs) == maxPortionLines || bytes.IndexByte(have, '\n') < 0 {
			return recs, room, nil
		}
		if line, err = s.line(r); err != nil {
			return recs, room, err
		}
	}
}

// line is the next one, without its end, valid until the next read.
func (s *Lines) line(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, &badRecord{0, fmt.Errorf("the line is longer than %d bytes", s.cfg.MaxLine)}
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
}

func (s *Lines) record(line []byte) (Record, error) {
	rec := Record{Value: line, Timestamp: time.Now()}
	if err := s.cfg.Values.check(line); err != nil {
		return rec, err
	}
	id, key, err := fields{s.cfg.IDField, s.cfg.KeyField}.find(line)
	switch {
	case err != nil:
		return rec, err
	case s.cfg.IDField != "" && id == nil:
		return rec, fmt.Errorf("field %q is missing: it identifies the record", s.cfg.IDField)
	case s.cfg.KeyField != "" && key == nil:
		return rec, fmt.Errorf("field %q is missing: it is the record's key", s.cfg.KeyField)
	case id == nil:
		rec.ID = newID()
	default:
		rec.ID = record.BytesID(id)
	}
	rec.Key = key
	return rec, rec.ID.Check()
}

// reserve waits for room for lines, as long as it takes: the sender is held up meanwhile. The most that becomes of a line is itself, and an ID and a key
// that are all of it.
func (s *Lines) reserve(ctx context.Context, size, lines int) (*Reservation, error) {
	n := int64(3*size) + int64(min(lines, maxPortionLines))*recordCost
	for {
		room, err := s.queue.Reserve(n)
		if err == nil || errors.Is(err, ErrStopping) {
			return room, err
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// refuse tells the sender why the connection ends. What was acknowledged is in Kafka, the rest is his.
func (s *Lines) refuse(c net.Conn, taken int, err error) {
	s.queue.log.cfg.Metrics.Refused(s.queue.log.cfg.Source, metric.RefusedRequest)
	s.logger.Debug("ingress: a connection ends", "source", s.queue.log.cfg.Source, "from", c.RemoteAddr().String(), "lines", taken, "err", err)
	text := err.Error()
	if errors.Is(err, ErrDoubt) || errors.Is(err, ErrStopping) || errors.Is(err, context.Canceled) {
		text = "the process is stopping"
	}
	_ = s.say(c, fmt.Sprintf("error after %d: %s\n", taken, text)) // he sees the end of the connection anyway
}

func (s *Lines) say(c net.Conn, text string) error {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.Write([]byte(text))
	return err
}
