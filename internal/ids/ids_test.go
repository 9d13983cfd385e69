package ids

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
)

const file = `version: 1
name: bills
kafka: {brokers: ["BROKER"]}
types: {Bill: {bill_id: string}}
sources: {bills: {topic: bills.raw, format: json, type: Bill}}
steps:
  - name: unique
    dedup: {id: value.bill_id, scope: SCOPE, retention: 1d, expected_ids: 100}
  - name: publish
    to: {topic: bills.unique}
`

// start starts a broker and returns a pipeline on it.
func start(t *testing.T, scope string) *pipeline.Pipeline {
	t.Helper()
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "bills.raw", Partitions: 2}, {Name: "bills.unique", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	name := filepath.Join(t.TempDir(), "bills.yaml")
	if err := os.WriteFile(name, []byte(strings.NewReplacer("BROKER", b.Address(), "SCOPE", scope).Replace(file)), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := daemon.Load([]string{name}, daemon.LoadConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return p[0]
}

// seen writes a file of n IDs.
func seen(t *testing.T, n int) string {
	t.Helper()
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "b%d\n", i)
	}
	name := filepath.Join(t.TempDir(), "seen.csv")
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// exportOf returns the hashes that a pipeline remembers, each with its partitions.
func exportOf(t *testing.T, p *pipeline.Pipeline) map[record.Hash][]string {
	t.Helper()
	var out bytes.Buffer
	if _, err := Export(t.Context(), ExportConfig{Pipeline: p}, &out); err != nil {
		t.Fatal(err)
	}
	found := map[record.Hash][]string{}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, line := range lines[1:] {
		digits, partition, _ := strings.Cut(line, ",")
		var h record.Hash
		if _, err := hex.Decode(h[:], []byte(digits)); err != nil {
			t.Fatal(err)
		}
		found[h] = append(found[h], partition)
	}
	return found
}

// An import that ended in the middle is completed by the next one: each ID is there, once.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	const n = 90_000
	p := start(t, "stream")
	cfg := ImportConfig{Pipeline: p, Source: SourceConfig{From: "csv:" + seen(t, n)}}
	ctx, cancel := context.WithCancel(t.Context())
	first := cfg
	first.Progress = func(Progress) { cancel() }
	if _, err := Import(ctx, first); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled after a transaction: %v", err)
	}
	before := exportOf(t, p)
	if len(before) == 0 || len(before) >= n {
		t.Fatalf("the first import has written %d IDs", len(before))
	}
	r, err := Import(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Resumed || r.Done || int(r.New) != n-len(before) {
		t.Errorf("the second import: %+v, the first has written %d", r, len(before))
	}
	found := exportOf(t, p)
	for i := range n {
		id := record.StringID(fmt.Sprintf("b%d", i))
		want := fmt.Sprint(record.PartitionForKey([]byte(id), 2))
		if got := found[id.Hash()]; len(got) != 1 || got[0] != want {
			t.Fatalf("%s is in partitions %v, want %s", id, got, want)
		}
	}
	if len(found) != n {
		t.Errorf("%d IDs, want %d", len(found), n)
	}
	if r, err = Import(t.Context(), cfg); err != nil || !r.Done || r.New != 0 {
		t.Errorf("the third import: %+v, %v", r, err)
	}
}

