package ingress

import (
	"regexp"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/streamd/streamd/internal/metric"
)

// Kind is where the records of a source come from.
type Kind string

// The kinds.
const (
	KindHTTP  Kind = "http"
	KindFiles Kind = "files"
	KindTable Kind = "table"
	KindTCP   Kind = "tcp"
)

// Status is what a source says of itself. Its size does not grow with files, rows, requests or connections, and it holds nothing of a record.
type Status struct {
	Name  string `json:"name"`
	Kind  Kind   `json:"kind"`
	Topic string `json:"topic"`
	// Where is the address, the patterns, or the table and its server. It holds no secret.
	Where string `json:"where"`
	// Records stand in the topic, Bytes are those of their values, Refused counts requests and lines by reason: the metrics' own numbers, since the
	// start of the process.
	Records   uint64            `json:"records"`
	Bytes     uint64            `json:"bytes"`
	Refused   map[string]uint64 `json:"refused"`
	LongLines uint64            `json:"long_lines,omitempty"` // that were passed over
	// Waits says for what; empty: it goes on by itself.
	Waits string `json:"waits,omitempty"`
	// LastError is the last failure of Kafka, of a file or of the database, also one that is over.
	LastError   string        `json:"last_error,omitempty"`
	LastErrorAt time.Time     `json:"last_error_at,omitzero"`
	Files       *FilesStatus  `json:"files,omitempty"`
	Table       *TableStatus  `json:"table,omitempty"`
	HTTP        *SenderStatus `json:"http,omitempty"` // requests
	TCP         *SenderStatus `json:"tcp,omitempty"`  // connections
}

// FilesStatus is how far files are read.
type FilesStatus struct {
	Known  int   `json:"known"`
	Behind int64 `json:"behind_bytes"`
}

// TableStatus is how far a table is read.
type TableStatus struct {
	Reading bool      `json:"reading"` // by this process
	Number  int64     `json:"number"`  // of the last row that was read, as far as this process knows
	ReadAt  time.Time `json:"read_at,omitzero"`
	// Behind is in numbers, also of rows that were rolled back.
	Behind int64 `json:"behind_numbers"`
	// Undecided says which transactions rows wait for, and UndecidedSeconds how long they have.
	Undecided        string  `json:"undecided,omitempty"`
	UndecidedSeconds float64 `json:"undecided_seconds"`
}

// SenderStatus is who sends.
type SenderStatus struct {
	Open        int       `json:"open"`
	OldestSince time.Time `json:"oldest_since,omitzero"`
	QueuedBytes int64     `json:"queued_bytes"`
}

// Watch gathers the status of a source. Its counters are those of the metrics: they are read there, not counted again. Safe for concurrent use.
type Watch struct {
	source  metric.Source
	kind    Kind
	topic   string
	metrics *metric.Ingress

	mu     sync.Mutex // guards the fields below
	where  string
	kafka  string // why it takes nothing
	input  string // what the source waits for on its own side
	last   string
	lastAt time.Time
	open   map[uint64]time.Time // requests or connections, by number: when they began
	opened uint64
	number int64
	readAt time.Time
	writes string // who is waited for in the table
}

// NewWatch makes the watch of a source that waits until it is opened.
func NewWatch(source metric.Source, kind Kind, topic, where string, metrics *metric.Ingress) *Watch {
	return &Watch{source: source, kind: kind, topic: topic, where: clean(where), metrics: metrics, input: "to be opened", open: map[uint64]time.Time{}}
}

// Opened says that the source runs, and where it is, if that is known better now.
func (w *Watch) Opened(where string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.input = ""
	if where != "" {
		w.where = clean(where)
	}
}

// waits says what the source waits for on its own side; empty: for nothing.
func (w *Watch) waits(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.input = clean(what)
}

// failed notes a failure on the source's own side, which it waits for to end.
func (w *Watch) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.input = clean(err.Error())
	w.last, w.lastAt = w.input, time.Now()
}

// kafkaFailed notes why Kafka took nothing; nil: it does.
func (w *Watch) kafkaFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.kafka = ""
		return
	}
	w.kafka = clean(err.Error())
	w.last, w.lastAt = w.kafka, time.Now()
}

// begin notes a request or a connection; the function that it returns ends it.
func (w *Watch) begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
	n := w.opened
	w.open[n] = time.Now()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, n)
	}
}

// row notes how far a table was read; a zero time: by an earlier process.
func (w *Watch) row(number int64, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number, w.readAt = number, at
}

// undecided notes who writes the table; empty: nobody who is waited for.
func (w *Watch) undecided(by string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = clean(by)
}

// Status is a snapshot. It waits for nobody.
func (w *Watch) Status() Status {
	m := w.metrics.Read(w.source)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Status{
		Name: w.source.Name, Kind: w.kind, Topic: w.topic, Where: w.where, Records: m.Records, Bytes: m.Bytes, Refused: m.Refused, LongLines: m.LongLines,
		Waits: w.input, LastError: w.last, LastErrorAt: w.lastAt,
	}
	if w.kafka != "" {
		s.Waits = "Kafka: " + w.kafka
	}
	switch w.kind {
	case KindFiles:
		s.Files = &FilesStatus{m.Files, m.FileLag}
	case KindTable:
		s.Table = &TableStatus{Reading: m.TableReading, Number: w.number, ReadAt: w.readAt, Behind: m.TableLag, UndecidedSeconds: m.TableUndecided}
		if m.TableUndecided > 0 {
			s.Table.Undecided = w.writes
		}
	case KindHTTP:
		s.HTTP = w.senders(m.Queued)
	case KindTCP:
		s.TCP = w.senders(m.Queued)
	}
	return s
}

func (w *Watch) senders(queued int64) *SenderStatus {
	s := &SenderStatus{Open: len(w.open), QueuedBytes: queued}
	for _, at := range w.open {
		if s.OldestSince.IsZero() || at.Before(s.OldestSince) {
			s.OldestSince = at
		}
	}
	return s
}

// maxText bounds each text of a status, in bytes.
const maxText = 300

// Secrets that an address or a driver's error may hold: user information of URLs and of MySQL's addresses, and values of keys.
var (
	userinfo = regexp.MustCompile(`(://)[^/\s]*@|[^\s/:'"]+:\S*@(tcp\(|unix\()`)
	secret   = regexp.MustCompile(`(?i)((?:password|passwd|pwd|token|secret|api_?key)\s*=\s*)(?:'[^']*'|[^\s&;,]+)|(bearer\s+)\S+`)
)

// clean masks secrets of a text and bounds it.
func clean(s string) string {
	s = userinfo.ReplaceAllString(s, "${1}***@${2}")
	s = secret.ReplaceAllString(s, "${1}${2}***")
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
