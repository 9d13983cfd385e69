package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/exampletest"
)

// bank does a charge once for each key, and is down for the first call.
type bank struct {
	mu      sync.Mutex // guards the others
	down    bool
	charged map[string]string // by idempotency key
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	what, _ := io.ReadAll(r.Body)
	if b.down {
		b.down = false
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	if string(what) == "a yacht" {
		http.Error(w, "no", http.StatusPaymentRequired)
		return
	}
	b.charged[r.Header.Get("Idempotency-Key")] += string(what)
	fmt.Fprintf(w, "paid for %s", what)
}

func TestEffects(t *testing.T) {
	b := &bank{down: true, charged: map[string]string{}}
	server := httptest.NewServer(b)
	defer server.Close()
	topo, err := build(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	order := func(id, who, what string) *kgo.Record {
		return &kgo.Record{Topic: "orders", Key: []byte(who), Value: []byte(what), Headers: []kgo.RecordHeader{{Key: "record-id", Value: []byte(id)}}}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{order("1", "ann", "a book"), order("2", "bob", "a yacht"), order("1", "ann", "a book"), order("3", "cid", "a pen")}, 3, "receipts")
	var got []string
	for _, r := range out["receipts"] {
		got = append(got, fmt.Sprintf("%s: %s", r.Key, r.Value))
	}
	slices.Sort(got)
	if s := fmt.Sprint(got); s != "[ann: paid for a book bob: refused cid: paid for a pen]" {
		t.Error(s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.charged) != 2 {
		t.Errorf("charged %v", b.charged)
	}
}
