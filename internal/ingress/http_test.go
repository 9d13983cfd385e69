package ingress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
)

func TestBodies(t *testing.T) {
	long := strings.Repeat("x", record.MaxIDBytes+1)
	for _, c := range []struct {
		name, body, kind, key string
		cfg                   HTTPConfig
		code                  int
		want                  string // ID=value of each record, sorted; or a part of the error
		index                 int    // of the wrong record; -1: none is named
	}{
		{"a value", `{"a":1}`, "", "k", HTTPConfig{}, 200, `k/0={"a":1}`, -1},
		{"an array", ` [{"a":1}, 2 ,"x"] `, "application/json", "k", HTTPConfig{}, 200, `k/0={"a":1} k/1=2 k/2="x"`, -1},
		{"an empty array", `[]`, "", "k", HTTPConfig{}, 200, ``, -1},
		{"lines", "{\"a\":1}\r\n\n{\"a\":2}", "application/x-ndjson", "k", HTTPConfig{}, 200, `k/0={"a":1} k/1={"a":2}`, -1},
		{"JSON by suffix", `1`, "application/vnd.x+json; charset=utf-8", "k", HTTPConfig{}, 200, `k/0=1`, -1},
		{"unicode", `["😀é\u0000","\ud83d\ude00"]`, "", "ключ", HTTPConfig{}, 200, `ключ/0="😀é\u0000" ключ/1="\ud83d\ude00"`, -1},
		{"a field is the ID", `[{"id":"b1"},{"id":7},{"id":"x","id":"y"}]`, "", "", HTTPConfig{IDField: "id"}, 200, `7={"id":7} b1={"id":"b1"} y={"id":"x","id":"y"}`, -1},
		{"the field wins", `{"id":"b1"}`, "", "k", HTTPConfig{IDField: "id"}, 200, `b1={"id":"b1"}`, -1},
		{"text", "any 😀 text\n", "text/plain", "k", HTTPConfig{Values: ValuesText}, 200, "k/0=any 😀 text\n", -1},
		{"bytes", "\xff\x00", "application/octet-stream", "k", HTTPConfig{Values: ValuesBytes}, 200, "k/0=\xff\x00", -1},

		{"no ID", `{}`, "", "", HTTPConfig{}, 400, "send header Idempotency-Key", -1},
		{"no field", `[{"id":"b1"},{"x":1}]`, "", "k", HTTPConfig{IDField: "id"}, 400, `record 1: field \"id\" is missing`, 1},
		{"a null field", `[{"id":null}]`, "", "", HTTPConfig{IDField: "id"}, 400, `is missing`, 0},
		{"an empty field", `[{"id":""}]`, "", "", HTTPConfig{IDField: "id"}, 400, `is empty`, 0},
		{"half of a pair", `[{"id":"\ud800"}]`, "", "", HTTPConfig{IDField: "id"}, 400, `not Unicode`, 0},
		{"a fraction", `[{"id":1.0}]`, "", "", HTTPConfig{IDField: "id"}, 400, `a text or a whole number`, 0},
		{"no object", `[1]`, "", "", HTTPConfig{IDField: "id"}, 400, `no JSON object`, 0},
		{"no key", `[{"id":1}]`, "", "", HTTPConfig{IDField: "id", KeyField: "k"}, 400, `it is the record's key`, 0},
		{"a long ID", fmt.Sprintf(`[{"id":%q}]`, long), "", "", HTTPConfig{IDField: "id"}, 400, `ID is too long`, 0},
		{"nothing", ``, "", "k", HTTPConfig{}, 400, "the body is empty", -1},
		{"half an array", `[{"a":1},{"a":`, "", "k", HTTPConfig{}, 400, "ends in its middle", 1},
		{"an open array", `[1,2`, "", "k", HTTPConfig{}, 400, "not closed", -1},
		{"broken in the middle", `[1,{"a" 2},3]`, "", "k", HTTPConfig{}, 400, "record 1", 1},
		{"two values", `{"a":1}{"a":2}`, "", "k", HTTPConfig{}, 400, "not JSON", 0},
		{"two arrays", `[1][2]`, "", "k", HTTPConfig{}, 400, "follows the array", -1},
		{"a broken line", "1\nx\n3", "application/x-ndjson", "k", HTTPConfig{}, 400, "record 1", 1},
		{"no UTF-8", "[\"a\",\"\xff\"]", "", "k", HTTPConfig{}, 400, "not UTF-8", 1},
		{"text that is no UTF-8", "\xff", "text/plain", "k", HTTPConfig{Values: ValuesText}, 400, "not UTF-8", 0},
		{"deep", strings.Repeat("[", 20_000), "", "k", HTTPConfig{}, 400, "", 0},
		{"too many", `[1,2,3]`, "", "k", HTTPConfig{MaxRecords: 2}, 400, "more than 2 records", -1},
		{"too many lines", "1\n2\n3\n", "application/x-ndjson", "k", HTTPConfig{MaxRecords: 2}, 400, "more than 2 records", -1},
		{"too long", `"0123456789"`, "", "k", HTTPConfig{MaxBody: 10}, 413, "more than 10 bytes", -1},
		{"another type", `x`, "text/html", "k", HTTPConfig{}, 415, "application/x-ndjson", -1},
		{"a type of other values", `x`, "text/plain", "k", HTTPConfig{}, 415, "application/json", -1},
		{"no type at all", `x`, "a b;;", "k", HTTPConfig{}, 415, "cannot be read", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			w := r.process(c.cfg, 1<<20).post(c.body, c.kind, c.key)
			if w.Code != c.code {
				t.Fatalf("%d %s, want %d", w.Code, text(w), c.code)
			}
			if c.code != 200 {
				said := text(w)
				if !strings.Contains(said, c.want) || strings.Contains(said, `"index"`) != (c.index >= 0) ||
					c.index >= 0 && !strings.Contains(said, fmt.Sprintf(`"index":%d`, c.index)) {
					t.Errorf("%s, want %q and index %d", said, c.want, c.index)
				}
				if n := r.lines(); len(n) > 0 {
					t.Errorf("%d records of a refused request", len(n))
				}
				return
			}
			var got []string
			for _, l := range r.lines() {
				got = append(got, l.id+"="+l.value)
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s, want %s", s, c.want)
			}
		})
	}
}

