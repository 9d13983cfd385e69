package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/streamd/streamd/sink"
)

const (
	// tries is how often a request is sent before the batch is given up and begun again.
	tries = 8
	// patience is how many timeouts of a request all its tries may take.
	patience = 3
	// firstPause is doubled up to mostPause.
	firstPause = 100 * time.Millisecond
	mostPause  = time.Minute
	// mostAsked bounds what Retry-After asks for: a slip of the receiver must not silence a pipeline for days.
	mostAsked = 10 * time.Minute
	// answerBytes of an answer are read.
	answerBytes = 64 << 10
)

// request is one body with its keys: rows from and up to an index of the batch.
type request struct {
	from, to int
	key      string
	body     []byte
}

// Apply sends the rows in their order, one request after the other.
func (a *receiver) Apply(ctx context.Context, task string, rows []sink.Row) error {
	alone := 0 // rows before this index go one to a request
	for at := 0; at < len(rows); {
		most := a.cfg.Batch
		if at < alone {
			most = 1
		}
		r, err := a.next(task, rows, at, most)
		if err == nil {
			err = a.deliver(ctx, r)
		}
		var refused *sink.RowError
		var setup *sink.SetupError
		switch {
		case err == nil:
			at = r.to
		case errors.As(err, &refused) && r.to-r.from > 1:
			alone = r.to // the receiver does not say which row it was: alone, the one will be told
		case refused != nil || errors.As(err, &setup):
			return err
		default:
			return &sink.PartialError{Applied: at, Err: err}
		}
	}
	return nil
}

// next makes the request of at most so many rows from an index on.
func (a *receiver) next(task string, rows []sink.Row, from, most int) (request, error) {
	r := request{from: from, to: from}
	for r.to < len(rows) && r.to-from < most {
		key := task + "/" + strconv.FormatInt(int64(rows[r.to].Offset), 10)
		row, err := a.cfg.Table.AppendJSON(nil, rows[r.to])
		if err == nil && a.cfg.Batch > 1 {
			row, err = keyed(key, row)
		}
		size := len(r.body) + len(row) + len("[]")
		if err == nil && size > a.cfg.MaxBody && r.to == from {
			err = fmt.Errorf("a body of %d bytes, at most %d are allowed", size, a.cfg.MaxBody)
		}
		switch {
		case err != nil && r.to == from:
			return r, &sink.RowError{Index: from, Err: err}
		case err != nil || size > a.cfg.MaxBody:
			return a.closed(r), nil // it begins the next one
		case r.to == from:
			r.key = key
		default:
			r.body = append(r.body, ',')
		}
		r.body = append(r.body, row...)
		r.to++
	}
	return a.closed(r), nil
}

// keyed is a row beside its key.
func keyed(key string, row []byte) ([]byte, error) {
	return json.Marshal(struct {
		Key string          `json:"idempotency_key"`
		Row json.RawMessage `json:"row"`
	}{key, row})
}

// closed ends a request of many rows. How many they are is a part of its key: it must not be taken for one of fewer.
func (a *receiver) closed(r request) request {
	if a.cfg.Batch > 1 {
		r.key += "+" + strconv.Itoa(r.to-r.from)
		r.body = append(append([]byte{'['}, r.body...), ']')
	}
	return r
}

// retryError is a failure that may heal.
type retryError struct{ error }

// deliver sends one request until it is confirmed, refused, or has failed too often.
func (a *receiver) deliver(ctx context.Context, r request) error {
	// Whoever takes the partition over may be waiting.
	ctx, cancel := context.WithTimeout(ctx, patience*a.cfg.Timeout)
	defer cancel()
	if err := wait(ctx, a.asked(time.Now())); err != nil {
		return fmt.Errorf("webhook: %s has asked for a pause: %w", a.where(), err)
	}
	for n := 1; ; n++ {
		err := a.once(ctx, r)
		var again retryError
		if !errors.As(err, &again) {
			return err
		}
		if n == tries {
			return fmt.Errorf("%w, %d times", again.error, n)
		}
		if err := wait(ctx, max(a.asked(time.Now()), min(a.most, a.first<<(n-1)))); err != nil {
			return fmt.Errorf("%w; given up: %w", again.error, err)
		}
	}
}

// asked is how long the receiver still wants to be left alone. It outlives a request that was given up, and holds for all partitions.
func (a *receiver) asked(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, a.quiet.Sub(now))
}

// ask keeps what a Retry-After says.
func (a *receiver) ask(header string, now time.Time) {
	pause := min(retryAfter(header, now), a.mostAsked)
	a.mu.Lock()
	defer a.mu.Unlock()
	if until := now.Add(pause); until.After(a.quiet) {
		a.quiet = until
	}
}

// wait waits, or returns ctx's error.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// once sends a request and says what its answer means.
func (a *receiver) once(ctx context.Context, r request) error {
	client, err := a.connection()
	if err != nil {
		return err
	}
	s, err := a.secrets()
	if err != nil {
		return retryError{err} // a file that is being replaced
	}
	limited, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, a.cfg.Method, a.url.String(), bytes.NewReader(r.body))
	if err != nil {
		return fmt.Errorf("webhook: %s: a request that cannot be made", a.where())
	}
	for name, value := range a.cfg.Header {
		req.Header.Set(name, value)
	}
	s.sign(req)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(keyHeader, strconv.Quote(r.key)) // a structured field of RFC 8941: a string
	resp, err := client.Do(req)
	if err != nil {
		err = a.fault("send", err)
		var setup *sink.SetupError
		if errors.As(err, &setup) {
			return err
		}
		return retryError{err}
	}
	defer func() { _ = resp.Body.Close() }() // what counts was read
	// Read, so that the connection is used again; what is longer is not.
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerBytes))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	if err != nil {
		answer = nil
	}
	return a.judge(resp, r, a.shown(answer, s))
}

// judge is what an answer means that is no success.
func (a *receiver) judge(resp *http.Response, r request, text string) error {
	err := fmt.Errorf("webhook: %s answers %d: %s", a.where(), resp.StatusCode, text)
	switch s := resp.StatusCode; {
	case s == http.StatusRequestTimeout, s == http.StatusConflict, s == http.StatusTooEarly, s == http.StatusTooManyRequests, s >= 500:
		a.ask(resp.Header.Get("Retry-After"), time.Now())
		return retryError{err}
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusProxyAuthRequired:
		return &sink.SetupError{Err: err, Rights: true, Remedy: "look at what is sent as Authorization, and at what its bearer may do"}
	case s == http.StatusNotFound, s == http.StatusMethodNotAllowed:
		return &sink.SetupError{Err: err, Remedy: "look at the URL and the method"}
	case s < 400:
		return &sink.SetupError{Err: err, Remedy: "redirects are not followed: name the last address"}
	}
	return &sink.RowError{Index: r.from, Err: err}
}

// retryAfter reads the header: seconds, or a date. What cannot be read is zero.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
