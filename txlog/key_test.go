package txlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
)

var (
	testKey  = Key("0123456789abcdef0123456789ABCDEF")
	otherKey = Key("another key of32another key of32")
)

// encrypted are the options for a store under testKey.
func encrypted(o Options) Options {
	o.Key = testKey
	return o
}

// keysOf returns the data keys of a store of the tests.
func keysOf(t testing.TB, dir string) dataKeys {
	t.Helper()
	var st state
	if _, err := readJSON(dir, stateName, &st); err != nil {
		t.Fatal(err)
	}
	if st.Key == "" {
		return dataKeys{}
	}
	r, err := openRegistry(filepath.Join(dir, storeName), testKey)
	must(t, err)
	return dataKeys{r, true}
}

// The marker stands in keys, values and names; IDs are looked for as they are stored.
const secretText = "SECRET-of-account-4711"

// leaks lists the files of a directory that hold one of the texts.
func leaks(t testing.TB, dir string, texts ...[]byte) (found []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, text := range texts {
			if bytes.Contains(b, text) {
				found = append(found, fmt.Sprintf("%s: text %d", strings.TrimPrefix(path, dir+"/"), i))
			}
		}
		return nil
	}))
	return found
}

// secretBatches writes keys, values, IDs, runs and a filter that are looked for afterwards, more of them than a
// memtable holds.
func secretBatches(t testing.TB, l *Log) (texts [][]byte) {
	t.Helper()
	task := mustTask(t, l, "t/0")
	op := task.Operator("d")
	for seq := range uint64(40) {
		must(t, task.Apply(&record.Batch{
			Blocks: []record.OperatorBlock{block("d", seq/10, int(seq), ids(seq, 500))},
			State: []record.StateChange{{
				Store: "s", Key: fmt.Appendf(nil, "%s-%d", secretText, seq), Value: bytes.Repeat([]byte(secretText+"-value "), 20_000),
			}},
			Position: position(seq),
		}))
	}
	must(t, sealAll(op, 0, 8, bytes.Repeat([]byte("the filter's bits"), 1000)))
	return [][]byte{
		[]byte(secretText), []byte("the filter's bits"), ids(1, 500)[:32], ids(15, 500)[:32], ids(39, 500)[:32], // of runs, of tables, of the log
		[]byte("bills-ids-changelog"), // of position records
	}
}

// Nothing that is of records stands in any file of the directory, after a kill and after a clean stop; and the
// search would find it.
func TestNothingInTheClear(t *testing.T) {
	for _, key := range []Key{nil, testKey[:16], testKey[:24], testKey} {
		t.Run(fmt.Sprintf("key of %d bytes", len(key)), func(t *testing.T) {
			o := testOptions(t.TempDir())
			o.Key = key
			l := openTest(t, o)
			texts := secretBatches(t, l)
			killed := t.TempDir()
			snapshot(t, o.Dir, killed)
			must(t, l.Close())
			for _, dir := range []string{killed, o.Dir} {
				found := leaks(t, dir, texts...)
				if len(key) > 0 && len(found) > 0 {
					t.Errorf("in the clear: %q", found)
				}
				// Without a key all of it is found, or the search is worth nothing.
				for i := range texts {
					if len(key) == 0 && !strings.Contains(fmt.Sprint(found), fmt.Sprint("text ", i)) {
						t.Errorf("text %d is in none of the files: %q", i, found)
					}
				}
			}
			if len(glob(t, killed, "*.sst")) == 0 {
				t.Error("there were no tables")
			}
		})
	}
}

// What is set aside stays as it was, encrypted.
func TestAsideStaysEncrypted(t *testing.T) {
	o := encrypted(testOptions(t.TempDir()))
	l := openTest(t, o)
	texts := secretBatches(t, l)
	must(t, l.Close())
	remove(t, filepath.Join(o.Dir, storeName, registryName))
	l = openTest(t, o)
	if reason, ok := l.SetAside(); !ok || !strings.Contains(reason, registryName+" is gone") {
		t.Fatalf("set aside: %v %s", ok, reason)
	}
	secretBatches(t, l)
	must(t, l.Close()) // Badger removes files at any time
	if _, err := os.Stat(filepath.Join(o.Dir, asideName(1))); err != nil {
		t.Error(err)
	}
	if found := leaks(t, o.Dir, texts...); len(found) > 0 {
		t.Errorf("in the clear: %q", found)
	}
}

