package rawstore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/verify/rawstore"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// An encrypted store whose registry of keys is gone is damaged, and not one that was never there: who compares would pass it over.
func TestRegistryIsGone(t *testing.T) {
	dir, key := t.TempDir(), bytes.Repeat([]byte("k"), 32)
	log, err := txlog.Open(txlog.Options{Dir: dir, App: "a", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	task, err := log.Task("t/0")
	if err == nil {
		err = task.Apply(&record.Batch{Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: 1, Incarnation: 1, StreamTime: time.Unix(1, 0)}}})
	}
	if err := errors.Join(err, log.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := rawstore.Open(dir, nil, key)
	if err != nil || len(s.Tasks()) != 1 || s.Close() != nil {
		t.Fatal(err)
	}
	if _, err := rawstore.Open(dir, nil, bytes.Repeat([]byte("o"), 16)); !errors.Is(err, rawstore.ErrKey) {
		t.Errorf("another key: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "txlog", "KEYREGISTRY")); err != nil {
		t.Fatal(err)
	}
	if _, err := rawstore.Open(dir, nil, key); !errors.Is(err, rawstore.ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("registry gone: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "txlog")); err != nil {
		t.Fatal(err)
	}
	if _, err := rawstore.Open(dir, nil, key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("store gone: %v", err)
	}
}
