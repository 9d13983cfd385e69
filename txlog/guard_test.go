package txlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
)

// outcome is what must come of a damage.
type outcome int

const (
	aside  outcome = iota // set aside, with a reason
	whole                 // nothing is missing
	prefix                // an earlier position, with exactly its content
	either                // set aside, or a prefix
)

// Every damage is either found at the start or harmless: never is a position served without what
// belongs to it. (CRASH 36)
func TestDamage(t *testing.T) {
	t.Run("clear", func(t *testing.T) { testDamage(t, makeImages(t, nil)) })
	t.Run("encrypted", func(t *testing.T) { testDamage(t, makeImages(t, testKey)) })
}

func testDamage(t *testing.T, im images) {
	type damage struct {
		name    string
		image   string
		pattern string // of the file; the last one that matches, all of them with a "+" before it
		do      func(testing.TB, string)
		want    outcome
	}
	cases := []damage{
		{"nothing, after a kill", im.killed, "MANIFEST", func(testing.TB, string) {}, whole},
		{"nothing, after a clean stop", im.closed, "MANIFEST", func(testing.TB, string) {}, whole},
		{"nothing, two logs", im.split, "MANIFEST", func(testing.TB, string) {}, whole},
		{"older log: zero page", im.split, "older log", zeroPage(0.5), aside},
		{"older log: flipped bit", im.split, "older log", flip(0.5), aside},
		{"older log: truncated", im.split, "older log", truncate(0.5), aside},
		{"older log: deleted", im.split, "older log", remove, aside},
		{"newest log: zero page", im.split, "newest log", zeroPage(0.5), prefix},
		{"newest log: flipped bit", im.split, "newest log", flip(0.5), prefix},
		{"newest log: truncated", im.split, "newest log", truncate(0.5), prefix},
		{"newest log: deleted", im.split, "newest log", remove, prefix},
		{"all logs deleted", im.killed, "+*.mem", remove, prefix},
		{"all logs truncated to nothing", im.killed, "+*.mem", truncate(0), prefix},
		{"key registry truncated", im.killed, "KEYREGISTRY", truncate(0.5), aside},
		{"key registry deleted", im.killed, "KEYREGISTRY", remove, whole},
		{"value log truncated", im.killed, "*.vlog", truncate(0), whole},
		{"value log deleted", im.killed, "*.vlog", remove, whole},
		{"DISCARD truncated", im.killed, "DISCARD", truncate(0.5), either},
		{"DISCARD deleted", im.killed, "DISCARD", remove, whole},
	}
	for _, image := range []struct{ name, dir string }{{"killed", im.killed}, {"closed", im.closed}} {
		for _, c := range []damage{
			{"MANIFEST deleted", "", "MANIFEST", remove, aside},
			{"MANIFEST truncated to nothing", "", "MANIFEST", truncate(0), aside},
			{"MANIFEST truncated to its magic", "", "MANIFEST", func(t testing.TB, p string) { must(t, os.Truncate(p, 16)) }, aside},
			{"MANIFEST truncated", "", "MANIFEST", truncate(0.7), aside},
			{"MANIFEST without its last entry", "", "MANIFEST", cutEntry, aside},
			{"MANIFEST flipped", "", "MANIFEST", flip(0.6), aside},
			{"table truncated", "", "*.sst", truncate(0.9), aside},
			{"table truncated to nothing", "", "*.sst", truncate(0), aside},
			{"table truncated by one byte", "", "*.sst", func(t testing.TB, p string) {
				info, err := os.Stat(p)
				must(t, err)
				must(t, os.Truncate(p, info.Size()-1))
			}, aside},
			{"table deleted", "", "*.sst", remove, aside},
			{"all tables deleted", "", "+*.sst", remove, aside},
			{"table flipped at the start", "", "*.sst", flip(0), aside},
			{"table flipped in the middle", "", "*.sst", flip(0.5), aside},
			{"table flipped in its index", "", "*.sst", flip(0.999), aside},
			{"table with a zero page", "", "*.sst", zeroPage(0.3), aside},
			{"table with a zero page at the end", "", "*.sst", zeroPage(0.99), aside},
			{"store deleted", "", "+*", remove, aside},
		} {
			c.name, c.image = image.name+": "+c.name, image.dir
			cases = append(cases, c)
		}
	}
	for i, c := range cases {
		if im.key != nil && c.pattern == registryName && c.image == im.killed && c.name == "key registry deleted" {
			cases[i].want = aside // the data keys are in it
		}
	}
	if im.key != nil {
		at := func(n int) func(testing.TB, string) {
			return func(t testing.TB, p string) {
				b, err := os.ReadFile(p)
				must(t, err)
				b[n] ^= 0x10
				must(t, os.WriteFile(p, b, 0o600))
			}
		}
		cut := func(n int64) func(testing.TB, string) {
			return func(t testing.TB, p string) { must(t, os.Truncate(p, n)) }
		}
		cases = append(cases, []damage{
			{"key registry: empty", im.killed, registryName, cut(0), aside},
			{"key registry: only its IV", im.killed, registryName, cut(16), aside},
			{"key registry: without its data keys", im.killed, registryName, cut(int64(registryHeaderBytes)), aside},
			{"key registry: ends within a length", im.killed, registryName, cut(int64(registryHeaderBytes) + 3), aside},
			{"key registry: flipped in its IV", im.killed, registryName, at(3), aside},
			{"key registry: flipped in its text", im.killed, registryName, at(20), aside},
			{"key registry: flipped in a length, which becomes 256 MB", im.killed, registryName, at(registryHeaderBytes), aside},
			{"key registry: flipped in a checksum", im.killed, registryName, at(registryHeaderBytes + 5), aside},
			{"key registry: flipped in a data key", im.killed, registryName, at(registryHeaderBytes + 20), aside},
			{"closed: key registry deleted", im.closed, registryName, remove, aside},
			{"closed: key registry flipped in its text", im.closed, registryName, at(20), aside},
			{"newest log: flipped in the number of its data key", im.split, "newest log", at(6), aside},
			{"newest log: number of its data key 0", im.split, "newest log", overwriteAt(0, make([]byte, 8)), aside},
			{"newest log: flipped in its IV", im.split, "newest log", at(10), prefix},
			{"older log: flipped in its IV", im.split, "older log", at(10), aside},
		}...)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, copyDir(c.image, dir))
			for _, path := range damagedFiles(t, dir, c.pattern) {
				c.do(t, path)
			}
			checkDamaged(t, im.options(dir), c.want)
		})
	}
}

