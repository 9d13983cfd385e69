package processor_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// TestEncryptedState: an App with a key goes on where it was, on a Kafka in memory, with the real local store: copies of before are
// known, the count goes on, nothing of it stands in the directory, and without the key or with another one it does not start.
func TestEncryptedState(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "words", Partitions: 1}, {Name: "counts", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tb := topology.New("counting")
	words := topology.From(tb, "words", serde.String(), serde.String())
	unique := topology.Dedup(words, "unique", topology.Retention(time.Hour),
		topology.ID(func(r record.Record[string, string]) record.ID { return record.StringID(r.Value) }))
	topology.To(topology.Count(unique, "count"), "counts", serde.String(), serde.Int64())
	topo, err := tb.Build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics("counts"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := 0
	key, other := bytes.Repeat([]byte("k"), 32), bytes.Repeat([]byte("o"), 16)
	dir := t.TempDir()
	// start runs an App until it has counted the words that are new, and stops it.
	start := func(dir string, key, old []byte, wantNew int, send ...string) (log string) {
		t.Helper()
		var text bytes.Buffer
		app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(dir), processor.WithStateKey(key, old),
			processor.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(ctx)
		defer stop()
		var ended error
		var run sync.WaitGroup
		run.Go(func() { ended = app.Run(running) })
		for _, w := range send {
			if err := c.ProduceSync(ctx, &kgo.Record{Topic: "words", Key: []byte("account-4711"), Value: []byte(w)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		for want := got + wantNew; got < want; {
			fetches := c.PollFetches(ctx)
			if err := fetches.Err0(); err != nil {
				t.Fatalf("%d of %d counts: %v", got, want, err)
			}
			got += fetches.NumRecords()
		}
		stop()
		run.Wait()
		if ended != nil {
			t.Fatal(ended)
		}
		return text.String()
	}
	refused := func(key, old []byte, want error) {
		t.Helper()
		app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(dir), processor.WithStateKey(key, old))
		if err == nil {
			err = app.Run(ctx)
		}
		if !errors.Is(err, want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v, want %v", err, want)
		}
	}

	start(dir, key, nil, 3, "a", "b", "a", "c")
	refused(nil, nil, txlog.ErrKey)
	refused(other, nil, txlog.ErrKey)
	for _, log := range []string{
		start(dir, key, nil, 1, "b", "d"),
		start(dir, other, key, 1, "a", "e"), // a new key
		start(dir, other, nil, 1, "d", "f"),
	} {
		if strings.Contains(log, "set aside") || strings.Contains(log, "mode=full") {
			t.Errorf("the store was not used:\n%s", log)
		}
	}
	if got != 6 {
		t.Errorf("%d counts, want 6: a copy was counted", got)
	}
	secrets := []string{"account-4711", "words"}
	if found := filesWith(t, dir, secrets...); len(found) > 0 {
		t.Errorf("in the clear: %q", found)
	}

	// The key is lost: the directory is removed, and everything comes back from the changelog. Here without a key,
	// which shows that the search finds what there is to find.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	start(dir, nil, nil, 1, "a", "f", "g")
	if got != 7 {
		t.Errorf("%d counts, want 7: a copy was counted after the restore", got)
	}
	if found := filesWith(t, dir, secrets...); len(found) == 0 {
		t.Error("the search finds nothing in a store in the clear either")
	}
	refused(key, nil, txlog.ErrKey)

	for _, bad := range [][2][]byte{{key[:31], nil}, {key, other[:15]}, {nil, key}} {
		if _, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateKey(bad[0], bad[1])); err == nil {
			t.Errorf("keys of %d and %d bytes are taken", len(bad[0]), len(bad[1]))
		}
	}
}

// filesWith lists the files of a directory that hold one of the texts.
func filesWith(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found = append(found, d.Name()+": "+text)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
