package webhook

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/sinktest"
)

// counter is a receiver that counts effects by key, and does nothing for a key that it has seen.
type counter struct {
	// before may answer instead, with a status; or lose the answer of what it did, with statusLost.
	before func(n int, body string) int

	mu      sync.Mutex // guards the rest
	seen    map[string]bool
	effects map[int64]int
	requests
}

// requests are how many came and when, and what the last one looked like.
type requests struct {
	n         int
	key, auth string
	at        []time.Time
}

const statusLost = -1

func newCounter() *counter { return &counter{seen: map[string]bool{}, effects: map[int64]int{}} }

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	c.at = append(c.at, time.Now())
	c.key, c.auth = r.Header.Get(keyHeader), r.Header.Get("Authorization")
	status := 0
	if c.before != nil {
		status = c.before(c.n, string(b))
	}
	if status > 0 {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(status)
		fmt.Fprintf(w, "no: %s\x00%s", c.auth, strings.Repeat("x", 1000))
		return
	}
	if err := c.take(r, b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if status == statusLost {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
}

// take does what a body asks for.
func (c *counter) take(r *http.Request, b []byte) error {
	type row struct{ N int64 }
	type keyed struct {
		Key string `json:"idempotency_key"`
		Row row
	}
	var all []keyed
	if strings.HasPrefix(string(b), "[") {
		if err := json.Unmarshal(b, &all); err != nil {
			return err
		}
	} else {
		key, err := strconv.Unquote(r.Header.Get(keyHeader))
		if err != nil {
			return err
		}
		one := keyed{Key: key}
		if err := json.Unmarshal(b, &one.Row); err != nil {
			return err
		}
		all = append(all, one)
	}
	for _, k := range all {
		if !c.seen[k.Key] {
			c.seen[k.Key] = true
			c.effects[k.Row.N]++
		}
	}
	return nil
}

// count is a copy of the effects.
func (c *counter) count() map[int64]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.effects)
}

// asked is a copy of what came.
func (c *counter) asked() requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

func numbers() sink.Table {
	return sink.Table{Name: "x", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}}
}