func damagedFiles(t testing.TB, dir, pattern string) []string {
	t.Helper()
	switch pattern {
	case "newest log":
		return []string{newestLog(t, dir)}
	case "older log":
		newest := newestLog(t, dir)
		logs := glob(t, dir, "*.mem")
		return []string{logs[slices.Index(logs, newest)-1]}
	}
	paths := glob(t, dir, strings.TrimPrefix(pattern, "+"))
	if len(paths) == 0 {
		t.Fatalf("nothing matches %s", pattern)
	}
	if strings.HasPrefix(pattern, "+") {
		return paths
	}
	return paths[len(paths)-1:]
}

// checkDamaged opens a damaged directory and checks what came of it, and that the log is of use
// afterwards.
func checkDamaged(t testing.TB, o Options, want outcome) {
	t.Helper()
	dir := o.Dir
	l, err := Open(o)
	must(t, err)
	defer l.Close()
	reason, set := l.SetAside()
	if set && want != aside && want != either || !set && want == aside {
		t.Fatalf("set aside: %v %s", set, reason)
	}
	seq, err := verifyCrash(l)
	must(t, err)
	plain := mustTask(t, l, "plain")
	p, _ := plain.Position()
	n := uint64(0)
	must(t, plain.Range("n", nil, nil, func(k, _ []byte) bool { n++; return string(k) == fmt.Sprintf("%04d", n) }))
	switch {
	case p.Sequence != n:
		t.Fatalf("position is %d, %d states are there", p.Sequence, n)
	case set && (seq != 0 || n != 0):
		t.Fatalf("set aside, but at position %d and %d", seq, n)
	case !set && want == whole && (seq != imageBatches || n != imageBatches):
		t.Fatalf("position %d and %d, want %d", seq, n, imageBatches)
	case !set && want == prefix && seq >= imageBatches:
		t.Fatalf("position %d: the damage did nothing", seq)
	}
	if set {
		if _, err := os.Stat(filepath.Join(dir, asideName(1))); err != nil && !strings.Contains(reason, "gone") {
			t.Errorf("nothing was kept: %v", err)
		}
		t.Log(reason)
	}
	must(t, crashWork(l, seq+30, func(uint64) {}))
	must(t, l.Close())
	l = openTest(t, o)
	if reason, again := l.SetAside(); again {
		t.Fatalf("set aside again: %s", reason)
	}
	if again, err := verifyCrash(l); err != nil || again != seq+30 {
		t.Fatalf("afterwards: position %d, %v", again, err)
	}
}

