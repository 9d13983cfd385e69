package rawstore

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// files is the content of a Badger directory: what stands in its tables and what stands in the
// write-ahead logs that a kill left over. Badger cannot open such a directory read-only (it wants to
// cut the logs first), so the two are opened apart and read together.
type files struct {
	temp   string
	tables *badger.DB
	logs   *badger.DB // nil: none are left over
}

func openFiles(dir string, memTableBytes int64, encrypted bool, keys [][]byte) (_ *files, err error) {
	var key []byte
	if encrypted {
		if key, err = fitting(filepath.Join(dir, "KEYREGISTRY"), keys); err != nil {
			return nil, err
		}
	}
	temp, err := os.MkdirTemp("", "streamd-verify-")
	if err != nil {
		return nil, fmt.Errorf("rawstore: %w", err)
	}
	f := &files{temp: temp}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	tables, logs := filepath.Join(temp, "tables"), filepath.Join(temp, "logs")
	left, err := lay(dir, tables, logs)
	if err != nil {
		return nil, err
	}
	base := badger.DefaultOptions(tables).WithLogger(nil).WithCompression(options.None).WithBlockCacheSize(0).WithIndexCacheSize(0).
		WithMetricsEnabled(false).WithNumVersionsToKeep(1).WithMemTableSize(memTableBytes).WithValueLogFileSize(64 << 20).
		WithChecksumVerificationMode(options.OnTableAndBlockRead)
	if encrypted {
		base = base.WithEncryptionKey(key).WithBlockCacheSize(cacheBytes).WithIndexCacheSize(cacheBytes)
	}
	if f.tables, err = open(base.WithReadOnly(true)); err != nil {
		return nil, err
	}
	if left {
		if f.logs, err = open(base.WithDir(logs).WithValueDir(logs).WithNumCompactors(0)); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// cacheBytes is the size of each of the caches that Badger decrypts into.
const cacheBytes = 64 << 20

// fitting returns the key that opens Badger's registry of keys: behind an IV of 16 bytes it has a text that is known.
func fitting(registry string, keys [][]byte) ([]byte, error) {
	b, err := os.ReadFile(registry)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !stored(filepath.Dir(registry)):
		return nil, fmt.Errorf("rawstore: %w", err)
	case err != nil: // not as fs.ErrNotExist: there is a store
		return nil, fmt.Errorf("rawstore: %w: the registry of its keys: %v", ErrDamaged, err)
	}
	const text = "Hello Badger"
	if len(b) < aes.BlockSize+len(text) {
		return nil, fmt.Errorf("rawstore: %w: %s is cut off", ErrDamaged, registry)
	}
	for _, key := range keys {
		c, err := aes.NewCipher(key)
		if err != nil {
			continue // none, or of no length
		}
		plain := make([]byte, len(text))
		cipher.NewCTR(c, b[:aes.BlockSize]).XORKeyStream(plain, b[aes.BlockSize:aes.BlockSize+len(text)])
		if string(plain) == text {
			return key, nil
		}
	}
	return nil, fmt.Errorf("rawstore: %w: %s", ErrKey, filepath.Dir(registry))
}

// stored says whether a Badger directory has tables or write-ahead logs.
func stored(dir string) bool {
	entries, _ := os.ReadDir(dir)
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return strings.HasSuffix(e.Name(), ".sst") || strings.HasSuffix(e.Name(), ".mem")
	})
}

// open opens Badger, which panics on some kinds of damage.
func open(o badger.Options) (db *badger.DB, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("rawstore: %w: opening Badger: %v", ErrDamaged, v)
		}
	}()
	db, err = badger.OpenManaged(o)
	if err != nil {
		return nil, fmt.Errorf("rawstore: %w: opening Badger: %w", ErrDamaged, err)
	}
	return db, nil
}

// lay links the tables and copies the rest, and says whether there are write-ahead logs.
func lay(dir, tables, logs string) (left bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("rawstore: %w", err)
	}
	absolute, err := filepath.Abs(dir)
	if err == nil {
		err = errors.Join(os.Mkdir(tables, 0o700), os.Mkdir(logs, 0o700))
	}
	for _, e := range entries {
		name := e.Name()
		from := filepath.Join(absolute, name)
		switch {
		case err != nil:
		case strings.HasSuffix(name, ".sst"):
			err = os.Symlink(from, filepath.Join(tables, name))
		case strings.HasSuffix(name, ".mem"):
			left = true
			err = copyFile(from, filepath.Join(logs, name))
		case name == "MANIFEST":
			err = copyFile(from, filepath.Join(tables, name))
		case name == "KEYREGISTRY":
			err = errors.Join(copyFile(from, filepath.Join(tables, name)), copyFile(from, filepath.Join(logs, name)))
		}
	}
	if err != nil {
		return false, fmt.Errorf("rawstore: %w", err)
	}
	return left, nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func (f *files) close() error {
	var errs []error
	for _, db := range []*badger.DB{f.tables, f.logs} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(f.temp))...)
}

// each calls fn for every key with the prefix, in order, with its newest value. Both are valid only
// during the call.
func (f *files) each(prefix []byte, fn func(key, value []byte) error) error {
	var sides []*side
	for _, db := range []*badger.DB{f.tables, f.logs} {
		if db == nil {
			continue
		}
		s := newSide(db, prefix)
		defer s.close()
		sides = append(sides, s)
	}
	for {
		var first *side
		for _, s := range sides {
			if s.valid() && (first == nil || s.before(first)) {
				first = s
			}
		}
		if first == nil {
			return nil
		}
		key := first.it.Item().KeyCopy(nil)
		if !first.it.Item().IsDeletedOrExpired() {
			if err := first.it.Item().Value(func(v []byte) error { return fn(key, v) }); err != nil {
				return err
			}
		}
		for _, s := range sides {
			s.skip(key)
		}
	}
}

// side is an iteration over all versions of one of the two databases: a deletion in one must hide what
// the other one holds.
type side struct {
	txn    *badger.Txn
	it     *badger.Iterator
	prefix []byte
}

func newSide(db *badger.DB, prefix []byte) *side {
	txn := db.NewTransactionAt(math.MaxUint64, false)
	it := txn.NewIterator(badger.IteratorOptions{Prefix: prefix, AllVersions: true, PrefetchValues: true, PrefetchSize: 64})
	it.Rewind()
	return &side{txn, it, prefix}
}

func (s *side) valid() bool { return s.it.ValidForPrefix(s.prefix) }

// before says whether this side's next key comes first, or is the newer version of the same key.
func (s *side) before(o *side) bool {
	a, b := s.it.Item(), o.it.Item()
	if c := bytes.Compare(a.Key(), b.Key()); c != 0 {
		return c < 0
	}
	return a.Version() > b.Version()
}

// skip passes over all versions of a key.
func (s *side) skip(key []byte) {
	for s.valid() && bytes.Equal(s.it.Item().Key(), key) {
		s.it.Next()
	}
}

func (s *side) close() {
	s.it.Close()
	s.txn.Discard()
}
