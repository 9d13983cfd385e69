package ingress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
)

// watched is a Log of a source of a kind, with its watch.
func (r *rig) watched(kind Kind) (*Log, *Watch) {
	r.t.Helper()
	source := metric.Source{Name: "s", Files: kind == KindFiles, Table: kind == KindTable}
	m, err := metric.NewIngress(nil, "p", []metric.Source{source})
	if err != nil {
		r.t.Fatal(err)
	}
	r.metrics = m
	w := NewWatch(source, kind, logTopic, "somewhere", m)
	l := r.log()
	l.cfg.Watch = w
	return l, w
}

func TestWatchOfRequests(t *testing.T) {
	r := newRig(t)
	l, w := r.watched(KindHTTP)
	if s := w.Status(); s.Waits != "to be opened" {
		t.Errorf("%+v", s)
	}
	w.Opened("http://127.0.0.1:1/")
	q := NewQueue(l, 1<<20, patience)
	h := NewHTTP(HTTPConfig{Anonymous: true, Timeout: patience}, q)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	body, write := io.Pipe()
	answered := make(chan int, 1)
	began := time.Now()
	go func() {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/", body))
		answered <- rec.Code
	}()
	if _, err := write.Write([]byte(`[1,2,`)); err != nil { // which returns when it was read
		t.Fatal(err)
	}
	if s := w.Status(); s.HTTP == nil || s.HTTP.Open != 1 || s.HTTP.OldestSince.Before(began) || s.HTTP.QueuedBytes == 0 || s.Files != nil || s.Table != nil || s.TCP != nil {
		t.Errorf("%+v", s)
	}
	if _, err := write.Write([]byte(`3]`)); err != nil {
		t.Fatal(err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-answered; code != http.StatusOK {
		t.Fatal(code)
	}
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{")))
	s := w.Status()
	if s.Records != 3 || s.Bytes != 3 || len(s.Refused) != 1 || s.Refused["bad_request"] != 1 || s.HTTP.Open != 0 || !s.HTTP.OldestSince.IsZero() || s.HTTP.QueuedBytes != 0 || s.Waits != "" {
		t.Errorf("%+v", s)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWatchOfKafka(t *testing.T) {
	r := newRig(t)
	l, w := r.watched(KindHTTP)
	w.Opened("")
	l.note(errors.New("no leader"))
	if s := w.Status(); s.Waits != "Kafka: no leader" || s.LastError != "no leader" || time.Since(s.LastErrorAt) > patience {
		t.Errorf("%+v", s)
	}
	l.committed(nil, 0)
	if s := w.Status(); s.Waits != "" || s.LastError != "no leader" {
		t.Errorf("%+v", s)
	}
}

func TestWatchOfATable(t *testing.T) {
	r := newTableRig(t)
	l, w := r.watched(KindTable)
	r.newLog = func() *Log {
		next := r.log()
		next.cfg.Watch = l.cfg.Watch
		return next
	}
	r.table.rows, r.table.decided, r.table.given = []int64{3, 7}, 7, 9
	var seen []Status
	if err := r.run(3, func(time.Duration) {
		seen = append(seen, w.Status())
		if len(seen) == 1 {
			r.table.away = errors.New("dial postgres://u:geheim@db/x: refused")
		}
	}); err != nil {
		t.Fatal(err)
	}
	if s := seen[0]; !s.Table.Reading || s.Table.Number != 7 || s.Table.ReadAt.IsZero() || s.Table.Behind != 2 || s.Records != 2 || s.Waits != "" {
		t.Errorf("%+v %+v", s, s.Table)
	}
	if s := seen[1]; s.Table.Reading || s.Waits != "dial postgres://***@db/x: refused" || s.LastError != s.Waits {
		t.Errorf("%+v %+v", s, s.Table)
	}
	w.undecided("transactions 3/17")
	r.metrics.Table("s", true, 2, 2*time.Second)
	if s := w.Status().Table; s.Undecided != "transactions 3/17" || s.UndecidedSeconds != 2 {
		t.Errorf("%+v", s)
	}
}

func TestWatchOfFiles(t *testing.T) {
	r := newRig(t)
	l, w := r.watched(KindFiles)
	w.Opened("")
	if err := r.b.Client("setup").CreateTopic(t.Context(), broker.Topic{Name: "positions-w", Partitions: 1, Cleanup: broker.Compact}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("one\ntwo\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	x := NewFiles(FilesConfig{Paths: []string{filepath.Join(dir, "*")}, Owner: "o", Positions: "positions-w"}, l)
	defer x.close()
	if err := x.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := w.Status(); s.Files == nil || *s.Files != (FilesStatus{Known: 2}) || s.Records != 4 || s.Waits != "" {
		t.Errorf("%+v %+v", s, s.Files)
	}
	if err := x.endure("a", errors.New("no right"), time.Now()); err != nil {
		t.Fatal(err)
	}
	if s := w.Status(); s.Waits != "no right" || s.LastError != "no right" {
		t.Errorf("%+v", s)
	}
	x.failed = map[string]bool{}
	x.healed()
	if s := w.Status(); s.Waits != "" || s.LastError != "no right" {
		t.Errorf("%+v", s)
	}
}

func TestWatchOfConnections(t *testing.T) {
	r := newRig(t)
	log, w := r.watched(KindTCP)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s := NewLines(LinesConfig{Acknowledge: true}, NewQueue(log, 1<<20, patience), l, slog.New(slog.DiscardHandler))
	go func() { ended <- s.Run(ctx) }()
	a, b := dial(t, l.Addr().String()), dial(t, l.Addr().String())
	for _, c := range []*sender{a, b} {
		c.send("1\n")
		c.hear("ok 1\n")
	}
	if s := w.Status(); s.TCP == nil || s.TCP.Open != 2 || s.Records != 2 || s.TCP.OldestSince.IsZero() {
		t.Errorf("%+v %+v", s, s.TCP)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s := w.Status(); s.TCP.Open != 0 {
		t.Errorf("%+v", s.TCP)
	}
}

// Secrets are not shown, and no text grows without bound.
func TestWatchCleansTexts(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:8080/bills":                        "http://127.0.0.1:8080/bills",
		"https://u:geheim@host/x":                            "https://***@host/x",
		"dial u:geh:e/im@tcp(db:3306)/x":                     "dial ***@tcp(db:3306)/x",
		"host=db password=geheim user=u":                     "host=db password=*** user=u",
		"host=db password='ge heim' user=u":                  "host=db password=*** user=u",
		"GET http://h/x?token=geheim&a=1":                    "GET http://h/x?token=***&a=1",
		"Authorization: Bearer geheim refused":               "Authorization: Bearer *** refused",
		strings.Repeat("é", maxText):                         strings.Repeat("é", maxText/2) + "…",
		"/var/log/*.log, /srv/a.log":                         "/var/log/*.log, /srv/a.log",
		"orders at postgres://db:5432/shop":                  "orders at postgres://db:5432/shop",
		"127.0.0.1:5000":                                     "127.0.0.1:5000",
		"transactions that write the table: 3/17 (pg_locks)": "transactions that write the table: 3/17 (pg_locks)",
	} {
		if got := clean(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
