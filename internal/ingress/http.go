package ingress

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
)

// Defaults of an HTTPConfig.
const (
	DefaultIDHeader   = "Idempotency-Key"
	DefaultMaxBody    = 4 << 20
	DefaultMaxRecords = 10_000
	DefaultTimeout    = 10 * time.Second
)

// HTTPConfig says what an endpoint takes. Zero values stand for the defaults.
type HTTPConfig struct {
	// Path is where it is; default "/".
	Path   string
	Values Values // default ValuesJSON
	// IDHeader is the request's header whose value, with the record's number in the request, is the record's ID. Default DefaultIDHeader.
	IDHeader string
	// IDField is a top-level field that is the record's ID instead; empty: none.
	IDField string
	// KeyField is a top-level field that is the record's key; empty: records have no key.
	KeyField string
	// Anonymous takes records without an ID and gives each a new one. A request that is sent again is then other records.
	Anonymous bool
	// MaxBody and MaxRecords bound one request, in bytes and in records.
	MaxBody    int64
	MaxRecords int
	// Timeout is how long a request waits for Kafka.
	Timeout time.Duration
}

func (c *HTTPConfig) idHeader() string {
	if c.IDHeader == "" {
		return DefaultIDHeader
	}
	return c.IDHeader
}

// HTTP is the endpoint. It implements http.Handler: POST appends, GET of /readyz says whether it would. Requests are answered while its Queue runs.
type HTTP struct {
	cfg   HTTPConfig
	queue *Queue
	now   func() time.Time
}

// NewHTTP makes an endpoint in front of a queue.
func NewHTTP(cfg HTTPConfig, q *Queue) *HTTP {
	if cfg.Path == "" {
		cfg.Path = "/"
	}
	if cfg.Values == "" {
		cfg.Values = ValuesJSON
	}
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = DefaultMaxBody
	}
	if cfg.MaxRecords <= 0 {
		cfg.MaxRecords = DefaultMaxRecords
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	return &HTTP{cfg: cfg, queue: q, now: time.Now}
}

// answer is the body of every answer.
type answer struct {
	Accepted int    `json:"accepted"`
	Error    string `json:"error,omitempty"`
	// Index is the number of the record that is wrong, from 0.
	Index *int `json:"index,omitempty"`
}

// refusal is a request that is answered with an error.
type refusal struct {
	code   int
	reason metric.Refusal
	err    error
	wait   int  // seconds, for Retry-After; 0: coming again does not help
	close  bool // the rest of the body is not read
}

// ServeHTTP answers 200 when Kafka has all records of the request; otherwise none of them is acknowledged.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/readyz" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		h.ready(w)
		return
	case r.URL.Path != h.cfg.Path:
		h.refuse(w, &refusal{http.StatusNotFound, metric.RefusedRequest, fmt.Errorf("records go to %s", h.cfg.Path), 0, false})
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		h.refuse(w, &refusal{http.StatusMethodNotAllowed, metric.RefusedRequest, fmt.Errorf("records are sent with POST, this is %s", r.Method), 0, false})
		return
	}
	defer h.queue.log.cfg.Watch.begin()()
	n, no := h.accept(w, r)
	if no != nil {
		h.refuse(w, no)
		return
	}
	h.write(w, http.StatusOK, answer{Accepted: n})
}

func (h *HTTP) ready(w http.ResponseWriter) {
	if why := h.queue.log.Failing(); why != "" {
		w.Header().Set("Retry-After", "5")
		h.write(w, http.StatusServiceUnavailable, answer{Error: "Kafka takes nothing at the moment"})
		return
	}
	h.write(w, http.StatusOK, answer{})
}

// accept takes the records of a request.
func (h *HTTP) accept(w http.ResponseWriter, r *http.Request) (int, *refusal) {
	bad := func(code int, err error) (int, *refusal) {
		return 0, &refusal{code, metric.RefusedRequest, err, 0, false}
	}
	f, err := framingOf(r.Header.Get("Content-Type"), h.cfg.Values)
	if err != nil {
		return bad(http.StatusUnsupportedMediaType, err)
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return bad(http.StatusUnsupportedMediaType, fmt.Errorf("Content-Encoding %q is not read: send the body as it is", e))
	}
	key, err := h.cfg.requestKey(r.Header)
	if err != nil {
		return bad(http.StatusBadRequest, err)
	}
	room, no := h.reserve(r)
	if no != nil {
		return 0, no
	}
	body, no := h.read(w, r, room)
	if no != nil {
		room.Release()
		return 0, no
	}
	values, err := split(body, f, h.cfg.Values, h.cfg.MaxRecords)
	if err != nil {
		room.Release()
		return bad(http.StatusBadRequest, err)
	}
	// Before they are made: each gets an ID of its own, twice, and what a record takes besides.
	if err := room.Resize(int64(len(body)) + int64(len(values))*int64(recordCost+2*len(key))); err != nil {
		room.Release()
		return 0, refusalOf(err)
	}
	recs, err := h.records(values, key)
	if err != nil {
		room.Release()
		return bad(http.StatusBadRequest, err)
	}
	// Not the request's own context: a client that hangs up must not take back what it will send again anyway, and the
	// outcome for others that share the transaction is the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), h.cfg.Timeout)
	defer cancel()
	if err := h.queue.Append(ctx, recs, room); err != nil {
		return 0, refusalOf(err)
	}
	return len(recs), nil
}