// What Badger by itself does with some of these damages: it opens, and has less. Were this to
// change, the guard could go.
func TestBadgerDoesNotNotice(t *testing.T) {
	im := makeImages(t, nil)
	count := func(image string, pattern string, do func(testing.TB, string)) (int, error) {
		dir := t.TempDir()
		must(t, copyDir(image, dir))
		for _, path := range damagedFiles(t, dir, pattern) {
			do(t, path)
		}
		o := testOptions(dir)
		must(t, o.fill())
		k, err := openKV(dir, o, o.MemTableBytes, o.Logger)
		if err != nil {
			return 0, err
		}
		n := 0
		must(t, k.each([]byte{kindState}, nil, func(entry) ([]byte, error) { n++; return nil, nil }))
		return n, k.close()
	}
	all, err := count(im.killed, "MANIFEST", func(testing.TB, string) {})
	must(t, err)
	for _, c := range []struct {
		name, image, pattern string
		do                   func(testing.TB, string)
	}{
		{"MANIFEST deleted", im.closed, "MANIFEST", remove},
		{"MANIFEST without its last entry", im.killed, "MANIFEST", cutEntry},
		{"older log with a zero page", im.split, "older log", zeroPage(0.5)},
		{"older log deleted", im.split, "older log", remove},
	} {
		n, err := count(c.image, c.pattern, c.do)
		t.Logf("%s: %d of %d states, error %v", c.name, n, all, err)
		if err != nil || n >= all {
			t.Errorf("%s: Badger notices now: %d of %d states, error %v", c.name, n, all, err)
		}
	}
}

// Random damage of random files.
func TestRandomDamage(t *testing.T) {
	n := randomDamages
	if testing.Short() {
		n = 10
	}
	t.Run("clear", func(t *testing.T) { testRandomDamage(t, makeImages(t, nil), n) })
	t.Run("encrypted", func(t *testing.T) { testRandomDamage(t, makeImages(t, testKey), n/2) })
}

func testRandomDamage(t *testing.T, im images, n int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	found := 0
	for range n {
		dir := t.TempDir()
		must(t, copyDir([]string{im.killed, im.closed, im.split}[rng.IntN(3)], dir))
		var files []string
		patterns := []string{"*.sst", "*.mem", "MANIFEST"}
		if im.key != nil {
			patterns = append(patterns, registryName)
		}
		for _, pattern := range patterns {
			files = append(files, glob(t, dir, pattern)...)
		}
		path := files[rng.IntN(len(files))]
		kinds := []func(testing.TB, string){
			truncate(rng.Float64()), flip(rng.Float64()), zeroPage(rng.Float64()), remove,
		}
		kind := rng.IntN(len(kinds))
		kinds[kind](t, path)
		l, err := Open(im.options(dir))
		must(t, err)
		seq, err := verifyCrash(l)
		if err != nil {
			t.Fatalf("damage %d of %s: %v", kind, filepath.Base(path), err)
		}
		if reason, set := l.SetAside(); set {
			found++
			if seq != 0 || reason == "" {
				t.Fatalf("set aside (%s) at position %d", reason, seq)
			}
		}
		must(t, l.Close())
		must(t, os.RemoveAll(dir))
	}
	t.Logf("%d of %d damages were found, the others were harmless", found, n)
}