// A key that does not fit is refused before anything is touched, whatever the store is like.
func TestWrongKey(t *testing.T) {
	images := map[bool]images{false: makeImages(t, nil), true: makeImages(t, testKey)}
	broken := func(image, file string, do func(testing.TB, string)) string {
		dir := t.TempDir()
		must(t, copyDir(image, dir))
		do(t, filepath.Join(dir, file))
		return dir
	}
	registry := filepath.Join(storeName, registryName)
	for _, c := range []struct {
		name, image string
		key, old    Key
		says        string
	}{
		{"none for an encrypted store", images[true].killed, nil, nil, "is encrypted, and no key is given"},
		{"none for an encrypted store, closed", images[true].closed, nil, nil, "is encrypted, and no key is given"},
		{"one for a store in the clear", images[false].killed, testKey, nil, "is not encrypted, and a key is given"},
		{"one and an old one for a store in the clear", images[false].closed, otherKey, testKey, "is not encrypted"},
		{"another", images[true].killed, otherKey, nil, "another key"},
		{"another, closed", images[true].closed, otherKey, nil, "another key"},
		{"shorter", images[true].killed, testKey[:16], nil, "another key"},
		{"two others", images[true].killed, otherKey, testKey[:24], "another key"},
		{"another, registry lost", broken(images[true].killed, registry, remove), otherKey, nil, "another key"},
		{"another, registry damaged", broken(images[true].killed, registry, flip(0)), otherKey, nil, "another key"},
		{"none, STATE lost", broken(images[true].killed, stateName, remove), nil, nil, "is encrypted, and no key is given"},
		{"none, STATE damaged", broken(images[true].closed, stateName, flip(0.5)), nil, nil, "is encrypted, and no key is given"},
		{"one, STATE of a store in the clear lost", broken(images[false].closed, stateName, remove), testKey, nil, "is not encrypted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions(c.image)
			o.Key, o.OldKey = c.key, c.old
			before := listing(t, c.image)
			l, err := Open(o)
			if err == nil {
				reason, _ := l.SetAside()
				_ = l.Close()
				t.Fatalf("opened; set aside: %q", reason)
			}
			wantErr(t, err, ErrKey)
			for _, text := range []string{c.says, fmt.Sprintf("rm -r %q", c.image)} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error does not say %q: %v", text, err)
				}
			}
			for _, k := range []Key{testKey, otherKey} {
				if strings.Contains(err.Error(), string(k)) {
					t.Errorf("the key is in the error: %v", err)
				}
			}
			if after := listing(t, c.image); !sameButLock(before, after) {
				t.Errorf("the directory was changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
	// The remedy of the error.
	dir := t.TempDir()
	must(t, copyDir(images[false].killed, dir))
	must(t, os.RemoveAll(dir))
	l := openTest(t, encrypted(testOptions(dir)))
	if reason, ok := l.SetAside(); ok {
		t.Errorf("set aside: %s", reason)
	}
	must(t, crashWork(l, 5, func(uint64) {}))
}

// A store goes from one key to the next without being restored, at whatever moment the process dies.
func TestRekey(t *testing.T) {
	im := makeImages(t, testKey)
	for _, image := range []string{im.killed, im.closed} {
		dir := t.TempDir()
		must(t, copyDir(image, dir))
		o := testOptions(dir)
		o.Key, o.OldKey = otherKey, testKey
		open := func(what string, o Options) {
			t.Helper()
			l := openTest(t, o)
			if reason, ok := l.SetAside(); ok {
				t.Fatalf("%s: set aside: %s", what, reason)
			}
			if seq, err := verifyCrash(l); err != nil || seq != imageBatches {
				t.Fatalf("%s: position %d, %v", what, seq, err)
			}
			must(t, l.Close())
		}
		// Dead after the registry was written, and before STATE was: it names the old key still.
		half := t.TempDir()
		must(t, copyDir(dir, half))
		rest := o
		rest.Dir = half
		must(t, (&Log{o: withLogger(rest)}).rekey(testKey))
		open("again with both", rest)
		must(t, os.RemoveAll(half))
		must(t, copyDir(dir, half))
		must(t, (&Log{o: withLogger(rest)}).rekey(testKey))
		rest.OldKey = nil
		open("again with the new one", rest)

		open("with both", o)
		open("with both again", o)
		o.OldKey = nil
		open("with the new one", o)
		o.Key = testKey
		_, err := Open(o)
		wantErr(t, err, ErrKey)
		o.Key, o.OldKey = testKey[:16], otherKey // another length
		open("with a shorter one", o)
	}
}

func withLogger(o Options) Options {
	if err := o.fill(); err != nil {
		panic(err)
	}
	return o
}

// A key is believed only with its length, and is shown nowhere.
func TestKeys(t *testing.T) {
	dir := t.TempDir()
	for n := range 40 {
		path := filepath.Join(dir, "key")
		must(t, os.WriteFile(path, bytes.Repeat([]byte{'k'}, n), 0o600))
		k, err := ReadKey(path)
		if good := n == 16 || n == 24 || n == 32; good != (err == nil) || good && len(k) != n {
			t.Errorf("key of %d bytes: %d, %v", n, len(k), err)
		} else if !good && (!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "openssl rand")) {
			t.Errorf("no place or no remedy: %v", err)
		}
		o := testOptions(filepath.Join(dir, fmt.Sprint(n)))
		o.Key = k
		if n > 0 && err != nil {
			o.Key = bytes.Repeat([]byte{'k'}, n)
			if _, err := Open(o); err == nil {
				t.Errorf("opened with a key of %d bytes", n)
			}
		}
	}
	if _, err := ReadKey(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "none") {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := ReadKey("/dev/zero"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file without an end: %v", err)
	}
	o := testOptions(dir)
	if o.OldKey = testKey; o.fill() == nil {
		t.Error("an old key without a key is taken")
	}
	o = encrypted(o)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		text := fmt.Sprintf(verb, o)
		for _, form := range []string{string(testKey), fmt.Sprintf("%x", []byte(testKey)), "48 49 50"} {
			if strings.Contains(text, form) {
				t.Errorf("%s shows the key: %s", verb, text)
			}
		}
	}
}

// A registry that ends anywhere but behind a data key, or that is flipped anywhere, is damage: Badger would take some of these for
// a shorter one, or believe a length of gigabytes.
func TestRegistry(t *testing.T) {
	o := encrypted(testOptions(t.TempDir()))
	must(t, openTest(t, o).Close())
	good, err := os.ReadFile(glob(t, o.Dir, registryName)[0])
	must(t, err)
	dir := t.TempDir()
	open := func(b []byte) (allocated uint64, err error) {
		must(t, os.WriteFile(filepath.Join(dir, registryName), b, 0o600))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = openRegistry(dir, testKey)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc, err
	}
	if _, err := open(good); err != nil {
		t.Fatal(err)
	}
	if len(good) <= registryHeaderBytes {
		t.Fatal("there is no data key in it")
	}
	for n := range good {
		if _, err := open(good[:n]); n != registryHeaderBytes && !errors.Is(err, ErrDamaged) {
			t.Errorf("cut to %d of %d bytes: %v", n, len(good), err)
		}
		for bit := range 8 {
			b := bytes.Clone(good)
			b[n] ^= 1 << bit
			if allocated, err := open(b); !errors.Is(err, ErrDamaged) || allocated > 1<<20 {
				t.Errorf("bit %d of byte %d flipped: %v, with %d bytes of memory", bit, n, err, allocated)
			}
		}
	}
}

// A directory in the clear keeps the format that older programs read; they refuse one that is encrypted,
// which they would set aside, and make anew in the clear.
func TestFormatOfEncrypted(t *testing.T) {
	for key, want := range map[string]int{"": 1, string(testKey): 2} {
		o := testOptions(t.TempDir())
		o.Key = Key(key)
		must(t, openTest(t, o).Close())
		var st state
		_, err := readJSON(o.Dir, stateName, &st)
		must(t, err)
		if st.Format != want {
			t.Errorf("with a key of %d bytes the format is %d, want %d", len(key), st.Format, want)
		}
	}
}
