package txlog

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// ageDataKeys makes the data keys of a store under the key older than they may get, and returns how many there are.
func ageDataKeys(t testing.TB, dir string, key Key) (n int) {
	t.Helper()
	store := filepath.Join(dir, storeName)
	r, err := openRegistry(store, key)
	must(t, err)
	for ; ; n++ {
		k, err := r.DataKey(uint64(n + 1))
		if err != nil {
			break
		}
		k.CreatedAt = time.Now().Add(-dataKeyLife - time.Hour).Unix()
	}
	must(t, badger.WriteKeyRegistry(r, badger.KeyRegistryOptions{Dir: store, EncryptionKey: key}))
	return n
}

// A store whose files are under several data keys passes the guards, after a kill and after a clean stop, also on its
// way from one key to the next; and one that lacks one of them does not.
func TestSeveralDataKeys(t *testing.T) {
	o := encrypted(testOptions(t.TempDir()))
	seq, killed := uint64(0), ""
	open := func(o Options) *Log {
		t.Helper()
		l := openTest(t, o)
		if reason, ok := l.SetAside(); ok {
			t.Fatalf("set aside: %s", reason)
		}
		if at, err := verifyCrash(l); err != nil || at != seq {
			t.Fatalf("position %d, %v, want %d", at, err, seq)
		}
		return l
	}
	for life, batches := range []uint64{100, 100, 3} { // at last so few that Badger leaves the tables alone
		l := open(o)
		seq += batches
		must(t, crashWork(l, seq, func(uint64) {}))
		killed = t.TempDir()
		snapshot(t, o.Dir, killed)
		must(t, l.Close())
		if n := ageDataKeys(t, o.Dir, testKey); n != life+1 {
			t.Fatalf("%d data keys in life %d", n, life)
		}
	}
	if keys := dataKeysInUse(t, killed); len(keys) < 2 {
		t.Fatalf("the files are under the data keys %v: the test tests nothing", keys)
	}
	for _, dir := range []string{killed, o.Dir} {
		o := o
		o.Dir = dir
		must(t, open(o).Close())
		o.Key, o.OldKey = otherKey, testKey
		must(t, open(o).Close())
		o.Key, o.OldKey = testKey, otherKey // back
		must(t, open(o).Close())
		o.OldKey = nil
		must(t, open(o).Close())
	}
	// The registry of another store under the same key has a data key of the same number, and not the same one.
	another := encrypted(testOptions(t.TempDir()))
	must(t, openTest(t, another).Close())
	b, err := os.ReadFile(filepath.Join(another.Dir, storeName, registryName))
	must(t, err)
	for _, dir := range []string{killed, o.Dir} {
		o := o
		o.Dir = filepath.Join(t.TempDir(), "copy")
		must(t, copyDir(dir, o.Dir))
		must(t, os.WriteFile(filepath.Join(o.Dir, storeName, registryName), b, 0o600))
		if reason, ok := openTest(t, o).SetAside(); !ok {
			t.Error("the data keys of another store are taken")
		} else {
			t.Log(reason)
		}
	}
}

// dataKeysInUse are the numbers of those that tables and logs are under.
func dataKeysInUse(t testing.TB, dir string) map[uint64]bool {
	t.Helper()
	listed, err := readManifest(filepath.Join(dir, storeName, "MANIFEST"))
	must(t, err)
	keys := map[uint64]bool{}
	for _, table := range listed {
		keys[table.key] = true
	}
	for _, path := range glob(t, dir, "*.mem") {
		b, err := os.ReadFile(path)
		must(t, err)
		keys[binary.BigEndian.Uint64(b)] = true
	}
	return keys
}

// A registry of whatever length is read up to what one can have.
func TestHugeRegistry(t *testing.T) {
	o := encrypted(testOptions(t.TempDir()))
	must(t, openTest(t, o).Close())
	path := filepath.Join(o.Dir, storeName, registryName)
	must(t, os.Truncate(path, 1<<42)) // a hole
	must(t, Check(o.Dir, o.App, o.Cluster, o.Key, nil))
	l := openTest(t, o)
	if reason, ok := l.SetAside(); !ok {
		t.Error("it is taken")
	} else {
		t.Log(reason)
	}
}

