package txlog

import (
	"bytes"
	"crypto/aes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/badger/v4/y"
	"google.golang.org/protobuf/proto"
)

const (
	// dataKeyLife is how long Badger writes under one data key before it draws the next one. Tables keep
	// the one that they were written under until a compaction writes them anew.
	dataKeyLife = 10 * 24 * time.Hour

	// blockCacheBytes: a block is decrypted each time that it is read and not in here.
	blockCacheBytes = 32 << 20
	// minIndexCacheBytes and the share of the tables (1/indexShare) that is added to it: the decrypted
	// indexes of all tables fit, as they are all in memory without encryption. One that does not fit is
	// decrypted for each read.
	minIndexCacheBytes = 64 << 20
	indexShare         = 16

	// maxKeyFileBytes is how much of a file is read to find that it is no key.
	maxKeyFileBytes = 64 << 10
)

// Key is what a store is encrypted under, AES-128, AES-192 or AES-256 by its length; empty: nothing is
// encrypted. It prints as ***.
type Key []byte

// Format prints the key as *** whatever the verb is.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "***") }

// MarshalText is what encoders of JSON and logs see of it.
func (k Key) MarshalText() ([]byte, error) { return []byte("***"), nil }

// ReadKey reads a key from a file that holds its 16, 24 or 32 bytes and nothing else.
func ReadKey(path string) (Key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe into which nobody writes has no key, and is not waited for
	if err != nil {
		return nil, fmt.Errorf("txlog: key: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFileBytes)) // a device has no end
	if err != nil {
		return nil, fmt.Errorf("txlog: key: %w", err)
	}
	if err := Key(b).Check(); err != nil {
		return nil, fmt.Errorf("txlog: key: file %q: %w", path, err)
	}
	return b, nil
}

// Check says whether the length is one of AES.
func (k Key) Check() error {
	switch len(k) {
	case 16, 24, 32:
		return nil
	}
	return fmt.Errorf("%d bytes, want 16, 24 or 32 that are the key itself, not its text and no end of line (openssl rand -out FILE 32 makes one)", len(k))
}

// fingerprint is what the STATE file tells a key by. It gives nothing away of one that was drawn.
func (k Key) fingerprint() string {
	if len(k) == 0 {
		return ""
	}
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte("streamd: key of the local store"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// Badger's KEYREGISTRY: an IV, the text "Hello Badger" encrypted with the key, then the data keys:
// length (u32), CRC-32C (u32), protobuf, in which the data key is encrypted with the key.
const (
	registryName        = badger.KeyRegistryFileName
	registryText        = "Hello Badger"
	registryHeaderBytes = aes.BlockSize + len(registryText)
	// maxRegistryBytes has room for the data keys of 300 years.
	maxRegistryBytes = 1 << 20
)

// opens says whether the registry is under the key, or in the clear if there is none.
func (k Key) opens(registry []byte) bool {
	if len(registry) < registryHeaderBytes {
		return false
	}
	text := registry[aes.BlockSize:registryHeaderBytes]
	if len(k) == 0 {
		return string(text) == registryText
	}
	plain, err := y.XORBlockAllocate(text, k, registry[:aes.BlockSize])
	return err == nil && string(plain) == registryText
}

// lockedOut is an [ErrKey] with its remedy.
func (l *Log) lockedOut(what, remedy, then string) error {
	return fmt.Errorf("txlog: %w: %q %s: %s, or stop the process and remove the directory (rm -r %q): everything is restored from the changelog, %s",
		ErrKey, l.o.Dir, what, remedy, l.o.Dir, then)
}

func (l *Log) keyForNone() error {
	return l.lockedOut("is not encrypted, and a key is given", "go on without the key", "encrypted")
}

func (l *Log) noKey() error {
	return l.lockedOut("is encrypted, and no key is given", "give its key", "in the clear")
}

func (l *Log) otherKey() error {
	return l.lockedOut("is encrypted under another key than the one that is given", "give that one (as the old key, if it is to be changed)", "under the key that is given")
}

// findKey finds out under which of the keys the store is. It refuses with [ErrKey]; damaged is the
// reason to set the store aside: its registry is, which the fingerprint tells from a wrong key.
func (l *Log) findKey(known bool) (found Key, damaged, err error) {
	if known {
		switch is := l.state.Key; {
		case is == "" && len(l.o.Key) == 0:
			return nil, nil, nil // not even looked at
		case is == "":
			return nil, nil, l.keyForNone()
		case len(l.o.Key) == 0:
			return nil, nil, l.noKey()
		}
	}
	registry, err := readRegistry(filepath.Join(l.o.Dir, storeName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	lost := err != nil
	if !known {
		// Nobody says what the store is but the registry. It is about to be set aside, unless that would
		// leave records in the clear beside an encrypted store, or begin one in the clear beside those.
		if clear := Key(nil).opens(registry); len(registry) >= registryHeaderBytes && clear != (len(l.o.Key) == 0) {
			if clear {
				return nil, nil, l.keyForNone()
			}
			return nil, nil, l.noKey()
		}
		return l.o.Key, nil, nil
	}
	fits := false
	for _, k := range []Key{l.o.Key, l.o.OldKey} {
		if len(k) == 0 {
			continue
		}
		if k.opens(registry) {
			return k, nil, nil
		}
		if k.fingerprint() == l.state.Key {
			fits, found = true, k
		}
	}
	switch {
	case !fits:
		return nil, nil, l.otherKey()
	case lost:
		return found, nil, nil // inspect knows whether one was written yet
	}
	return l.o.Key, fmt.Errorf("%w: %s is not the one that was written: the key is the right one, and does not open it", ErrDamaged, registryName), nil
}

// rekey brings the registry of a store that is under the old key under the new one: after a crash it
// is the one or the other. Data keys, and all that is encrypted with them, stay.
func (l *Log) rekey(old Key) error {
	store := filepath.Join(l.o.Dir, storeName)
	r, err := openRegistry(store, old)
	if err != nil || r == nil {
		return err
	}
	if err := badger.WriteKeyRegistry(r, badger.KeyRegistryOptions{Dir: store, EncryptionKey: l.o.Key}); err != nil {
		return fmt.Errorf("txlog: bring the store under its new key: %w", err)
	}
	l.o.Logger.Info("local store is under its new key", "dir", l.o.Dir)
	return nil
}

// openRegistry reads the data keys of a store; nil: none are there, or it is not encrypted. All of the
// file is checked first: Badger would believe any length that stands in it.
func openRegistry(store string, key Key) (*badger.KeyRegistry, error) {
	if len(key) == 0 {
		return nil, nil
	}
	b, err := readRegistry(store)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !key.opens(b) {
		return nil, fmt.Errorf("%w: %s does not open with the key", ErrDamaged, registryName)
	}
	if err := checkRegistry(b); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, registryName, err)
	}
	var r *badger.KeyRegistry
	if err := guardPanic(func() (err error) {
		r, err = badger.OpenKeyRegistry(badger.KeyRegistryOptions{Dir: store, ReadOnly: true, EncryptionKey: key})
		return err
	}); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, registryName, err)
	}
	return r, nil
}

// readRegistry reads the registry; of one that is too large as much as shows that.
func readRegistry(store string) ([]byte, error) {
	f, err := os.Open(filepath.Join(store, registryName))
	if err != nil {
		return nil, fmt.Errorf("txlog: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRegistryBytes+1))
	if err != nil {
		return nil, fmt.Errorf("txlog: %w", err)
	}
	return b, nil
}

// checkRegistry checks that the data keys behind the header are whole.
func checkRegistry(b []byte) error {
	if len(b) < registryHeaderBytes {
		return errors.New("too short")
	}
	if len(b) > maxRegistryBytes {
		return fmt.Errorf("more than %d bytes", maxRegistryBytes)
	}
	for b = b[registryHeaderBytes:]; len(b) > 0; {
		if len(b) < 8 {
			return errors.New("ends within a data key")
		}
		n, sum := uint64(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:])
		if n > uint64(len(b)-8) {
			return errors.New("ends within a data key")
		}
		data := b[8 : 8+n]
		if crc32.Checksum(data, castagnoli) != sum {
			return errors.New("checksum of a data key")
		}
		var k pb.DataKey
		if err := proto.Unmarshal(data, &k); err != nil {
			return fmt.Errorf("data key: %w", err)
		}
		if k.KeyId == 0 || len(k.Iv) != aes.BlockSize || Key(k.Data).Check() != nil {
			return fmt.Errorf("data key %d is none", k.KeyId)
		}
		b = b[8+n:]
	}
	return nil
}

// dataKeys gives the keys that files of the store are encrypted with.
type dataKeys struct {
	registry  *badger.KeyRegistry // nil: there is none
	encrypted bool
}

// of returns the key of that number, nil for a file in the clear. In an encrypted store there is none
// of those: whoever put one there did not know the key.
func (d dataKeys) of(id uint64) ([]byte, error) {
	switch {
	case !d.encrypted && id == 0:
		return nil, nil
	case !d.encrypted:
		return nil, errors.New("is encrypted, the store is not")
	case id == 0:
		return nil, errors.New("is not encrypted, the store is")
	case d.registry == nil:
		return nil, fmt.Errorf("%s is gone", registryName)
	}
	k, err := d.registry.DataKey(id)
	if err != nil {
		return nil, fmt.Errorf("%s has not its data key %d", registryName, id)
	}
	return k.Data, nil
}

// decryptTail decrypts in place what Badger has encrypted with the IV behind it.
func decryptTail(b, key []byte) ([]byte, error) {
	n := len(b) - aes.BlockSize
	if n < 0 {
		return nil, errors.New("too short")
	}
	return b[:n], y.XORBlock(b[:n], b[:n], key, bytes.Clone(b[n:]))
}
