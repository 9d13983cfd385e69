package txlog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Names in the state directory (docs/format.md).
const (
	lockName    = "LOCK"
	stateName   = "STATE"
	sessionName = "SESSION"
	markName    = "MARK"
	storeName   = "txlog"
)

// dirFormat is the highest format number of everything in the directory. A directory in the clear has
// clearFormat, so that programs that know no encryption go on to read it, and refuse one that is
// encrypted: they would take it for a damaged one, and make it anew in the clear.
const (
	dirFormat   = 2
	clearFormat = 1
)

// asideCopies is how many doubted stores are kept for whoever wants to look at them.
const asideCopies = 2

// state says who the directory belongs to.
type state struct {
	Format   int    `json:"format"`
	App      string `json:"app"`
	Cluster  string `json:"cluster"`
	Instance string `json:"instance"`
	// MemTableBytes is the largest memtable that a write-ahead log in the store may come from.
	MemTableBytes int64 `json:"memtable_bytes"`
	// Key is the fingerprint of the key that the store is under, empty if it is not encrypted.
	Key string `json:"key,omitempty"`
}

// phase is how far the last start or stop came.
type phase string

const (
	phaseOpening phase = "opening" // Badger was being opened
	phaseOpen    phase = "open"    // in use
	phaseClosed  phase = "closed"  // stopped cleanly
)

// maxOpenAttempts is how often in a row an open may die before its store is doubted. A few deaths
// may be kills that came at that moment, which Badger survives and which must not cost a full
// restore: what inspect has read is known to be good. So many are a sign that it is the content that
// ends the process after all, in one of Badger's goroutines, where nothing can be recovered.
const maxOpenAttempts = 5

// session is the life-cycle record of the store.
type session struct {
	Phase   phase  `json:"phase"`
	Attempt int    `json:"attempt"` // of phase opening, from 1
	Boot    string `json:"boot"`
	Power   bool   `json:"power"` // every commit was synced
	Version uint64 `json:"version"`
}

// errBadFile says that one of the small files is there, but not as it was written.
var errBadFile = errors.New("file is damaged")

// readJSON reads a file that writeJSON wrote. ok is false if there is none.
func readJSON(dir, name string, into any) (ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("txlog: %w", err)
	}
	line, sum, _ := bytes.Cut(b, []byte("\n"))
	line = append(line, '\n')
	if string(sum) != fmt.Sprintf("crc %08x\n", crc32.Checksum(line, castagnoli)) {
		return true, fmt.Errorf("%s: %w: checksum", name, errBadFile)
	}
	if err := json.Unmarshal(line, into); err != nil {
		return true, fmt.Errorf("%s: %w: %w", name, errBadFile, err)
	}
	return true, nil
}

// writeJSON replaces a file as a whole: after any crash there is the old one or the new one.
func writeJSON(dir, name string, v any) error {
	if err := replaceJSON(dir, name, v, true); err != nil {
		return err
	}
	return syncDir(dir)
}

// replaceJSON does the same; without sync only for the death of the process.
func replaceJSON(dir, name string, v any, sync bool) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("txlog: %s: %w", name, err)
	}
	line = append(line, '\n')
	text := fmt.Appendf(line, "crc %08x\n", crc32.Checksum(line, castagnoli))
	path := filepath.Join(dir, name)
	if err := writeFile(path+".tmp", text, sync); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("txlog: %w", err)
	}
	return nil
}

func writeFile(path string, b []byte, sync bool) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("txlog: %w", err)
	}
	_, err = f.Write(b)
	if err == nil && sync {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("txlog: write %q: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("txlog: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("txlog: sync %q: %w", dir, err)
	}
	return nil
}

// asidePrefix begins the names of stores that were set aside.
const asidePrefix = storeName + ".aside-"

func asideName(n int) string { return fmt.Sprintf("%s%d", asidePrefix, n) }