// A registry that cannot be read matters to nobody whose store is in the clear but to Badger.
func TestRegistryInTheClear(t *testing.T) {
	o := testOptions(t.TempDir())
	must(t, openTest(t, o).Close())
	path := filepath.Join(o.Dir, storeName, registryName)
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o700))
	must(t, Check(o.Dir, o.App, o.Cluster, nil, nil))
	l := openTest(t, o)
	if _, ok := l.SetAside(); !ok {
		t.Error("it is taken")
	}
}

// However far the first start with a key came, the next one goes on, with nothing set aside; and without the key it is refused.
func TestFirstStartDies(t *testing.T) {
	o := encrypted(testOptions(t.TempDir()))
	l := openTest(t, o)
	whole := t.TempDir()
	must(t, copyDir(o.Dir, whole)) // killed: nothing was written yet, so that nothing moves
	must(t, l.Close())
	registry, err := os.ReadFile(filepath.Join(whole, storeName, registryName))
	must(t, err)
	logs := glob(t, whole, "*.mem")
	if len(registry) <= registryHeaderBytes || len(logs) != 1 {
		t.Fatalf("a registry of %d bytes, logs %q", len(registry), logs)
	}
	mem := filepath.Base(logs[0])
	put := func(name string, b []byte) func(string) {
		return func(dir string) { must(t, os.WriteFile(filepath.Join(dir, storeName, name), b, 0o600)) }
	}
	drop := func(names ...string) func(string) {
		return func(dir string) {
			for _, name := range names {
				must(t, os.RemoveAll(filepath.Join(dir, name)))
			}
		}
	}
	inStore := func(names ...string) (out []string) {
		for _, name := range names {
			out = append(out, filepath.Join(storeName, name))
		}
		return out
	}
	without := []func(string){drop(markName), drop(inStore(mem, "000001.vlog", "DISCARD")...)}
	opening := func(dir string) {
		rewriteJSON(t, dir, sessionName, func(v map[string]any) { v["phase"], v["attempt"] = phaseOpening, 1 })
	}
	for _, c := range []struct {
		name string
		do   []func(string)
	}{
		{"open", nil},
		{"opening", []func(string){opening}},
		{"no mark", []func(string){opening, drop(markName)}},
		{"log: no header", []func(string){opening, drop(markName), put(mem, make([]byte, 16<<20))}},
		{"log: no length", []func(string){opening, drop(markName), put(mem, nil)}},
		{"no log", append(without, opening)},
		{"no data key", append(without, opening, put(registryName, registry[:registryHeaderBytes]))},
		{"registry half written", append(without, opening, drop(inStore(registryName)...), put("REWRITE-KEYREGISTRY", registry[:9]))},
		{"no registry", append(without, opening, drop(inStore(registryName)...))},
		{"no MANIFEST", append(without, opening, drop(inStore(registryName, "MANIFEST")...))},
		{"no store", []func(string){opening, drop(markName, storeName)}},
		{"STATE only", []func(string){drop(markName, storeName, sessionName)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := o
			o.Dir = filepath.Join(t.TempDir(), "copy")
			must(t, copyDir(whole, o.Dir))
			for _, do := range c.do {
				do(o.Dir)
			}
			clear := o
			clear.Key = nil
			_, err := Open(clear)
			wantErr(t, err, ErrKey)
			l := openTest(t, o)
			if reason, ok := l.SetAside(); ok {
				t.Errorf("set aside: %s", reason)
			}
			must(t, crashWork(l, 3, func(uint64) {}))
			must(t, l.Close())
			l = openTest(t, o)
			if reason, ok := l.SetAside(); ok {
				t.Errorf("set aside: %s", reason)
			}
			if at, err := verifyCrash(l); err != nil || at != 3 {
				t.Errorf("position %d, %v", at, err)
			}
		})
	}
}