// rewriteJSON changes one of the small files and keeps its checksum right.
func rewriteJSON(t testing.TB, dir, name string, change func(map[string]any)) {
	t.Helper()
	v := map[string]any{}
	if ok, err := readJSON(dir, name, &v); !ok || err != nil {
		t.Fatal(ok, err)
	}
	change(v)
	must(t, writeJSON(dir, name, v))
}

// Each reason to refuse leaves the directory as it is. (CRASH 35)
func TestRefuse(t *testing.T) {
	dir := t.TempDir()
	l := openTest(t, testOptions(dir))
	must(t, crashWork(l, 3, func(uint64) {}))
	must(t, l.Close())
	newer := t.TempDir()
	must(t, copyDir(dir, newer))
	rewriteJSON(t, newer, stateName, func(v map[string]any) { v["format"] = dirFormat + 1 })
	for _, c := range []struct {
		name, dir string
		change    func(*Options)
		want      error
		text      string
	}{
		{"other app", dir, func(o *Options) { o.App = "pv" }, ErrOtherApp, `"bills"`},
		{"other cluster", dir, func(o *Options) { o.Cluster = "c2" }, ErrOtherCluster, `"c1"`},
		{"newer format", newer, func(*Options) {}, ErrNewerFormat, "format 3"},
		{"newer format of another app", newer, func(o *Options) { o.App = "pv" }, ErrNewerFormat, "format 3"},
		{"full disk", dir, func(o *Options) { o.MinFreeBytes = 1 << 62 }, ErrDiskFull, "MB free"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions(c.dir)
			c.change(&o)
			before := listing(t, c.dir)
			_, err := Open(o)
			wantErr(t, err, c.want)
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("error does not say %s: %v", c.text, err)
			}
			if after := listing(t, c.dir); !sameButLock(before, after) {
				t.Errorf("the directory was changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
	o := testOptions(dir)
	o.Cluster = ""
	l = openTest(t, o)
	if seq, err := verifyCrash(l); seq != 3 || err != nil {
		t.Errorf("an unknown cluster is not checked: position %d, %v", seq, err)
	}
	for _, bad := range []Options{{App: "a"}, {Dir: t.TempDir()}, {Dir: t.TempDir(), App: "a", MemTableBytes: 1}} {
		if l, err := Open(bad); err == nil {
			t.Errorf("options %+v are accepted", bad)
			_ = l.Close()
		}
	}
}

// sameButLock compares listings without the lock file, which is opened and shortened in any case.
func sameButLock(a, b string) bool {
	drop := func(s string) []string {
		return slices.DeleteFunc(strings.Split(s, "\n"), func(l string) bool { return strings.Contains(l, "/"+lockName+" ") })
	}
	return slices.Equal(drop(a), drop(b))
}

// The small files: what each says is believed only if it is whole and fits the rest.
func TestSmallFiles(t *testing.T) {
	im := makeImages(t, nil)
	for _, c := range []struct {
		name  string
		image string
		do    func(dir string)
		want  outcome
	}{
		{"STATE deleted", im.closed, func(d string) { remove(t, filepath.Join(d, stateName)) }, aside},
		{"STATE flipped", im.closed, func(d string) { flip(0.5)(t, filepath.Join(d, stateName)) }, aside},
		{"STATE empty", im.closed, func(d string) { truncate(0)(t, filepath.Join(d, stateName)) }, aside},
		{"SESSION deleted", im.closed, func(d string) { remove(t, filepath.Join(d, sessionName)) }, aside},
		{"SESSION flipped", im.killed, func(d string) { flip(0.5)(t, filepath.Join(d, sessionName)) }, aside},
		{"SESSION names another version", im.closed, func(d string) {
			rewriteJSON(t, d, sessionName, func(v map[string]any) { v["version"] = 5 })
		}, aside},
		{"MARK flipped", im.killed, func(d string) { flip(0.5)(t, filepath.Join(d, markName)) }, aside},
		{"MARK deleted", im.killed, func(d string) { remove(t, filepath.Join(d, markName)) }, whole},
		{"other boot after a kill", im.killed, func(d string) {
			rewriteJSON(t, d, sessionName, func(v map[string]any) { v["boot"] = "another" })
		}, aside},
		{"unknown boot after a kill", im.killed, func(d string) {
			rewriteJSON(t, d, sessionName, func(v map[string]any) { v["boot"] = "" })
		}, aside},
		{"other boot after a kill, commits synced", im.killed, func(d string) {
			rewriteJSON(t, d, sessionName, func(v map[string]any) { v["boot"], v["power"] = "another", true })
		}, whole},
		{"other boot after a clean stop", im.closed, func(d string) {
			rewriteJSON(t, d, sessionName, func(v map[string]any) { v["boot"] = "another" })
		}, whole},
		{"died in its last attempt", im.killed, func(d string) {
			rewriteJSON(t, d, sessionName, func(v map[string]any) { v["phase"], v["attempt"] = "opening", maxOpenAttempts })
		}, aside},
		{"died in an attempt before", im.killed, func(d string) {
			rewriteJSON(t, d, sessionName, func(v map[string]any) { v["phase"], v["attempt"] = "opening", maxOpenAttempts-1 })
		}, whole},
		{"empty log as after a kill in its creation", im.killed, func(d string) {
			must(t, os.WriteFile(filepath.Join(d, storeName, "09999.mem"), nil, 0o644))
		}, whole},
		{"table that is not in the MANIFEST", im.killed, func(d string) {
			must(t, os.WriteFile(filepath.Join(d, storeName, "999999.sst"), []byte("half"), 0o644))
		}, whole},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, copyDir(c.image, dir))
			c.do(dir)
			checkDamaged(t, im.options(dir), c.want)
		})
	}
}

