package txlog

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asNobody runs f with the rights of a user who owns nothing, if the test's own may do everything. Nothing else of the process is another user's.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	const nobody = 65534
	runtime.LockOSThread() // the user of file systems is a thread's
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(nobody); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if was, err := unix.SetfsuidRetUid(0); err != nil || was != nobody {
			t.Error(was, err)
		}
	}()
	f()
}

// Who may not look into the store is not told to remove it.
func TestCheckByAnotherUser(t *testing.T) {
	for _, key := range []Key{nil, testKey} {
		o := testOptions(t.TempDir())
		o.Key = key
		must(t, openTest(t, o).Close())
		store := filepath.Join(o.Dir, storeName)
		for _, dir := range []string{filepath.Dir(o.Dir), o.Dir} {
			must(t, os.Chmod(dir, 0o755))
		}
		must(t, os.Chmod(filepath.Join(o.Dir, stateName), 0o644))
		must(t, os.Chmod(store, 0))
		t.Cleanup(func() { must(t, os.Chmod(store, 0o700)) })
		asNobody(t, func() {
			if _, err := os.ReadDir(store); err == nil {
				t.Error("the store can be read: the test shows nothing")
			}
			must(t, Check(o.Dir, o.App, o.Cluster, key, nil))
			if _, err := Open(o); err == nil {
				t.Error("opened")
			}
		})
	}
}

// A pipe gives a key if somebody writes one, and is not waited for if nobody does.
func TestKeyFromAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	must(t, unix.Mkfifo(path, 0o600))
	done := make(chan error, 1)
	go func() { _, err := ReadKey(path); done <- err }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "0 bytes, want 16") {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for somebody who writes")
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0) // as a shell has it open for a substituted command
	must(t, err)
	read := make(chan Key, 1)
	go func() {
		k, err := ReadKey(path)
		if err != nil {
			t.Error(err)
		}
		read <- k
	}()
	time.AfterFunc(50*time.Millisecond, func() {
		_, err := w.Write(testKey)
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Error(err)
		}
	})
	if k := <-read; !bytes.Equal(k, testKey) {
		t.Errorf("%d bytes", len(k))
	}
}