func TestWhatIsNoRecord(t *testing.T) {
	r := newRig(t)
	p := r.process(HTTPConfig{Path: "/bills"}, 1<<20)
	for _, c := range []struct {
		method, path string
		header       [2]string
		code         int
	}{
		{"POST", "/", [2]string{}, 404},
		{"GET", "/bills", [2]string{}, 405},
		{"GET", "/readyz", [2]string{}, 200},
		{"POST", "/bills", [2]string{"Content-Encoding", "gzip"}, 415},
		{"POST", "/bills", [2]string{DefaultIDHeader, "\xff"}, 400},
	} {
		req := httptest.NewRequest(c.method, c.path, strings.NewReader("1"))
		if c.header[0] != "" {
			req.Header.Set(c.header[0], c.header[1])
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, req)
		if w.Code != c.code {
			t.Errorf("%s %s %v: %d, want %d", c.method, c.path, c.header, w.Code, c.code)
		}
	}
	req := httptest.NewRequest("POST", "/bills", strings.NewReader("1"))
	req.Header[http.CanonicalHeaderKey(DefaultIDHeader)] = []string{"a", "b"}
	w := httptest.NewRecorder()
	if p.ServeHTTP(w, req); w.Code != 400 {
		t.Errorf("two keys: %d", w.Code)
	}
}

// A request that is sent again has the same IDs, in the same partitions: a dedup step that looks at one partition finds them.
func TestRepeatsMeet(t *testing.T) {
	for _, cfg := range []HTTPConfig{{}, {IDField: "id"}, {KeyField: "k"}} {
		r := newRig(t)
		p := r.process(cfg, 1<<20)
		var body []string
		for i := range 40 {
			body = append(body, fmt.Sprintf(`{"id":"b%d","k":%d}`, i, i%7))
		}
		for range 3 {
			if w := p.post("["+strings.Join(body, ",")+"]", "", "key"); w.Code != 200 || text(w) != `{"accepted":40}` {
				t.Fatalf("%d", w.Code)
			}
		}
		at, used := map[string]record.Partition{}, map[record.Partition]bool{}
		for _, l := range r.lines() {
			if old, ok := at[l.id]; ok && old != l.partition {
				t.Errorf("%+v: %s stands in partitions %d and %d", cfg, l.id, old, l.partition)
			}
			at[l.id], used[l.partition] = l.partition, true
			if cfg.KeyField != "" && (len(l.key) != 1 || record.PartitionForKey([]byte(l.key), 3) != l.partition) {
				t.Errorf("key %q in partition %d", l.key, l.partition)
			}
		}
		if len(at) != 40 || len(used) < 2 {
			t.Errorf("%+v: %d IDs in %d partitions", cfg, len(at), len(used))
		}
	}
}

// Without an ID each record is another one, and only if that was asked for.
func TestAnonymous(t *testing.T) {
	r := newRig(t)
	p := r.process(HTTPConfig{Anonymous: true}, 1<<20)
	for range 2 {
		if w := p.post(`[1,2]`, "", ""); w.Code != 200 {
			t.Fatal(text(w))
		}
	}
	if n := r.counts(); len(n) != 4 {
		t.Errorf("%d IDs, want 4", len(n))
	}
}

// A record that lacks the field is that of its request, if that has an ID: sent again it is the same one. And none that has the field.
func TestGeneratedIDsOfARequestWithAnID(t *testing.T) {
	r := newRig(t)
	p := r.process(HTTPConfig{Anonymous: true, IDField: "id"}, 1<<20)
	for range 2 {
		if w := p.post(`[{"id":"k/1"},{"x":1}]`, "", "k"); w.Code != 200 {
			t.Fatal(text(w))
		}
	}
	if n := r.counts(); len(n) != 2 || n["k/1"] != 2 || n["Idempotency-Key: k/1"] != 2 {
		t.Errorf("%v", n)
	}
}