// opened makes the receiver's side of a configuration, with short pauses.
func opened(t *testing.T, c Config) *receiver {
	t.Helper()
	c.Table = numbers()
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	c.Method, c.Batch, c.Timeout = http.MethodPost, max(1, c.Batch), time.Minute
	a := &receiver{cfg: c, first: time.Millisecond, most: 5 * time.Millisecond, mostAsked: 5 * time.Millisecond}
	if err := errors.Join(c.validate(), a.parse()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func served(t *testing.T, c *counter) string {
	t.Helper()
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	return s.URL + "/in?token=query-secret"
}

func rows(from, to int) (all []sink.Row) {
	for i := from; i < to; i++ {
		all = append(all, sink.Row{Offset: record.Offset(i), Values: []any{int64(i)}})
	}
	return all
}

// Each row has one effect, however often requests and answers are lost.
func TestConformance(t *testing.T) {
	for _, batch := range []int{1, 7} {
		for name, status := range map[string]int{
			"without faults": 0, "busy": http.StatusServiceUnavailable, "answers are lost": statusLost,
			"key is worked on": http.StatusConflict, "too many requests": http.StatusTooManyRequests,
		} {
			t.Run(fmt.Sprintf("%s/%d", name, batch), func(t *testing.T) {
				t.Parallel()
				c := newCounter()
				// Each body fails once: which of two owners comes how often is chance.
				failed := map[string]bool{}
				c.before = func(_ int, body string) int {
					if failed[body] {
						return 0
					}
					failed[body] = true
					return status
				}
				u := served(t, c)
				sinktest.RunApplier(t, sinktest.ApplierHarness{
					Open:    func() (sink.Applier, error) { return opened(t, Config{URL: u, Batch: batch}), nil },
					Effects: func() (map[int64]int, error) { return c.count(), nil },
				})
			})
		}
	}
}

// What a target writes is the same after a crash in the midst of a batch: the next owner begins at the group's offset.
func TestTargetAfterARefusedRow(t *testing.T) {
	for _, batch := range []int{1, 4} {
		c := newCounter()
		c.before = func(_ int, body string) int {
			if strings.Contains(body, `"n":5}`) {
				return http.StatusUnprocessableEntity
			}
			return 0
		}
		target, err := Open(Config{URL: served(t, c), Table: numbers(), Batch: batch, Class: sink.Idempotent})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = target.Close() })
		p := sink.Partition{Sink: "app/out", TopicPartition: record.TopicPartition{Topic: "t", Partition: 2}, TopicID: "id"}
		w, err := target.Claim(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		var row *sink.RowError
		all := rows(0, 12)
		if err := w.Write(t.Context(), sink.Batch{Rows: all, Next: 12}); !errors.As(err, &row) || row.Index != 5 {
			t.Fatalf("batches of %d: %v", batch, err)
		}
		sent := c.asked().n
		if err := w.Write(t.Context(), sink.Batch{Rows: append(all[:5:5], all[6:]...), Next: 12}); err != nil {
			t.Fatal(err)
		}
		if n := c.asked().n - sent; batch == 1 && n != 6 {
			t.Errorf("%d requests for the 6 rows behind the refused one", n)
		}
		if got := c.count(); len(got) != 11 || got[5] != 0 {
			t.Errorf("batches of %d: effects %v", batch, got)
		}
		if key := c.asked().key; batch == 1 && key != `"app/out/id/2/11"` {
			t.Errorf("key %s", key)
		}
	}
}

// What an answer means, and that no error shows a secret.
func TestAnswers(t *testing.T) {
	const secret = "Bearer hunter2-and-more"
	for status, want := range map[int]string{
		301: "redirects", 400: "row", 401: "Authorization", 403: "Authorization", 404: "URL", 405: "URL", 408: "8 times", 409: "8 times", 413: "row", 422: "row",
		425: "8 times", 429: "8 times", 500: "8 times", 503: "8 times",
	} {
		c := newCounter()
		c.before = func(int, string) int { return status }
		a := opened(t, Config{URL: served(t, c), Header: map[string]string{"Authorization": secret}})
		err := a.Apply(t.Context(), "task", rows(0, 1))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), strconv.Itoa(status)) {
			t.Errorf("%d: %v, want %q", status, err, want)
			continue
		}
		if auth := c.asked().auth; auth != secret {
			t.Errorf("the header was not sent: %q", auth)
		}
		if text := err.Error(); strings.Contains(text, "hunter2") || strings.Contains(text, "query-secret") || len(text) > 600 || strings.ContainsAny(text, "\x00\n") {
			t.Errorf("%d: %q", status, text)
		}
	}
	// A redirect is not followed: neither rows nor credentials go where nobody has sent them.
	other := newCounter()
	elsewhere := served(t, other)
	redirect := httptest.NewServer(http.RedirectHandler(elsewhere, http.StatusTemporaryRedirect))
	t.Cleanup(redirect.Close)
	if err := opened(t, Config{URL: redirect.URL, Header: map[string]string{"Authorization": secret}}).Apply(t.Context(), "task", rows(0, 1)); err == nil || other.asked().n != 0 {
		t.Errorf("a redirect: %v, %d requests there", err, other.asked().n)
	}
	gone := httptest.NewServer(newCounter())
	gone.Close()
	err := opened(t, Config{URL: gone.URL + "/?token=query-secret"}).Apply(t.Context(), "task", rows(0, 1))
	var setup *sink.SetupError
	if err == nil || errors.As(err, &setup) || strings.Contains(err.Error(), "query-secret") {
		t.Errorf("nobody listens: %v", err)
	}
}