// A memtable smaller than that of the logs left over would end the process (log.Fatal in Badger).
func TestSmallerMemTable(t *testing.T) {
	large := testOptions(t.TempDir())
	large.MemTableBytes = 3 * minMemTableBytes
	l := openTest(t, large)
	must(t, crashWork(l, 150, func(uint64) {})) // more than a small memtable holds
	for _, lieAbout := range []string{"", stateName} {
		dir := t.TempDir()
		must(t, copyDir(large.Dir, dir))
		if lieAbout != "" { // then the size of the file says it
			rewriteJSON(t, dir, stateName, func(v map[string]any) { v["memtable_bytes"] = minMemTableBytes })
		}
		small, err := Open(testOptions(dir))
		must(t, err)
		if small.kv.memTableBytes < large.MemTableBytes {
			t.Errorf("opened with a memtable of %d", small.kv.memTableBytes)
		}
		if reason, ok := small.SetAside(); ok {
			t.Errorf("set aside: %s", reason)
		}
		if seq, err := verifyCrash(small); seq != 150 || err != nil {
			t.Errorf("position %d, %v", seq, err)
		}
		must(t, small.Close())
		small = openTest(t, testOptions(dir))
		if small.kv.memTableBytes != minMemTableBytes {
			t.Errorf("after a clean stop the memtable is still %d", small.kv.memTableBytes)
		}
	}
}

