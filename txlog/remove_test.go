package txlog_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamd/streamd/txlog"
)

// TestRemove: what is the log's goes, once nobody has it; what is somebody else's stays.
func TestRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[p]p") // no pattern of names
	if err := txlog.Remove(dir, "app"); err != nil {
		t.Fatalf("what is not there: %v", err)
	}
	l, err := txlog.Open(txlog.Options{Dir: dir, App: "app", Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "app"); !errors.Is(err, txlog.ErrLocked) {
		t.Errorf("in use: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "other"); !errors.Is(err, txlog.ErrOtherApp) {
		t.Errorf("of another application: %v", err)
	}
	mine := filepath.Join(dir, "mine")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "app"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	if l, err = txlog.Open(txlog.Options{Dir: dir, App: "app", Cluster: "c"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "app"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
}