// TestPathIsNotShown: what makes the path of a webhook secret is one of its segments, and receivers repeat that alone.
func TestPathIsNotShown(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := strings.LastIndexByte(r.URL.Path, '/')
		http.Error(w, "no webhook is called "+r.URL.Path[at+1:], http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	err := opened(t, Config{URL: s.URL + "/services/T00000000/path%2Bsecret"}).Apply(t.Context(), "task", rows(0, 1))
	if err == nil || !strings.Contains(err.Error(), "no webhook is called ***") {
		t.Error(err)
	}
}

// TestHeaderOfOneLine: a value that cannot be sent is known at the start, and is not tried for ever.
func TestHeaderOfOneLine(t *testing.T) {
	for value, fine := range map[string]bool{"a\tb": true, "ä": true, "a\x01b": false, "a\x7fb": false, "a\nb": false} {
		_, err := Open(Config{URL: "http://127.0.0.1:1/", Table: numbers(), Header: map[string]string{"X-A": value}})
		if (err == nil) != fine || err != nil && strings.Contains(err.Error(), "a\x01") {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "Thu, 01 Jan 2026 00:00:30 GMT": 30 * time.Second, "Wed, 31 Dec 2025 00:00:00 GMT": 0,
	} {
		if got := retryAfter(s, now); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
	// The pause that an answer asks for is kept.
	c := newCounter()
	c.before = func(n int, _ string) int { return map[bool]int{true: http.StatusTooManyRequests}[n == 1] }
	a := opened(t, Config{URL: served(t, c)})
	a.mostAsked = time.Minute
	if err := a.Apply(t.Context(), "task", rows(0, 1)); err != nil {
		t.Fatal(err)
	}
	if at := c.asked().at; len(at) != 2 {
		t.Errorf("%d requests", len(at))
	} else if d := at[1].Sub(at[0]); d < 900*time.Millisecond {
		t.Errorf("a pause of %v, want 1s", d)
	}
}

// What the receiver asks for holds for the next request, too, though the one that was told was given up; but not for ever.
func TestPauseOutlivesItsRequest(t *testing.T) {
	c := newCounter()
	a := opened(t, Config{URL: served(t, c)})
	a.mostAsked = time.Minute
	now := time.Now()
	a.ask("86400", now)
	a.ask("1", now) // of another partition
	if d := a.asked(now); d != time.Minute {
		t.Errorf("a pause of %v, want a minute", d)
	}
	given, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := a.Apply(given, "task", rows(0, 1)); err == nil || !strings.Contains(err.Error(), "has asked for a pause") || c.asked().n != 0 {
		t.Errorf("%v, %d requests", err, c.asked().n)
	}
	if d := a.asked(now.Add(time.Hour)); d != 0 {
		t.Errorf("a pause of %v after an hour", d)
	}
}

// Rows that are known to be there are not sent again when a later one of their batch fails.
func TestBatchGoesOnWhereItFailed(t *testing.T) {
	c := newCounter()
	c.before = func(n int, _ string) int {
		return map[bool]int{true: http.StatusServiceUnavailable}[n > 3 && n <= 3+tries]
	}
	a := opened(t, Config{URL: served(t, c)})
	var partial *sink.PartialError
	if err := a.Apply(t.Context(), "task", rows(0, 5)); !errors.As(err, &partial) || partial.Applied != 3 {
		t.Fatalf("%v, want 3 rows applied", err)
	}
}

// Secrets come from files, are read anew, and stand in no error.
func TestAuthorization(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newCounter()
	status := 0
	c.before = func(int, string) int { return status }
	u := served(t, c)
	bearer, basic := opened(t, Config{URL: u, TokenFile: file}), opened(t, Config{URL: u, Username: "ann", PasswordFile: file})
	for i, x := range []struct {
		a       *receiver
		secret  string
		want    string
		refused int
	}{
		{bearer, "hunter2\n", "Bearer hunter2", 0},
		{bearer, "hunter3", "Bearer hunter3", 0},
		{basic, "hunter2\n", "Basic YW5uOmh1bnRlcjI=", 0},
		{bearer, "hunter2", "Bearer hunter2", http.StatusUnauthorized},
		{basic, "hunter2", "Basic YW5uOmh1bnRlcjI=", http.StatusForbidden},
	} {
		put(x.secret)
		status = x.refused
		err := x.a.Apply(t.Context(), "task", rows(i, i+1))
		if (err == nil) != (x.refused == 0) || c.asked().auth != x.want {
			t.Errorf("%d: %v, sent %q, want %q", i, err, c.asked().auth, x.want)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "YW5u")) {
			t.Errorf("%d: the secret is shown: %v", i, err)
		}
	}
	var setup *sink.SetupError
	for _, bad := range []string{"", "hunter2\nhunter3", strings.Repeat("x", mostSecret+1)} {
		put(bad)
		err := bearer.Check(t.Context())
		if !errors.As(err, &setup) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("a token of %d bytes: %v", len(bad), err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := basic.Check(t.Context()); !errors.As(err, &setup) {
		t.Errorf("no file: %v", err)
	}
}

func TestBodies(t *testing.T) {
	a := opened(t, Config{URL: "http://127.0.0.1:1/", Batch: 3, MaxBody: 120})
	r, err := a.next("t", rows(8, 12), 0, 3)
	if want := `[{"idempotency_key":"t/8","row":{"n":8}},{"idempotency_key":"t/9","row":{"n":9}}]`; err != nil || string(r.body) != want || r.to != 2 || r.key != "t/8+2" {
		t.Errorf("%s, %q, %v", r.body, r.key, err)
	}
	var row *sink.RowError
	small := opened(t, Config{URL: "http://127.0.0.1:1/", MaxBody: 5})
	if _, err := small.next("t", rows(0, 2), 1, 1); !errors.As(err, &row) || row.Index != 1 || !strings.Contains(err.Error(), "at most 5") {
		t.Errorf("a row that is too large: %v", err)
	}
}

func TestTLS(t *testing.T) {
	c := newCounter()
	s := httptest.NewTLSServer(c)
	t.Cleanup(s.Close)
	var setup *sink.SetupError
	stranger := opened(t, Config{URL: s.URL})
	for _, err := range []error{stranger.Check(t.Context()), stranger.Apply(t.Context(), "task", rows(0, 1))} {
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), "ca_file") {
			t.Errorf("a certificate that nobody vouches for: %v", err)
		}
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	known := opened(t, Config{URL: s.URL, CAFile: ca})
	if err := errors.Join(known.Check(t.Context()), known.Apply(t.Context(), "task", rows(0, 1))); err != nil {
		t.Error(err)
	}
	if err := opened(t, Config{URL: s.URL, CAFile: ca + ".gone"}).Check(t.Context()); !errors.As(err, &setup) {
		t.Errorf("no file of certificates: %v", err)
	}
}

func TestConfigMistakes(t *testing.T) {
	for _, u := range []string{"", "ftp://u:hunter2@h/", "https://", "http://u:hunter2@h:x y/"} {
		if _, err := Open(Config{URL: u, Table: numbers()}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("URL %q: %v", u, err)
		}
	}
	table := numbers()
	table.Key = []string{"n"}
	_, err := Open(Config{
		URL: "https://h/", Table: table, Method: "GET", Timeout: -1, CertFile: "x", Username: "a:b",
		Header: map[string]string{"idempotency-key": "x", "a b": "x", "X": "hunter2\r\nY: z"},
	})
	for _, want := range []string{
		`method "GET"`, "a key has no meaning", "below 0", "key belong together", "password file belong together", "no colon", `"idempotency-key" is the sink's own`, `header "a b"`, `header "X"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	for _, c := range []Config{
		{URL: "https://a:b@h/", TokenFile: "x"},
		{URL: "https://h/", TokenFile: "x", Header: map[string]string{"authorization": "x"}},
		{URL: "https://h/", TokenFile: "x", Username: "a", PasswordFile: "x"},
	} {
		c.Table = numbers()
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "exclude each other") {
			t.Errorf("two authorizations: %v", err)
		}
	}
	if _, err := Open(Config{URL: "https://h/", Table: numbers(), Class: sink.Ledger}); err == nil {
		t.Error("a ledger over HTTP")
	}
}