// A position record that promises more than there is, in each way.
func TestCountersAreChecked(t *testing.T) {
	build := func(t *testing.T) (*Log, *Task) {
		l := openTest(t, testOptions(t.TempDir()))
		must(t, crashWork(l, 70, func(uint64) {}))
		task := mustTask(t, l, "t/0")
		op := task.Operator("d")
		if gens, _ := op.Generations(); !gens[0].Sealed {
			must(t, sealAll(op, gens[0].Number, 8, fmt.Append(nil, "filter of ", gens[0].Number)))
		}
		for left := true; left; {
			var err error
			left, err = l.Sweep(sweepAll)
			must(t, err)
		}
		return l, task
	}
	drop := func(kind byte, n int) func(*testing.T, *Log, *Task) {
		return func(t *testing.T, l *Log, task *Task) {
			var keys [][]byte
			must(t, l.kv.each(taskKey(kind, task.number()), nil, func(e entry) ([]byte, error) {
				keys = append(keys, bytes.Clone(e.key))
				return nil, nil
			}))
			must(t, l.kv.commit([]write{{key: keys[n%len(keys)]}}))
		}
	}
	shorten := func(kind byte) func(*testing.T, *Log, *Task) {
		return func(t *testing.T, l *Log, task *Task) {
			var key []byte
			must(t, l.kv.each(taskKey(kind, task.number()), nil, func(e entry) ([]byte, error) {
				key = bytes.Clone(e.key)
				return nil, errStop
			}))
			v, err := l.kv.get(key)
			must(t, err)
			must(t, l.kv.commit([]write{{key, v[:len(v)-record.HashBytes]}}))
		}
	}
	for name, do := range map[string]func(*testing.T, *Log, *Task){
		"block missing": drop(kindBlock, 3), "first block missing": drop(kindBlock, 0),
		"seal marker missing": drop(kindSeal, 0), "run missing": drop(kindRun, 2),
		"block shortened": shorten(kindBlock), "run shortened": shorten(kindRun),
		"seal marker shortened": shorten(kindSeal), "position shortened": shorten(kindPosition),
	} {
		t.Run(name, func(t *testing.T) {
			l, task := build(t)
			do(t, l, task)
			wantErr(t, task.Check(), ErrDamaged)
			must(t, l.Close())
			l = openTest(t, l.o)
			if reason, ok := l.SetAside(); !ok || !strings.Contains(reason, `task "t/0"`) {
				t.Errorf("set aside: %v %s", ok, reason)
			}
		})
	}
	t.Run("filter missing or damaged", func(t *testing.T) {
		for _, do := range []func(*testing.T, *Log, *Task){drop(kindFilter, 0), func(t *testing.T, l *Log, task *Task) {
			op := task.Operator("d")
			gens, _ := op.Generations()
			key := partKey(kindFilter, task.number(), op.name.number, gens[0].Number, 0)
			must(t, l.kv.commit([]write{{key, fmt.Append(nil, "fIlter of ", gens[0].Number)}}))
		}} {
			l, task := build(t)
			do(t, l, task)
			l = reopen(t, l) // not set aside: it is built again from the runs
			op := mustTask(t, l, "t/0").Operator("d")
			gens, err := op.Generations()
			must(t, err)
			_, err = op.Filter(gens[0].Number)
			wantErr(t, err, ErrDamaged)
			if got := runsOf(t, op, gens[0].Number, gens[0].Slots); len(got) == 0 {
				t.Error("no runs")
			}
		}
	})
}

