package crash

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// FilterLost empties every Bloom filter in the store: its bits are all 0, so that it would call every ID new. The
// tables around it are whole: no checksum of the store itself tells (crash table, row 38).
const FilterLost Damage = "filters emptied"

// Keys of the store, see docs/format.md.
const (
	keyFilter  = 'b'
	keyVersion = 'v'
	// filterHeader is what stands before the bits of a filter, in its first piece: format, hash functions, bits, IDs.
	filterHeader = 18
	filterCRC    = 4
)

// ErrNoFilter: no generation is sealed yet.
var ErrNoFilter = errors.New("crash: no filter in the store")

// emptyFilters changes the store as one that is written by streamd: with the next version, in one transaction.
func emptyFilters(dir string) (err error) {
	if _, err := os.Stat(filepath.Join(dir, "txlog", "MANIFEST")); err != nil { // Badger would make a store
		return fmt.Errorf("%w: %w", ErrNoFile, err)
	}
	opt := badger.DefaultOptions(filepath.Join(dir, "txlog")).WithLogger(nil).WithCompression(options.None).
		WithBlockCacheSize(0).WithMetricsEnabled(false).WithMemTableSize(8 << 20).WithNumVersionsToKeep(1).WithValueLogFileSize(64 << 20)
	db, err := badger.OpenManaged(opt)
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	txn := db.NewTransactionAt(math.MaxUint64, true)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{keyFilter}})
	emptied := map[string][]byte{}
	for it.Rewind(); it.Valid(); it.Next() {
		value, err := it.Item().ValueCopy(nil)
		if err != nil {
			it.Close()
			return fmt.Errorf("crash: %w", err)
		}
		for i := filterHeader; i < len(value)-filterCRC; i++ {
			value[i] = 0
		}
		emptied[string(it.Item().KeyCopy(nil))] = value
	}
	it.Close()
	if len(emptied) == 0 {
		return ErrNoFilter
	}
	for k, v := range emptied {
		if err := txn.Set([]byte(k), v); err != nil {
			return fmt.Errorf("crash: %w", err)
		}
	}
	if err := txn.Set([]byte{keyVersion}, []byte{1}); err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	if err := txn.CommitAt(db.MaxVersion()+1, nil); err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	return nil
}