// Without a scope that says it, an ID goes to each task, or where its key goes.
func TestPlacing(t *testing.T) {
	t.Parallel()
	p := start(t, "partition")
	for _, c := range []struct {
		placing Placing
		want    []string
	}{{Everywhere, []string{"0", "1"}}, {ByKey, []string{fmt.Sprint(record.PartitionForKey([]byte("ann"), 2))}}} {
		name := filepath.Join(t.TempDir(), "one.csv")
		if err := os.WriteFile(name, []byte("ann,"+string(c.placing)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Import(t.Context(), ImportConfig{Pipeline: p, Placing: c.placing, Source: SourceConfig{From: "csv:" + name, IDColumns: []string{"2"}, KeyColumn: "1"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := exportOf(t, p)[record.StringID(string(c.placing)).Hash()]; fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("by %s: in partitions %v, want %v", c.placing, got, c.want)
		}
	}
}

// waiting is a group member that does nothing but say that it has come.
type waiting struct{ came chan struct{} }

func (w waiting) Assigned(broker.GroupMeta, []record.TopicPartition) {
	select {
	case w.came <- struct{}{}:
	default:
	}
}
func (waiting) Revoked(context.Context, []record.TopicPartition) {}
func (waiting) Lost([]record.TopicPartition)                     {}

// Whoever joins the group ends an import, and nothing is committed behind his back.
func TestSomebodyStarts(t *testing.T) {
	t.Parallel()
	p := start(t, "stream")
	c, err := daemon.OpenCluster(t.Context(), p.Kafka)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() {
		cancel()
		<-ended
	}()
	cfg := ImportConfig{Pipeline: p, Source: SourceConfig{From: "csv:-", Stdin: &endless{}}}
	other := waiting{make(chan struct{}, 1)}
	joined := false
	cfg.Progress = func(Progress) {
		if joined {
			return
		}
		joined = true
		go func() {
			defer close(ended)
			_ = c.Join(ctx, broker.GroupConfig{Group: "bills", Instance: "one", CoPartitioned: [][]string{{"bills-unique-repartition"}}}, other)
		}()
		select {
		case <-other.came:
		case <-t.Context().Done():
		}
	}
	within, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if _, err := Import(within, cfg); !errors.Is(err, daemon.ErrInUse) {
		t.Errorf("somebody has joined: %v", err)
	}
}

// endless are IDs without an end.
type endless struct{ n int }

func (e *endless) Read(b []byte) (int, error) {
	out := b[:0]
	for len(b)-len(out) > 20 {
		out = fmt.Appendf(out, "e%d\n", e.n)
		e.n++
	}
	return len(out), nil
}

func TestCSVEntries(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0f", record.HashBytes)
	for name, c := range map[string]struct {
		text string
		cfg  SourceConfig
		want string // the ID or the hash, or words of the error
	}{
		"first column":    {"a,b\n", SourceConfig{}, "a"},
		"number":          {"a,b\n", SourceConfig{IDColumns: []string{"2"}}, "b"},
		"name":            {"x,y\na,b\n", SourceConfig{IDColumns: []string{"y"}}, "b"},
		"composite":       {"a,b\n", SourceConfig{IDColumns: []string{"1", "2"}}, string(record.CompositeID("a", "b"))},
		"composite, part": {"a,\"\"\n", SourceConfig{IDColumns: []string{"1", "2"}}, "no ID"},
		"quoted":          {"\"a,\"\"b\"\"\"\n", SourceConfig{}, `a,"b"`},
		"not UTF-8":       {"\xff\n", SourceConfig{}, "\xff"},
		"empty":           {"\"\"\n", SourceConfig{}, "no ID"},
		"too few columns": {"a\n", SourceConfig{IDColumns: []string{"3"}}, "1 columns, column 3 is wanted"},
		"too long":        {strings.Repeat("a", record.MaxIDBytes+1) + "\n", SourceConfig{}, "too long"},
		"export":          {"streamd-id-hash,partition-of-4\n" + hash + ",3\n", SourceConfig{}, hash + "@3"},
		"export, cut":     {"streamd-id-hash,partition-of-4\n0f0f,3\n", SourceConfig{}, "a hash of 4 digits"},
		"export, digits":  {"streamd-id-hash,partition-of-4\n" + strings.Replace(hash, "0", "x", 1) + ",3\n", SourceConfig{}, "invalid byte"},
	} {
		c.cfg.Stdin = strings.NewReader(c.text)
		s, err := openCSV("-", c.cfg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		row, err := s.read()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		e := s.entry(row)
		got := string(e.id)
		switch {
		case e.err != nil:
			got = e.err.Error()
		case e.id == nil:
			got = fmt.Sprintf("%x@%d", e.hash, e.partition)
		}
		if got != c.want && (e.err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if _, err := openCSV("-", SourceConfig{Stdin: strings.NewReader("\"" + strings.Repeat("a\n", maxLine))}); err == nil || !strings.Contains(err.Error(), "a quote that is not closed") {
		t.Errorf("a quote that is never closed: %v", err)
	}
	if _, err := openCSV("-", SourceConfig{Stdin: strings.NewReader("streamd-id-hash,partition-of-x\n")}); err == nil {
		t.Error("an export of x tasks is taken")
	}
}

// A part of a fingerprint may be empty, and tells apart all the same: else one source would be gone on with where another one ended.
func TestFingerprints(t *testing.T) {
	t.Parallel()
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"b", ""}, {"a", "b"}, {"ab"}, {"ab", ""}} {
		f := fingerprintOf(parts...)
		if other, ok := seen[f]; ok {
			t.Errorf("%q and %q are alike: %s", parts, other, f)
		}
		seen[f] = parts
	}
	// What commit records say of imports under way must still be found.
	if f := fingerprintOf("topic", "id", "name"); f != "7a7d4d96c7fc2ade" {
		t.Errorf("the fingerprint of a source has changed: %s", f)
	}
}

// Another content is another source, whatever is the same: what is said to be imported is there.
func TestOtherContent(t *testing.T) {
	t.Parallel()
	p := start(t, "stream")
	name := filepath.Join(t.TempDir(), "seen.csv")
	in := func(from, content string, at time.Time) *Report {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Import(t.Context(), ImportConfig{Pipeline: p, At: at, Source: SourceConfig{From: from, Stdin: strings.NewReader(content)}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	has := func(id string) {
		t.Helper()
		if len(exportOf(t, p)[record.ID(id).Hash()]) == 0 {
			t.Errorf("ID %q was not imported", id)
		}
	}
	in("csv:-", "a1\n", time.Time{})
	in("csv:-", "a2\n", time.Time{})
	has("a2")
	same := strings.Repeat("same\n", 20_000)
	in("csv:"+name, same+"a3\n", time.Time{})
	in("csv:"+name, same+"a4\n", time.Time{})
	has("a4")
	in("csv:"+name, "\ufeffa5\n", time.Time{})
	has("a5")
	old := time.Now().Add(-time.Hour)
	if in("csv:-", "a6\n", old).Done || in("csv:-", "a6\n", time.Now()).Done {
		t.Error("the same IDs at another time were not imported")
	}
	// A topic that has got more since.
	topic := func() *Report {
		t.Helper()
		r, err := Import(t.Context(), ImportConfig{Pipeline: p, Source: SourceConfig{From: "topic:bills.unique", TopicID: "value"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	topic()
	if !topic().Done {
		t.Error("a topic without anything new was imported again")
	}
	put(t, p, "a7")
	topic()
	has("a7")
	// A quote that is not closed takes the lines behind it.
	_, err := Import(t.Context(), ImportConfig{Pipeline: p, Source: SourceConfig{From: "csv:-", Stdin: strings.NewReader("b1\n\"b2\nb3\n")}, SkipInvalid: true})
	if !errors.Is(err, daemon.ErrConfig) {
		t.Errorf("a quote that is not closed: %v", err)
	}
}

// put writes a record.
func put(t *testing.T, p *pipeline.Pipeline, value string) {
	t.Helper()
	c, err := daemon.OpenCluster(t.Context(), p.Kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	w := c.NewProducer(broker.ProducerConfig{TransactionalID: "put"})
	defer w.Close()
	if err := w.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Add(broker.Output{TopicPartition: record.TopicPartition{Topic: "bills.unique"}, Timestamp: time.Now(), Value: []byte(value)})
	if _, _, err := w.Commit(t.Context(), broker.GroupMeta{Generation: -1}, nil); err != nil {
		t.Fatal(err)
	}
}
