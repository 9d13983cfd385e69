//go:build sinks

package sinks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/streamd/streamd/test/sinks/dbenv"
)

// receiver is an HTTP server that takes each key once, as the class idempotent asks.
type receiver struct {
	mu   sync.Mutex // guards the rest
	seen map[string]bool
	rows map[string][]map[string]any
	next [billPartitions]int64 // of the ledger
	// repeats are the rows that came again.
	repeats int
}

func httpTarget(t *testing.T) (*dbenv.Server, string, tables) {
	r := &receiver{seen: map[string]bool{}, rows: map[string][]map[string]any{}}
	s := httptest.NewServer(r)
	t.Cleanup(func() {
		s.Close()
		t.Logf("%d rows came again", r.repeats)
	})
	return nil, s.URL, &httpTables{r}
}

// ServeHTTP takes a request as a whole.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var all []struct {
		Key string         `json:"idempotency_key"`
		Row map[string]any `json:"row"`
	}
	if err := json.NewDecoder(req.Body).Decode(&all); err != nil {
		return // who sent it was killed
	}
	table := strings.TrimPrefix(req.URL.Path, "/")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range all {
		if r.seen[x.Key] {
			r.repeats++
			continue
		}
		parts := strings.Split(x.Key, "/") // application, sink, ID of the topic, partition, offset
		part, offset := -1, -1
		if len(parts) == 5 {
			part, _ = strconv.Atoi(parts[3])
			offset, _ = strconv.Atoi(parts[4])
		}
		if part < 0 || part >= billPartitions || offset < 0 {
			http.Error(w, fmt.Sprintf("key %q", x.Key), http.StatusUnauthorized) // which stops the pipeline
			return
		}
		r.seen[x.Key] = true
		r.rows[table] = append(r.rows[table], x.Row)
		if table == "ledger" {
			r.next[part] = max(r.next[part], int64(offset)+1)
		}
	}
}

// httpTables are what a receiver has taken.
type httpTables struct{ r *receiver }

func (h *httpTables) create(context.Context) error { return nil }

func (h *httpTables) rows(_ context.Context, table string) (int, error) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return len(h.r.rows[table]), nil
}

func (h *httpTables) bills(_ context.Context, table string, fn func(id, amount string)) error {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	for _, row := range h.r.rows[table] {
		fn(fmt.Sprint(row["bill_id"]), fmt.Sprint(row["amount"]))
	}
	return nil
}

// totals goes by the last row of each account: one account is in one partition.
func (h *httpTables) totals(_ context.Context, fn func(account, total string, bills int64)) error {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	last := map[string]map[string]any{}
	for _, row := range h.r.rows["account_totals"] {
		last[fmt.Sprint(row["account"])] = row
	}
	for account, row := range last {
		bills, _ := row["bills"].(float64)
		fn(account, fmt.Sprint(row["total"]), int64(bills))
	}
	return nil
}

func (h *httpTables) look(context.Context) (view, error) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return view{rows: len(h.r.rows["ledger"]), next: h.r.next}, nil
}
