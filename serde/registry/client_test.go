package registry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/serde/registry"
	"github.com/streamd/streamd/serde/registry/registrytest"
)

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newClient(t *testing.T, c registry.Config) *registry.Client {
	t.Helper()
	out, err := registry.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func reads(t *testing.T, c *registry.Codec, value []byte, want string) {
	t.Helper()
	if got, err := c.AppendJSON(nil, value); err != nil || string(got) != want {
		t.Errorf("%x is read as %s, %v; want %s", value, got, err, want)
	}
}

func fails(t *testing.T, err error, away bool, words ...string) {
	t.Helper()
	if err == nil || errors.Is(err, serde.ErrUnavailable) != away {
		t.Fatalf("error %v, want one that is unavailable: %t", err, away)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// blamed reads a value as a task does, again and again, until the value itself is to blame, and says how long that took.
func blamed(t *testing.T, c *registry.Codec, now *clock, value []byte) (time.Duration, error) {
	t.Helper()
	began := now.at
	for range 1000 {
		_, err := c.AppendJSON(nil, value)
		if err == nil || !errors.Is(err, serde.ErrUnavailable) {
			return now.at.Sub(began), err
		}
		now.at = now.at.Add(10 * time.Millisecond)
	}
	t.Fatalf("%x is nobody's fault after %v", value, now.at.Sub(began))
	return 0, nil
}

// TestRegistryAway: a registry that is away is no fault of a value. It is not asked all the time, and is used again when it is back; what
// was read before needs no registry.
func TestRegistryAway(t *testing.T) {
	r, now := registrytest.New(t), &clock{at: time.Unix(1, 0)}
	r.Add("a", "AVRO", `"int"`)
	r.Add("b", "AVRO", `"string"`)
	c := registry.NewCodec(newClient(t, registry.Config{URLs: []string{r.URL}, Now: now.now}), registry.Output{Format: registry.Avro, Subject: "a"})
	reads(t, c, wire(1, "\x02"), "1")
	r.Down(true)
	before := len(r.Requests())
	for range 5 {
		_, err := c.AppendJSON(nil, wire(2, "\x02a"))
		fails(t, err, true, "503", r.URL)
		_, err = c.AppendValue(nil, []byte("1"))
		fails(t, err, true, "503")
		reads(t, c, wire(1, "\x02"), "1")
	}
	if n := len(r.Requests()) - before; n != 1 {
		t.Errorf("%d requests during one pause", n)
	}
	for range 20 { // the pause grows to 10 s and no more
		now.at = now.at.Add(10 * time.Second)
		_, err := c.AppendJSON(nil, wire(2, "\x02a"))
		fails(t, err, true)
	}
	if n := len(r.Requests()) - before; n != 21 {
		t.Errorf("%d requests, want one after each pause", n)
	}
	r.Down(false)
	now.at = now.at.Add(10 * time.Second)
	reads(t, c, wire(2, "\x02a"), `"a"`)
	if got, err := c.AppendValue(nil, []byte("1")); err != nil || string(got) != string(wire(1, "\x02")) {
		t.Errorf("written as %x, %v", got, err)
	}
}

// TestWhoIsToBlame tells what is wrong with a value from what is wrong with the registry.
func TestWhoIsToBlame(t *testing.T) {
	r, now := registrytest.New(t), &clock{at: time.Unix(1, 0)}
	r.Add("a", "AVRO", `"int"`)
	r.Add("json", "JSON", `{}`)
	r.Add("broken", "AVRO", `{"type":"none"}`)
	r.Add("missing", "AVRO", `"int"`, registrytest.Reference{Name: "x", Subject: "nobody", Version: 1})
	r.Add("large", "AVRO", `{"type":"enum","name":"e","symbols":["`+strings.Repeat("A", 2000)+`"]}`)
	r.Add("p", "PROTOBUF", `syntax = "proto3"; message M {}`)
	for _, c := range []struct {
		value []byte
		words string
	}{
		{nil, "zero and four bytes"},
		{[]byte(`{"a":1}`), "zero and four bytes"},
		{[]byte("\x00\x00\x00\x00"), "zero and four bytes"},
		{wire(99, "\x02"), "no schema 99"},
		{wire(2, "\x02"), `type "JSON"`},
		{wire(3, "\x02"), "no Avro schema"},
		{wire(4, "\x02"), `version 1 of subject "nobody"`},
		{wire(5, "\x02"), "more than 1000 bytes"},
		{wire(6, "\x02"), "is protobuf, not avro"},
	} {
		codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{r.URL}, MaxSchemaBytes: 1000, Now: now.now}), registry.Output{Format: registry.Avro})
		for range 2 { // from the registry, and from memory
			_, err := blamed(t, codec, now, c.value)
			fails(t, err, false, c.words)
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"404 Not Found": http.NotFound, // of a proxy, or under a wrong path
		"credentials":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"not the JSON":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"500": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			fmt.Fprint(w, `{"error_code":50001}`)
		},
		"is no schema": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"starting"}`) },
		"302":          func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, "/elsewhere", http.StatusFound) },
		"more than":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100_000)) },
	} {
		r.Instead(h)
		codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{r.URL}, MaxSchemaBytes: 1000, Now: now.now}), registry.Output{Format: registry.Avro})
		_, err := codec.AppendJSON(nil, wire(1, "\x02"))
		fails(t, err, true, name)
	}
}

// TestSchemaComesLate: a member of the registry that lags does not know a schema yet under which a value was written. It is asked a few times, and
// only then the value is to blame; that, too, is not for ever.
func TestSchemaComesLate(t *testing.T) {
	r, now := registrytest.New(t), &clock{at: time.Unix(1, 0)}
	codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{r.URL}, Now: now.now}), registry.Output{Format: registry.Avro})
	_, err := codec.AppendJSON(nil, wire(1, "\x02"))
	fails(t, err, true, "no schema 1")
	r.Add("late", "AVRO", `"int"`)
	now.at = now.at.Add(250 * time.Millisecond)
	reads(t, codec, wire(1, "\x02"), "1")

	before := len(r.Requests())
	took, err := blamed(t, codec, now, wire(2, "\x02"))
	fails(t, err, false, "no schema 2")
	if n := len(r.Requests()) - before; n != 4 || took < time.Second || took > 2*time.Second {
		t.Errorf("to blame after %d requests and %v, want 4 and 1.75 s", n, took)
	}
	r.Add("later", "AVRO", `"int"`)
	_, err = codec.AppendJSON(nil, wire(2, "\x02"))
	fails(t, err, false)
	now.at = now.at.Add(11 * time.Second)
	reads(t, codec, wire(2, "\x02"), "1")

	// Of one that was to blame once, the next value waits for one answer only.
	_, err = blamed(t, codec, now, wire(3, "\x02"))
	fails(t, err, false, "no schema 3")
	now.at = now.at.Add(11 * time.Second)
	_, err = codec.AppendJSON(nil, wire(3, "\x02"))
	fails(t, err, false, "no schema 3")
}

// TestReferenceComesLate: that what a schema refers to is missing is not for ever, as little as that a schema is.
func TestReferenceComesLate(t *testing.T) {
	r, now := registrytest.New(t), &clock{at: time.Unix(1, 0)}
	r.Add("a", "AVRO", `{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}`, registrytest.Reference{Name: "B", Subject: "b", Version: 1})
	codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{r.URL}, Now: now.now}), registry.Output{Format: registry.Avro})
	value := wire(1, "\x02")
	took, err := blamed(t, codec, now, value)
	fails(t, err, false, `version 1 of subject "b"`)
	if took < time.Second || took > 2*time.Second {
		t.Errorf("to blame after %v, want 1.75 s", took)
	}
	r.Add("b", "AVRO", `{"type":"fixed","name":"B","size":1}`)
	now.at = now.at.Add(11 * time.Second)
	reads(t, codec, value, `{"b":"Ag=="}`)
}

// TestSlowRegistry: all that a schema refers to has to come within one bound, so that a task is not held up for each of them. What came is not
// asked for again, so that a slow registry is not too slow for ever.
func TestSlowRegistry(t *testing.T) {
	const references = 12
	r := registrytest.New(t)
	var refs []registrytest.Reference
	text := `{"type":"record","name":"A","fields":[`
	for i := range references {
		name := fmt.Sprintf("R%d", i)
		r.Add(name, "AVRO", fmt.Sprintf(`{"type":"fixed","name":%q,"size":1}`, name))
		refs = append(refs, registrytest.Reference{Name: name, Subject: name, Version: 1})
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(`{"name":%q,"type":%q}`, name, name)
	}
	id := r.Add("a", "AVRO", text+`]}`, refs...)
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		time.Sleep(300 * time.Millisecond)
		r.ServeHTTP(w, q)
	}))
	t.Cleanup(slow.Close)
	const timeout = 500 * time.Millisecond // of one request: 2 s for all 13, which take 3.9 s
	codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{slow.URL}, Timeout: timeout}), registry.Output{Format: registry.Avro})
	value := wire(uint32(id), strings.Repeat("a", references))
	began := time.Now()
	_, err := codec.AppendJSON(nil, value)
	fails(t, err, true, "too slow")
	if took := time.Since(began); took > 6*timeout {
		t.Errorf("it took %v, want %v at most", took, 4*timeout)
	}
	before := len(r.Requests())
	_, err = codec.AppendJSON(nil, value)
	fails(t, err, true, "too slow")
	if n := len(r.Requests()) - before; n != 0 {
		t.Errorf("%d requests at once after it was too slow", n)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err = codec.AppendJSON(nil, value); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestFewSchemasAreKept: with one more than the bound all are forgotten, and all are read again.
func TestFewSchemasAreKept(t *testing.T) {
	r := registrytest.New(t)
	for i := range 5 {
		r.Add(fmt.Sprint(i), "AVRO", `"int"`)
	}
	codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{"http://127.0.0.1:1", r.URL}, MaxSchemas: 2}), registry.Output{Format: registry.Avro})
	for range 3 {
		for i := range uint32(5) {
			reads(t, codec, wire(i+1, "\x02"), "1")
			reads(t, codec, wire(i+1, "\x02"), "1")
		}
	}
	if n := len(r.Requests()); n != 15 {
		t.Errorf("%d requests, want 15", n)
	}
}

// TestCredentials: as they are given; a token's file is read again.
func TestCredentials(t *testing.T) {
	r := registrytest.New(t)
	seen := make(chan string, 1)
	r.Instead(func(w http.ResponseWriter, q *http.Request) {
		seen <- q.Header.Get("Authorization")
		fmt.Fprint(w, `{"schema":"\"int\""}`)
	})
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	var got []string
	for _, c := range []registry.Config{{}, {Username: "ann", Password: "p"}, {Token: "t"}} {
		c.URLs = []string{r.URL + "/"}
		reads(t, registry.NewCodec(newClient(t, c), registry.Output{Format: registry.Avro}), wire(1, "\x02"), "1")
		got = append(got, <-seen)
	}
	codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{r.URL}, TokenFile: file}), registry.Output{Format: registry.Avro})
	for i, token := range []string{"one", "two"} {
		write(token)
		reads(t, codec, wire(uint32(i), "\x02"), "1")
		got = append(got, <-seen)
	}
	for _, text := range []string{"\n", strings.Repeat("x", 64<<10+1)} {
		write(text)
		codec := registry.NewCodec(newClient(t, registry.Config{URLs: []string{r.URL}, TokenFile: file}), registry.Output{Format: registry.Avro})
		_, err := codec.AppendJSON(nil, wire(9, "\x02"))
		fails(t, err, true, "token file", "want a token")
		if errors.Is(err, registry.ErrDenied) || strings.Contains(err.Error(), "xx") {
			t.Errorf("a token file of %d bytes: %.200v", len(text), err)
		}
	}
	if want := []string{"", "Basic YW5uOnA=", "Bearer t", "Bearer one", "Bearer two"}; !slices.Equal(got, want) {
		t.Errorf("credentials %q, want %q", got, want)
	}
	for _, c := range []registry.Config{
		{}, {URLs: []string{"registry:8081"}}, {URLs: []string{"http://ann:p@registry"}}, {URLs: []string{"http://r"}, Username: "a", Token: "b"},
	} {
		if _, err := registry.New(c); err == nil || strings.Contains(err.Error(), "ann") {
			t.Errorf("%v: %v", c.URLs, err)
		}
	}
}

// TestTLSAndAProxy: a proxy of the environment does not take the place of what says whom to trust.
func TestTLSAndAProxy(t *testing.T) {
	proxy := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(proxy.Close)
	t.Setenv("HTTPS_PROXY", proxy.URL)
	codec := registry.NewCodec(newClient(t, registry.Config{
		URLs: []string{"https://registry.invalid"},
		TLS:  func(host string) (*tls.Config, error) { return nil, fmt.Errorf("asked whom to trust as %s", host) },
	}), registry.Output{Format: registry.Avro})
	_, err := codec.AppendJSON(nil, wire(1, "\x02"))
	fails(t, err, true, "asked whom to trust as registry.invalid")
}

// TestReferences: a schema of several, each of which is in a subject of its own.
func TestReferences(t *testing.T) {
	r := registrytest.New(t)
	r.Add("money", "AVRO", `{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}`)
	r.Add("account", "AVRO", `{"type":"record","name":"x.Account","fields":[{"name":"id","type":"string"}]}`)
	r.Add("owner", "AVRO", `{"type":"record","name":"x.Owner","fields":[{"name":"account","type":"Account"}]}`, registrytest.Reference{Name: "x.Account", Subject: "account", Version: 1})
	r.Add("bill", "AVRO", `{"type":"record","name":"y.Bill","fields":[{"name":"from","type":"x.Owner"},{"name":"to","type":"x.Account"}]}`,
		registrytest.Reference{Name: "x.Owner", Subject: "owner", Version: 1}, registrytest.Reference{Name: "x.Account", Subject: "account", Version: 1})
	codec := codecOf(t, r, registry.Output{Format: registry.Avro, Subject: "bill"})
	reads(t, codec, wire(4, "\x02a\x02b"), `{"from":{"account":{"id":"a"}},"to":{"id":"b"}}`)
	if got, err := codec.AppendValue(nil, []byte(`{"to":{"id":"b"},"from":{"account":{"id":"a"}}}`)); err != nil || string(got) != string(wire(4, "\x02a\x02b")) {
		t.Errorf("written as %x, %v", got, err)
	}
}

// TestResolve: which schema values are written by, and what is said at the start if there is none.
func TestResolve(t *testing.T) {
	const v1 = `{"type":"record","name":"b","fields":[{"name":"id","type":"string"}]}`
	const v2 = `{"type":"record","name":"b","fields":[{"name":"id","type":"string"},{"name":"n","type":"int","default":0}]}`
	for _, c := range []struct {
		out    registry.Output
		refuse string
		id     uint32
		words  string
	}{
		{out: registry.Output{Subject: "b"}, id: 2},
		{out: registry.Output{Subject: "b", Schema: v1}, id: 2},
		{out: registry.Output{Subject: "c"}, words: "no such subject"},
		{out: registry.Output{Subject: "b", Schema: v2}, words: "not registered"},
		{out: registry.Output{Subject: "b", Schema: v2}, refuse: "READER_FIELD_MISSING", words: "not compatible"},
		{out: registry.Output{Subject: "b", Schema: v2, Register: true}, refuse: "READER_FIELD_MISSING", words: "READER_FIELD_MISSING"},
		{out: registry.Output{Subject: "b", Schema: v2, Register: true}, id: 3},
		{out: registry.Output{Subject: "c", Schema: v2, Register: true}, id: 3},
		{out: registry.Output{Subject: "c", Schema: v2}, words: "not registered"},
		{out: registry.Output{Subject: "b", Schema: v2, Message: "M"}, words: "this one is Avro"},
		{out: registry.Output{Subject: "b", Schema: `{}`}, words: "no Avro schema"},
		{out: registry.Output{Subject: "p"}, words: "format protobuf, not avro"},
	} {
		r := registrytest.New(t)
		r.Add("p", "PROTOBUF", `syntax = "proto3"; message M {}`)
		r.Add("b", "AVRO", v1)
		r.Incompatible(c.refuse)
		c.out.Format = registry.Avro
		codec := codecOf(t, r, c.out)
		err := codec.Resolve(context.Background())
		if c.words != "" {
			fails(t, err, false, c.words)
			// Later on it is no fault of the value.
			_, err = codec.AppendValue(nil, []byte(`{"id":"a"}`))
			fails(t, err, true, c.words)
			continue
		}
		if err != nil {
			t.Errorf("%v: %v", c.out, err)
			continue
		}
		r.Down(true) // nobody is asked any more
		got, err := codec.AppendValue(nil, []byte(`{"id":"a"}`))
		if want := wire(c.id, "\x02a"); err != nil || !strings.HasPrefix(string(got), string(want)) {
			t.Errorf("%v: written as %x, %v; want %x", c.out, got, err, want)
		}
	}
	r := registrytest.New(t)
	r.Down(true)
	fails(t, codecOf(t, r, registry.Output{Format: registry.Avro, Subject: "b"}).Resolve(context.Background()), true, "503")
}

// TestValues: a Go type, by its JSON.
func TestValues(t *testing.T) {
	type bill struct {
		ID     string `json:"id"`
		Amount string `json:"amount"`
	}
	r := registrytest.New(t)
	r.Add("b", "AVRO", `{"type":"record","name":"b","fields":[{"name":"id","type":"string"},{"name":"amount","type":"string"}]}`)
	s := registry.Values[*bill](codecOf(t, r, registry.Output{Format: registry.Avro, Subject: "b"}))
	b, err := s.Append(nil, &bill{"a", "10.10"})
	if err != nil || string(b) != string(wire(1, "\x02a\x0a10.10")) {
		t.Fatalf("written as %q, %v", b, err)
	}
	if v, err := s.Decode(b); err != nil || *v != (bill{"a", "10.10"}) {
		t.Errorf("read as %v, %v", v, err)
	}
	if v, err := s.Decode(nil); err != nil || v != nil {
		t.Errorf("a tombstone is read as %v, %v", v, err)
	}
	if b, err := s.Append(nil, nil); err != nil || b != nil {
		t.Errorf("a tombstone is written as %q, %v", b, err)
	}
	if _, err := registry.Values[bill](codecOf(t, r, registry.Output{Format: registry.Avro})).Decode(nil); !errors.Is(err, serde.ErrNull) {
		t.Errorf("a tombstone of a type without null: %v", err)
	}
}

// TestAddressesThatDoNotAnswer: addresses that take the whole time of a look-up do not keep those behind them from being asked, now or later.
func TestAddressesThatDoNotAnswer(t *testing.T) {
	r := registrytest.New(t)
	r.Add("R", "AVRO", `{"type":"fixed","name":"R","size":1}`)
	r.Add("S", "AVRO", `{"type":"fixed","name":"S","size":1}`)
	id := r.Add("a", "AVRO", `{"type":"record","name":"A","fields":[{"name":"r","type":"R"},{"name":"s","type":"S"}]}`,
		registrytest.Reference{Name: "R", Subject: "R", Version: 1}, registrytest.Reference{Name: "S", Subject: "S", Version: 1})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }))
	t.Cleanup(silent.Close)
	for n := 2; n <= 5; n++ {
		urls := append(slices.Repeat([]string{silent.URL}, n), r.URL)
		codec := registry.NewCodec(newClient(t, registry.Config{URLs: urls, Timeout: 100 * time.Millisecond}), registry.Output{Format: registry.Avro})
		var err error
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			if _, err = codec.AppendJSON(nil, wire(uint32(id), "ab")); err == nil {
				break
			}
		}
		if err != nil {
			t.Errorf("with %d that do not answer: %v", n, err)
		}
	}
}
