package txlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4/y"

	"github.com/streamd/streamd/record"
)

// images are directories as they can be found at a start, each made once.
type images struct {
	killed string // with tables and a log, as after kill -9
	closed string // after a clean stop
	split  string // as killed, but with the log in two files
	key    Key
}

// options open a copy of an image.
func (im images) options(dir string) Options {
	o := testOptions(dir)
	o.Key = im.key
	return o
}

const imageBatches = 190 // several memtables, and not at the end of one

func makeImages(t testing.TB, key Key) images {
	t.Helper()
	base := t.TempDir()
	im := images{filepath.Join(base, "killed"), filepath.Join(base, "closed"), filepath.Join(base, "split"), key}
	live := filepath.Join(base, "live")
	l := openTest(t, im.options(live))
	// States only, no IDs: what it loses, no counter finds.
	plain := mustTask(t, l, "plain")
	must(t, crashWork(l, imageBatches, func(seq uint64) {
		must(t, plain.Apply(&record.Batch{
			State:    []record.StateChange{{Store: "n", Key: fmt.Appendf(nil, "%04d", seq), Value: []byte("v")}},
			Position: position(seq),
		}))
	}))
	snapshot(t, live, im.killed)
	must(t, l.Close())
	must(t, copyDir(live, im.closed))
	must(t, copyDir(im.killed, im.split))
	splitLog(t, im.split, newestLog(t, im.split))
	if len(glob(t, im.killed, "*.sst")) == 0 {
		t.Fatal("the image has no tables")
	}
	return im
}

// snapshot copies a directory that is in use as kill -9 would leave it. Badger works in the background:
// a copy is that of one moment if nothing changed meanwhile and all tables are known.
func snapshot(t testing.TB, live, to string) {
	t.Helper()
	waitFor(t, "a quiet moment", func() bool {
		must(t, os.RemoveAll(to))
		before := listing(t, live)
		if err := copyDir(live, to); err != nil || listing(t, live) != before {
			return false
		}
		listed, err := readManifest(filepath.Join(to, storeName, "MANIFEST"))
		return err == nil && len(listed) == len(glob(t, to, "*.sst"))
	})
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func glob(t testing.TB, dir, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, storeName, pattern))
	must(t, err)
	slices.Sort(paths)
	return paths
}

// newestLog returns the last log that has content.
func newestLog(t testing.TB, dir string) string {
	t.Helper()
	logs := glob(t, dir, "*.mem")
	for _, path := range slices.Backward(logs) {
		if _, last, err := checkWAL(path, 1<<40, keysOf(t, dir)); err == nil && last > 0 {
			return path
		}
	}
	t.Fatalf("no log with content among %q", logs)
	return ""
}

// splitLog cuts a log at a transaction in its middle and puts the second half into the next file, as if
// its memtable had been full.
func splitLog(t testing.TB, dir, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	w, err := newWALReader(b, keysOf(t, dir))
	must(t, err)
	var ends []int
	for {
		if _, ok := w.next(); !ok {
			break
		}
		ends = append(ends, len(b)-len(w.b))
	}
	if len(ends) < 4 {
		t.Fatalf("log has only %d transactions", len(ends))
	}
	cut := ends[len(ends)/2]
	var number int
	_, err = fmt.Sscanf(filepath.Base(path), "%05d.mem", &number)
	must(t, err)
	second := slices.Concat(b[:walHeaderBytes], moved(t, w, b, cut))
	must(t, os.WriteFile(filepath.Join(filepath.Dir(path), fmt.Sprintf("%05d.mem", number+1)), second, 0o644))
	must(t, os.WriteFile(path, append(b[:cut:cut], make([]byte, 4096)...), 0o644))
}

// moved is the rest of a log, from cut on, as it stands at the start of a file: what is encrypted goes by
// where it stands.
func moved(t testing.TB, w walReader, file []byte, cut int) []byte {
	t.Helper()
	rest := bytes.Clone(file[cut:])
	if w.key == nil {
		return rest
	}
	xor := func(b []byte, offset int) {
		binary.BigEndian.PutUint32(w.iv[12:], uint32(offset))
		must(t, y.XORBlock(b, b, w.key, w.iv[:]))
	}
	for at := 0; ; {
		entry := walReader{b: rest[at:]}
		_, from, end, ok := entry.peek()
		if !ok {
			return rest
		}
		b := rest[at : at+end+4]
		xor(b[from:end], cut+at)
		xor(b[from:end], walHeaderBytes+at)
		binary.BigEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
		at += end + 4
	}
}

// Kinds of damage to one file.
func truncate(share float64) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		b, err := os.ReadFile(path)
		must(t, err)
		// Of what was written: a log is made longer than it is at first.
		must(t, os.Truncate(path, int64(float64(len(bytes.TrimRight(b, "\x00")))*share)))
	}
}

func remove(t testing.TB, path string) { must(t, os.Remove(path)) }

func overwrite(share float64, n int, with func(byte) byte) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		b, err := os.ReadFile(path)
		must(t, err)
		from := int(float64(len(bytes.TrimRight(b, "\x00"))) * share)
		for i := from; i < min(from+n, len(b)); i++ {
			b[i] = with(b[i])
		}
		must(t, os.WriteFile(path, b, 0o644))
	}
}

func flip(share float64) func(testing.TB, string) {
	return overwrite(share, 1, func(b byte) byte { return b ^ 0x10 })
}

func overwriteAt(n int, with []byte) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		b, err := os.ReadFile(path)
		must(t, err)
		copy(b[n:], with)
		must(t, os.WriteFile(path, b, 0o644))
	}
}

func zeroPage(share float64) func(testing.TB, string) {
	return overwrite(share, 4096, func(byte) byte { return 0 })
}

// cutEntry takes the last entry off a MANIFEST: the file is a good one, of an earlier moment.
func cutEntry(t testing.TB, path string) {
	b, err := os.ReadFile(path)
	must(t, err)
	at, last := 8, 8
	for at < len(b) {
		last = at
		at += 8 + int(binary.BigEndian.Uint32(b[at:]))
	}
	must(t, os.WriteFile(path, b[:last], 0o644))
}
