package txlog

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/streamd/streamd/record"
)

// Under the floor nothing is written, and everything goes on when there is room again.
func TestDiskFloor(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	task := mustTask(t, l, "t")
	op := task.Operator("d")
	must(t, task.Apply(&record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, ids(1, 9))}, Position: position(1)}))
	if l.DiskLow() {
		t.Fatal("disk is low with a floor of one byte")
	}
	floor := l.Floor()
	l.kv.floor.Store(1 << 62)
	if !l.DiskLow() {
		t.Error("disk is not low under an impossible floor")
	}
	batch := &record.Batch{Blocks: []record.OperatorBlock{block("d", 2, 2, ids(2, 9))}, Position: position(2)}
	version := l.kv.version
	for what, err := range map[string]error{
		"apply": task.Apply(batch), "seal": sealAll(op, 1, 1, nil), "drop": op.Drop(1),
		"reset": task.Reset(), "forget": l.Forget("t"),
	} {
		if what == "seal" || err != nil {
			wantErr(t, err, ErrDiskFull)
		} else {
			t.Errorf("%s is not refused", what)
		}
	}
	if l.kv.version != version {
		t.Error("something was written under the floor")
	}
	if p, ok := task.Position(); !ok || p.Sequence != 1 {
		t.Errorf("position %d %v", p.Sequence, ok)
	}
	l.kv.floor.Store(floor)
	must(t, task.Apply(batch))
	must(t, sealAll(op, 1, 1, nil))
	must(t, task.Check())
	if got := runsOf(t, op, 1, 1); !bytes.Equal(got, sorted(ids(1, 9))) {
		t.Errorf("runs of %d bytes", len(got))
	}
}

// The floor grows with what a compaction needs, and an option replaces it.
func TestFloor(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MinFreeBytes = 0
	l := openTest(t, o)
	if l.Floor() != DefaultMinFreeBytes {
		t.Errorf("floor of an empty store is %d", l.Floor())
	}
	must(t, l.Close())
	o.MemTableBytes = 128 << 20
	l = openTest(t, o)
	if l.Floor() < 4*128<<20 {
		t.Errorf("floor with large memtables is %d", l.Floor())
	}
	free, total, err := l.FreeSpace()
	if err != nil || free == 0 || free > total {
		t.Errorf("free %d of %d, %v", free, total, err)
	}
	z, err := l.Sizes()
	if err != nil || z.Total <= 0 {
		t.Errorf("sizes %+v, %v", z, err)
	}
}

// smallDisk is a file system of 96 MiB.
func smallDisk(t *testing.T) (mount string) {
	t.Helper()
	mount = t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatalf("cannot mount a small disk: %v; run it as root, or with: unshare -rm go test ./txlog", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return mount
}

// What frees space needs none: a log is removed from a disk on which no byte can be written.
func TestRemoveOnAFullDisk(t *testing.T) {
	mount := smallDisk(t)
	dir := filepath.Join(mount, "state")
	o := testOptions(dir)
	l, err := Open(o)
	must(t, err)
	must(t, l.Close())
	filler, err := os.Create(filepath.Join(mount, "filler"))
	must(t, err)
	if _, err := io.Copy(filler, io.LimitReader(zeros{}, 1<<30)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	must(t, filler.Close())
	begun := false
	must(t, Remove(dir, o.App, func() error { begun = true; return nil }))
	if _, err := os.Stat(dir); !begun || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("begun %v, left: %v", begun, err)
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A real disk that fills up: the floor refuses before Badger dies by SIGBUS; a process that has too
// low a floor dies, and loses nothing of what it had acknowledged; when there is room, it goes on.
func TestFullDisk(t *testing.T) {
	mount := smallDisk(t)
	dir := filepath.Join(mount, "state")
	run := func(floor string) (string, string) {
		cmd := exec.Command(os.Args[0], "-test.run=^$", "--", dir)
		cmd.Env = append(os.Environ(), helperEnv+"=fill", "TXLOG_TEST_FLOOR="+floor)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		text, err := io.ReadAll(out)
		must(t, err)
		_ = cmd.Wait()
		return string(text), stderr.String()
	}
	const floor = "40000000"
	out, stderr := run(floor)
	if !strings.HasPrefix(out, "refused: true") || stderr != "" {
		t.Fatalf("with a floor the process says %q\n%.300s", out, stderr)
	}
	// Without one it dies where the floor is too late: the hazard is real.
	if out, stderr = run("1"); !strings.Contains(stderr, "SIGBUS") {
		t.Logf("without a floor the process says %q\n%.300s", out, stderr)
	}
	// Still full: the start is refused, and does not die.
	if out, stderr = run(floor); !strings.HasPrefix(out, "open:") || !strings.Contains(out, ErrDiskFull.Error()) {
		t.Fatalf("a start on a full disk says %q\n%.300s", out, stderr)
	}
	// When the disk has grown everything is there.
	must(t, syscall.Mount("tmpfs", mount, "tmpfs", syscall.MS_REMOUNT, "size=400m"))
	l := openTest(t, testOptions(dir))
	if reason, ok := l.SetAside(); ok {
		t.Fatalf("set aside: %s", reason)
	}
	task := mustTask(t, l, "t")
	p, _ := task.Position()
	var want []byte
	for seq := uint64(1); seq <= p.Sequence; seq++ {
		want = append(want, ids(seq, 4000)...)
	}
	if got := blocksOf(t, task.Operator("d"), 1); p.Sequence == 0 || !bytes.Equal(got, want) {
		t.Errorf("at %d there are %d IDs, want %d", p.Sequence, len(got)/16, len(want)/16)
	}
	t.Logf("%d batches of 4000 IDs", p.Sequence)
}
