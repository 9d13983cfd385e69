package txlog_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/streamd/streamd/txlog"
)

// TestRemove: what is the log's goes, once nobody has it; what is somebody else's stays.
func TestRemove(t *testing.T) {
	nothing := func() error { return nil }
	never := func() error { t.Error("begun, and nothing can be removed"); return nil }
	dir := filepath.Join(t.TempDir(), "a[p]p") // no pattern of names
	if err := txlog.Remove(dir, "app", nothing); err != nil {
		t.Fatalf("what is not there: %v", err)
	}
	l, err := txlog.Open(txlog.Options{Dir: dir, App: "app", Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "app", never); !errors.Is(err, txlog.ErrLocked) {
		t.Errorf("in use: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "other", never); !errors.Is(err, txlog.ErrOtherApp) {
		t.Errorf("of another application: %v", err)
	}
	failed := errors.New("failed")
	err = txlog.Remove(dir, "app", func() error {
		if _, err := txlog.Open(txlog.Options{Dir: dir, App: "app", Cluster: "c"}); !errors.Is(err, txlog.ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
			t.Errorf("opened while it is to be removed: %v", err)
		}
		return failed
	})
	if _, gone := os.Stat(filepath.Join(dir, "txlog")); !errors.Is(err, failed) || gone != nil {
		t.Errorf("what is to be done before has failed: %v, %v", err, gone)
	}
	mine := filepath.Join(dir, "mine")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(dir, "txlog.bak") // somebody's copy
	if err := errors.Join(os.Mkdir(backup, 0o700), os.Mkdir(filepath.Join(dir, "txlog.aside-1"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "app", nothing); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 || left[0].Name() != "mine" || left[1].Name() != "txlog.bak" {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := errors.Join(os.Remove(mine), os.Remove(backup)); err != nil {
		t.Fatal(err)
	}
	if l, err = txlog.Open(txlog.Options{Dir: dir, App: "app", Cluster: "c"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := txlog.Remove(dir, "app", nothing); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
}