// setAside moves the store out of the way, with the mark that describes it, and forgets the oldest
// copy that was set aside before.
func setAside(dir string) error {
	store := filepath.Join(dir, storeName)
	if _, err := os.Stat(store); err == nil {
		if err := os.RemoveAll(filepath.Join(dir, asideName(asideCopies))); err != nil {
			return fmt.Errorf("txlog: remove old copy: %w", err)
		}
		for n := asideCopies - 1; n >= 1; n-- {
			err := os.Rename(filepath.Join(dir, asideName(n)), filepath.Join(dir, asideName(n+1)))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("txlog: %w", err)
			}
		}
		if err := os.Rename(store, filepath.Join(dir, asideName(1))); err != nil {
			return fmt.Errorf("txlog: set aside: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, markName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("txlog: %w", err)
	}
	return syncDir(dir)
}

// removeAside deletes the copies that were set aside. It says whether there were any.
func removeAside(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("txlog: %w", err)
	}
	found := false
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), asidePrefix) {
			found = true
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return found, fmt.Errorf("txlog: %w", err)
			}
		}
	}
	return found, nil
}

// markBytes is the size of the MARK file.
const markBytes = 4 + 8 + 4 + 4

// mark follows Badger's MANIFEST, a log that is appended to, and notes in the MARK file how long it
// was and its checksum up to there. The file is not synced: it must survive the death of the
// process, and after the death of the machine the boot ID decides.
type mark struct {
	path, manifest string
	f              *os.File
	last           os.FileInfo // of the MANIFEST when it was last looked at
	size           int64
	crc            uint32
}

func openMark(dir string) (*mark, error) {
	m := &mark{
		path:     filepath.Join(dir, markName),
		manifest: filepath.Join(dir, storeName, "MANIFEST"),
	}
	f, err := os.OpenFile(m.path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("txlog: %w", err)
	}
	m.f = f
	return m, nil
}

// advance brings the mark up to date. moved says that the MANIFEST had changed.
func (m *mark) advance() (moved bool, err error) {
	info, err := os.Stat(m.manifest)
	if err != nil {
		return false, fmt.Errorf("txlog: mark: %w", err)
	}
	rewritten := m.last == nil || !os.SameFile(m.last, info) || info.Size() < m.size
	if !rewritten && info.Size() == m.size {
		return false, nil
	}
	from, crc := m.size, m.crc
	if rewritten {
		from, crc = 0, 0
	}
	b := make([]byte, info.Size()-from)
	f, err := os.Open(m.manifest)
	if err != nil {
		return false, fmt.Errorf("txlog: mark: %w", err)
	}
	_, err = f.ReadAt(b, from)
	if err := errors.Join(err, f.Close()); err != nil {
		return false, fmt.Errorf("txlog: mark: %w", err)
	}
	crc = crc32.Update(crc, castagnoli, b)
	text := append(make([]byte, 0, markBytes), "sdmk"...)
	text = binary.BigEndian.AppendUint64(text, uint64(info.Size()))
	text = appendCRC(binary.BigEndian.AppendUint32(text, crc))
	if _, err := m.f.WriteAt(text, 0); err != nil {
		return false, fmt.Errorf("txlog: mark: %w", err)
	}
	m.last, m.size, m.crc = info, info.Size(), crc
	return true, nil
}

func (m *mark) close() error { return m.f.Close() }

// checkMark compares the MANIFEST with the mark. Without a MARK file there is nothing to compare.
func checkMark(dir string, manifest []byte) error {
	b, err := os.ReadFile(filepath.Join(dir, markName))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		return nil // killed before the first mark
	}
	if err != nil {
		return fmt.Errorf("txlog: %w", err)
	}
	body, err := checkCRC(b)
	if err != nil || len(b) != markBytes || string(b[:4]) != "sdmk" {
		return fmt.Errorf("%s: %w", markName, errBadFile)
	}
	size, crc := binary.BigEndian.Uint64(body[4:]), binary.BigEndian.Uint32(body[12:])
	if size > uint64(len(manifest)) {
		return fmt.Errorf("%w: MANIFEST has %d bytes, %d were written", ErrDamaged, len(manifest), size)
	}
	if crc32.Checksum(manifest[:size], castagnoli) != crc {
		return fmt.Errorf("%w: MANIFEST is not the one that was written", ErrDamaged)
	}
	return nil
}