// At most two stores are kept, the newest first, and none when the disk is full.
func TestAsideCopies(t *testing.T) {
	dir := t.TempDir()
	for i := range 4 {
		l := openTest(t, testOptions(dir))
		task := mustTask(t, l, "t")
		must(t, task.Apply(&record.Batch{Position: position(uint64(i + 1))}))
		must(t, l.Close())
		must(t, os.WriteFile(filepath.Join(dir, storeName, "number"), fmt.Append(nil, i), 0o644))
		must(t, os.Remove(filepath.Join(dir, storeName, "MANIFEST")))
	}
	l := openTest(t, testOptions(dir))
	for n, want := range map[int]string{1: "3", 2: "2"} {
		got, err := os.ReadFile(filepath.Join(dir, asideName(n), "number"))
		if err != nil || string(got) != want {
			t.Errorf("copy %d is number %q, %v", n, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, asideName(3))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a third copy is kept: %v", err)
	}
	id := l.InstanceID()
	must(t, l.Close())
	o := testOptions(dir)
	o.MinFreeBytes = 1 << 62
	_, err := Open(o)
	wantErr(t, err, ErrDiskFull)
	if _, err := os.Stat(filepath.Join(dir, asideName(1))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("on a full disk the copies are still there: %v", err)
	}
	l = openTest(t, testOptions(dir))
	if l.InstanceID() != id {
		t.Errorf("the instance ID changed from %q to %q", id, l.InstanceID())
	}
}

func TestInstanceID(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openTest(t, o)
	drawn := l.InstanceID()
	if len(drawn) != 16 {
		t.Errorf("instance ID %q", drawn)
	}
	l = reopen(t, l)
	if l.InstanceID() != drawn {
		t.Errorf("instance ID changed to %q", l.InstanceID())
	}
	must(t, l.SetInstanceID("host-1"))
	if err := l.SetInstanceID(""); err == nil {
		t.Error("an empty instance ID is accepted")
	}
	l = reopen(t, l)
	if l.InstanceID() != "host-1" {
		t.Errorf("instance ID is %q", l.InstanceID())
	}
	var st state
	b, err := os.ReadFile(filepath.Join(o.Dir, stateName))
	must(t, err)
	line, _, _ := bytes.Cut(b, []byte("\n"))
	must(t, json.Unmarshal(line, &st))
	if st.App != "bills" || st.Instance != "host-1" || st.Format != clearFormat {
		t.Errorf("STATE is %+v", st)
	}
}

// A task without IDs has no counters that would miss its batches: there the versions tell.
func TestStatesOnly(t *testing.T) {
	live, dir := t.TempDir(), t.TempDir()
	l := openTest(t, testOptions(live))
	task := mustTask(t, l, "plain")
	for seq := range uint64(300) {
		must(t, task.Apply(&record.Batch{
			State:    []record.StateChange{{Store: "n", Key: fmt.Append(nil, seq), Value: bytes.Repeat([]byte("v"), 500)}},
			Position: position(seq),
		}))
	}
	snapshot(t, live, dir)
	splitLog(t, dir, newestLog(t, dir))
	for _, path := range damagedFiles(t, dir, "older log") {
		zeroPage(0.5)(t, path)
	}
	l = openTest(t, testOptions(dir))
	if reason, ok := l.SetAside(); !ok || !strings.Contains(reason, "goes on at version") {
		t.Errorf("set aside: %v %s", ok, reason)
	}
}

// Another boot of the machine is trusted only after a clean stop, or if every commit was synced. (CRASH 12)
func TestOtherBoot(t *testing.T) {
	for _, power := range []bool{false, true} {
		o := testOptions(t.TempDir())
		o.Power = power
		o.BootID = func() string { return "first" }
		l := openTest(t, o)
		must(t, crashWork(l, 50, func(uint64) {}))
		killed := o
		killed.Dir = t.TempDir()
		snapshot(t, o.Dir, killed.Dir)
		must(t, l.Close())
		for _, c := range []struct {
			name string
			o    Options
			want bool // content is trusted
		}{{"kill", killed, power}, {"clean stop", o, true}} {
			c.o.BootID = func() string { return "second" }
			l, err := Open(c.o)
			must(t, err)
			reason, set := l.SetAside()
			if set == c.want {
				t.Errorf("after a %s with power %v set aside is %v (%s)", c.name, power, set, reason)
			}
			if seq, err := verifyCrash(l); err != nil || c.want && seq != 50 {
				t.Errorf("after a %s with power %v: position %d, %v", c.name, power, seq, err)
			}
			must(t, l.Close())
		}
	}
}

// The mark follows a MANIFEST that grows and one that is replaced, as Badger does when it rewrites it.
func TestMark(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, storeName), 0o755))
	manifest := filepath.Join(dir, storeName, "MANIFEST")
	m, err := openMark(dir)
	must(t, err)
	defer m.close()
	step := func(text string, replace, wantMoved bool) {
		t.Helper()
		if replace {
			must(t, os.WriteFile(manifest+".new", []byte(text), 0o644))
			must(t, os.Rename(manifest+".new", manifest))
		} else {
			f, err := os.OpenFile(manifest, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			must(t, err)
			_, err = f.WriteString(text)
			must(t, errors.Join(err, f.Close()))
		}
		before, err := os.ReadFile(manifest)
		must(t, err)
		if moved, err := m.advance(); err != nil || moved != wantMoved {
			t.Fatalf("moved %v, %v", moved, err)
		}
		must(t, checkMark(dir, before))
		must(t, checkMark(dir, append(before, "more"...)))
		wantErr(t, checkMark(dir, before[:len(before)-5]), ErrDamaged)
		before[3] ^= 1
		wantErr(t, checkMark(dir, before), ErrDamaged)
	}
	step("first part ", false, true)
	step("", false, false)
	step("second part", false, true)
	step("rewritten, shorter", true, true)
	step(" and more", false, true)
	step("rewritten, with the same length", true, true)
	step("rewritten: with the same length", true, true)
}
