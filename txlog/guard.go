package txlog

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"google.golang.org/protobuf/proto"
)

// inspection is what the files of a store say before Badger opens them.
type inspection struct {
	empty         bool // no store yet
	version       uint64
	memTableBytes int64 // at least this large were the memtables of the write-ahead logs
}

// inspect reads every file of a store and finds what Badger would not survive, or would not see:
// Badger ends the process on a shortened table, from a goroutine of its own; opens an empty store
// without an error when its MANIFEST is lost; and replays an older log only as far as it is good.
// Since each block of each table is checked here, Badger itself is opened without verification. What is
// encrypted is decrypted for that, so that a data key that is not the right one is found, too.
func inspect(dir string, key Key) (inspection, error) {
	store := filepath.Join(dir, storeName)
	manifest, err := os.ReadFile(filepath.Join(store, "MANIFEST"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return inspection{}, fmt.Errorf("txlog: %w", err)
	}
	lost := err != nil
	if err := checkMark(dir, manifest); err != nil {
		return inspection{}, err
	}
	tables, logs, err := storeFiles(store)
	if err != nil {
		return inspection{}, err
	}
	if lost {
		if len(tables) > 0 || len(logs) > 0 {
			return inspection{}, fmt.Errorf("%w: MANIFEST is gone", ErrDamaged)
		}
		return inspection{empty: true}, nil
	}
	listed, err := readManifest(filepath.Join(store, "MANIFEST"))
	if err != nil {
		return inspection{}, err
	}
	registry, err := openRegistry(store, key)
	if err != nil {
		return inspection{}, err
	}
	keys := dataKeys{registry, len(key) > 0}
	var in inspection
	var buf bytes.Buffer
	for _, t := range listed {
		version, err := checkTable(table.NewFilename(t.id, store), keys, t.key, &buf)
		if err != nil {
			return inspection{}, err
		}
		in.version = max(in.version, version)
	}
	for _, path := range logs {
		size, version, err := checkWAL(path, in.version, keys)
		if err != nil {
			return inspection{}, err
		}
		in.version = max(in.version, version)
		in.memTableBytes = max(in.memTableBytes, size/2) // Badger makes the file twice as large
	}
	return in, nil
}

// storeFiles lists the tables and, in the order of their numbers, the write-ahead logs. Logs without
// content are removed: Badger makes the file before it gives it a length, and when the process is
// killed in between, it refuses to open the store again.
func storeFiles(store string) (tables, logs []string, err error) {
	entries, err := os.ReadDir(store)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("txlog: %w", err)
	}
	numbers := map[string]uint64{}
	for _, e := range entries {
		path := filepath.Join(store, e.Name())
		switch filepath.Ext(e.Name()) {
		case ".sst":
			tables = append(tables, path)
		case ".mem", ".vlog":
			info, err := e.Info()
			if err != nil {
				return nil, nil, fmt.Errorf("txlog: %w", err)
			}
			if info.Size() < walHeaderBytes {
				if err := os.Remove(path); err != nil {
					return nil, nil, fmt.Errorf("txlog: %w", err)
				}
				continue
			}
			if filepath.Ext(path) == ".vlog" {
				continue // never holds a value
			}
			n, err := strconv.ParseUint(strings.TrimSuffix(e.Name(), ".mem"), 10, 32)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: file %q", ErrDamaged, e.Name())
			}
			numbers[path] = n
			logs = append(logs, path)
		}
	}
	slices.SortFunc(logs, func(a, b string) int { return int(int64(numbers[a]) - int64(numbers[b])) })
	return tables, logs, nil
}

// listedTable is a table of the MANIFEST, and the number of the data key that it is encrypted with, 0: none.
type listedTable struct{ id, key uint64 }