// bodyStep is how much room a body has at first. What a request says of its length is no reason to give it more: a few that send nothing
// would keep all others out.
const bodyStep = 16 << 10

// most is the longest that the body may be.
func (h *HTTP) most(r *http.Request) int64 {
	if r.ContentLength >= 0 {
		return min(r.ContentLength, h.cfg.MaxBody)
	}
	return h.cfg.MaxBody
}

// reserve takes room for the begin of a body before it is read.
func (h *HTTP) reserve(r *http.Request) (*Reservation, *refusal) {
	if r.ContentLength > h.cfg.MaxBody {
		return nil, h.tooLong()
	}
	room, err := h.queue.Reserve(min(bodyStep, h.most(r)+1)) // one more, in which the end is met
	if err != nil {
		return nil, ended(refusalOf(err))
	}
	return room, nil
}

// ended says that the rest of the body is not read.
func ended(no *refusal) *refusal {
	no.close = true
	return no
}

func (h *HTTP) tooLong() *refusal {
	return &refusal{http.StatusRequestEntityTooLarge, metric.RefusedTooLarge, fmt.Errorf("the body has more than %d bytes: send the records in several requests", h.cfg.MaxBody), 0, true}
}

// read reads the body, as far as it may go. The room grows with it, before it does: who is slow holds what he has sent, and not what he may send yet.
func (h *HTTP) read(w http.ResponseWriter, r *http.Request, room *Reservation) ([]byte, *refusal) {
	from := http.MaxBytesReader(w, r.Body, h.cfg.MaxBody)
	body := make([]byte, 0, room.bytes)
	for {
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		var large *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF):
			return body, nil
		case errors.As(err, &large):
			return nil, h.tooLong()
		case errors.Is(err, os.ErrDeadlineExceeded): // not the request's fault: it may come in time the next time
			return nil, &refusal{http.StatusRequestTimeout, metric.RefusedRequest, errors.New("the body did not come in time; nothing was written"), 1, true}
		case err != nil:
			return nil, &refusal{http.StatusBadRequest, metric.RefusedRequest, fmt.Errorf("the body did not come as a whole: %w", err), 0, true}
		case len(body) < cap(body):
			continue
		}
		larger := min(2*int64(cap(body)), h.most(r)+1)
		if err := room.Resize(larger); err != nil {
			return nil, ended(refusalOf(err))
		}
		body = append(make([]byte, 0, larger), body...)
	}
}

// records makes the records of a request. The first one that is wrong refuses all: then none was written, and the client can mend it.
func (h *HTTP) records(values [][]byte, key string) ([]Record, error) {
	now := h.now()
	recs := make([]Record, len(values))
	find := fields{h.cfg.IDField, h.cfg.KeyField}
	for i, v := range values {
		id, k, err := find.find(v)
		if err != nil {
			return nil, &badRecord{i, err}
		}
		if h.cfg.KeyField != "" && k == nil {
			return nil, &badRecord{i, fmt.Errorf("field %q is missing: it is the record's key", h.cfg.KeyField)}
		}
		recs[i] = Record{Key: k, Value: v, Timestamp: now}
		if recs[i].ID, err = h.cfg.identity(key, i, id); errors.Is(err, errNoKey) {
			return nil, fmt.Errorf("%w: send header %s, the same one each time this request is sent", err, h.cfg.idHeader())
		} else if err != nil {
			return nil, &badRecord{i, err}
		}
	}
	return recs, nil
}

// newID is the ID of a record that nobody has named.
func newID() record.ID { return record.ID(rand.Text()) }

// refusalOf says what an error of the queue means to a client.
func refusalOf(err error) *refusal {
	var large *TooLargeError
	switch {
	case errors.As(err, &large):
		return &refusal{http.StatusRequestEntityTooLarge, metric.RefusedTooLarge, err, 0, false}
	case errors.Is(err, ErrBusy):
		return &refusal{http.StatusTooManyRequests, metric.RefusedBusy, errors.New("too much is waiting already; nothing was written"), 1, false}
	case errors.Is(err, ErrStopping):
		return &refusal{http.StatusServiceUnavailable, metric.RefusedStopping, errors.New("the process is stopping; nothing was written"), 1, true}
	case errors.Is(err, ErrUnavailable):
		return &refusal{http.StatusServiceUnavailable, metric.RefusedUnavailable, errors.New("nothing was written: Kafka takes nothing at the moment"), 5, false}
	}
	// Why stands in the log: it may name hosts that are not the client's business.
	return &refusal{http.StatusServiceUnavailable, metric.RefusedDoubt, errors.New("it is not known yet whether the records are written; send the request again, with the same IDs"), 5, false}
}

func (h *HTTP) refuse(w http.ResponseWriter, no *refusal) {
	h.queue.log.cfg.Metrics.Refused(h.queue.log.cfg.Source, no.reason)
	a := answer{Error: no.err.Error()}
	var bad *badRecord
	var large *TooLargeError
	switch {
	case errors.As(no.err, &bad):
		a.Index = &bad.index
	case errors.As(no.err, &large):
		a.Index = &large.Index
	}
	if no.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(no.wait))
	}
	if no.close {
		w.Header().Set("Connection", "close")
	}
	h.write(w, no.code, a)
}

// write sends an answer. A client that went away is no news: it sends again.
func (h *HTTP) write(w http.ResponseWriter, code int, a answer) {
	b, err := json.Marshal(a)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(`{"accepted":0,"error":"the answer could not be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n'))
}