// readManifest returns the tables that the MANIFEST lists, sorted by their numbers.
func readManifest(path string) ([]listedTable, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("txlog: %w", err)
	}
	defer f.Close()
	var m badger.Manifest
	if err := guardPanic(func() (err error) {
		m, _, err = badger.ReplayManifestFile(f, 0, badger.DefaultOptions(""))
		return err
	}); err != nil {
		return nil, fmt.Errorf("%w: MANIFEST: %w", ErrDamaged, err)
	}
	tables := make([]listedTable, 0, len(m.Tables))
	for id, t := range m.Tables {
		tables = append(tables, listedTable{id, t.KeyID})
	}
	slices.SortFunc(tables, func(a, b listedTable) int { return cmp.Compare(a.id, b.id) })
	return tables, nil
}

// checkTable verifies the checksums of a whole table and returns its newest version. It reads the
// file instead of mapping it: a fault of the disk is then an error and not a signal.
func checkTable(path string, keys dataKeys, keyID uint64, buf *bytes.Buffer) (version uint64, err error) {
	key, err := keys.of(keyID)
	if err != nil {
		return 0, fmt.Errorf("%w: table %q: %w", ErrDamaged, filepath.Base(path), err)
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("%w: table: %w", ErrDamaged, err)
	}
	defer f.Close()
	buf.Reset()
	if info, err := f.Stat(); err == nil {
		buf.Grow(int(info.Size()) + bytes.MinRead)
	}
	if _, err := io.Copy(buf, f); err != nil {
		return 0, fmt.Errorf("%w: table: %w", ErrDamaged, err)
	}
	// Flatbuffers panics on what it cannot read. The index has a checksum, so that it should not
	// come to that.
	err = guardPanic(func() (err error) {
		version, err = verifyTable(buf.Bytes(), key)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%w: table %q: %w", ErrDamaged, filepath.Base(path), err)
	}
	return version, nil
}

// verifyTable checks a table of Badger's format: blocks, index, index length (u32), the index's
// checksum, its length (u32). A block ends with its checksum and the checksum's length (u32). With a key,
// index and blocks are encrypted, the index without its checksum, blocks with theirs; b is decrypted in place.
func verifyTable(b, key []byte) (version uint64, err error) {
	rest, sum, err := cutTail(b)
	if err != nil {
		return 0, err
	}
	_, index, err := cutTail(rest)
	if err != nil {
		return 0, err
	}
	if err := verify(index, sum); err != nil {
		return 0, fmt.Errorf("index: %w", err)
	}
	if key != nil {
		if index, err = decryptTail(index, key); err != nil {
			return 0, fmt.Errorf("index: %w", err)
		}
	}
	ti := fb.GetRootAsTableIndex(index, 0)
	var block fb.BlockOffset
	for i := range ti.OffsetsLength() {
		if !ti.Offsets(&block, i) {
			return 0, fmt.Errorf("block %d is not in the index", i)
		}
		from, n := uint64(block.Offset()), uint64(block.Len())
		if from+n > uint64(len(b)) {
			return 0, fmt.Errorf("block %d is outside of the file", i)
		}
		data := b[from : from+n]
		if key != nil {
			if data, err = decryptTail(data, key); err != nil {
				return 0, fmt.Errorf("block %d: %w", i, err)
			}
		}
		data, sum, err := cutTail(data)
		if err != nil {
			return 0, fmt.Errorf("block %d: %w", i, err)
		}
		if err := verify(data, sum); err != nil {
			return 0, fmt.Errorf("block %d: %w", i, err)
		}
	}
	return ti.MaxVersion(), nil
}

// cutTail splits b into what stands before its tail and the tail, whose length is in the last
// four bytes.
func cutTail(b []byte) (before, tail []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errors.New("too short")
	}
	n := uint64(binary.BigEndian.Uint32(b[len(b)-4:]))
	b = b[:len(b)-4]
	if n > uint64(len(b)) {
		return nil, nil, errors.New("length out of range")
	}
	return b[:len(b)-int(n)], b[len(b)-int(n):], nil
}

func verify(data, sum []byte) error {
	var c pb.Checksum
	if err := proto.Unmarshal(sum, &c); err != nil {
		return err
	}
	return y.VerifyChecksum(data, &c)
}

// guardPanic turns a panic of f into an error. It is only for reading what may be damaged.
func guardPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}
