package txlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/streamd/streamd/internal/fault"
)

// DefaultMinFreeBytes is the least free space below which a log writes nothing by default.
const DefaultMinFreeBytes = 256 << 20

// Options say where a log is and how it is kept.
type Options struct {
	// Dir is the state directory, made if it is missing. One process uses it at a time.
	Dir string
	// App is the application ID, Cluster the ID of the Kafka cluster ("": not known, not checked).
	// A directory of another one is refused.
	App, Cluster string
	// Power makes every commit survive a crash of the machine (each waits for the disk: about 1.7
	// times the CPU, and the latency of the disk). Without it a commit survives the death of the
	// process only, and after a crash of the machine everything is restored. Default false.
	Power bool
	// BootID names this boot of the machine, NewInstanceID draws the name of a new directory.
	// Default: both ask the kernel. For tests.
	BootID        func() string
	NewInstanceID func() (string, error)
	// MinFreeBytes is the free space below which nothing is written. Default 0: the larger of
	// [DefaultMinFreeBytes] and four memtables plus the largest compaction.
	MinFreeBytes uint64
	// Logger takes what happened to the store. Default: none.
	Logger *slog.Logger
	// MemTableBytes is the size of Badger's memtables: 8 MiB to 1 GiB, default 0 for 8 MiB. A
	// smaller one than at a stop that was not clean has no effect until the next clean stop.
	MemTableBytes int64
	// Key encrypts all that stands of records in the directory: 16, 24 or 32 bytes. Default none. A
	// directory is under one key from its first start on: see [ErrKey]. It costs CPU for each read that
	// misses a cache of 32 MB, and memory for that and for the tables' indexes.
	Key Key
	// OldKey is the key that the directory may still be under: [Open] brings it under Key.
	OldKey Key
}

func (o *Options) fill() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("txlog: no directory given"))
	}
	if o.App == "" {
		errs = append(errs, errors.New("txlog: no application ID given"))
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = defaultMemTableBytes
	}
	if o.MemTableBytes < minMemTableBytes || o.MemTableBytes > 1<<30 {
		errs = append(errs, fmt.Errorf("txlog: memtable of %d bytes is not in the range of %d to %d",
			o.MemTableBytes, minMemTableBytes, 1<<30))
	}
	for name, k := range map[string]Key{"key": o.Key, "old key": o.OldKey} {
		if err := k.Check(); len(k) > 0 && err != nil {
			errs = append(errs, fmt.Errorf("txlog: %s: %w", name, err))
		}
	}
	if len(o.OldKey) > 0 && len(o.Key) == 0 {
		errs = append(errs, errors.New("txlog: an old key without a key"))
	}
	if o.BootID == nil {
		o.BootID = bootID
	}
	if o.NewInstanceID == nil {
		o.NewInstanceID = drawInstanceID
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

// Log is the local transaction log of one process. Its methods may be called concurrently.
type Log struct {
	o     Options
	lock  *dirLock
	kv    *kv
	aside string // why the store that was found is not the one in use, "" if it is

	// mu guards the fields below. It is taken after Task.applying, and before nothing.
	mu     sync.Mutex
	state  state
	names  map[nameRef]*name
	taken  map[nameNumber]bool // numbers in use, those of forgotten tasks included
	tasks  map[string]*Task
	closed bool

	trash      trash
	flattening sync.Mutex // one at a time
}

// Open opens the log of a directory, or makes it.
//
// A directory that is in use, or is not ours, is refused: [ErrLocked], [ErrOtherApp],
// [ErrOtherCluster], [ErrNewerFormat], [ErrKey]. On a full disk it refuses with [ErrDiskFull]: try again
// when there is room. If the content is in any doubt, the store is set aside (the last two of
// them are kept) and an empty one is opened: see [Log.SetAside].
func Open(o Options) (*Log, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("txlog: %w", err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	l := &Log{o: o, lock: lock}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return l, nil
}

func (l *Log) open() error {
	known, err := readJSON(l.o.Dir, stateName, &l.state)
	reason := err
	if err != nil && !errors.Is(err, errBadFile) {
		return err
	}
	if reason != nil {
		l.state = state{} // it may have been read in part
	} else if known {
		if err := l.state.refuse(l.o.Dir, l.o.App, l.o.Cluster); err != nil {
			return err
		}
	}
	key, damaged, err := l.findKey(known && reason == nil)
	if err != nil {
		return err
	}
	if reason == nil {
		reason = damaged
	}
	if err := l.makeRoom(); err != nil {
		return err
	}
	if err := l.lock.sign(); err != nil {
		return err
	}
	var last session
	if reason == nil {
		if last, reason, err = l.lastSession(known); err != nil {
			return err
		}
	}
	if reason == nil && !bytes.Equal(key, l.o.Key) {
		reason = l.rekey(key)
	}
	var in inspection
	if reason == nil {
		if in, err = inspect(l.o.Dir, l.o.Key); err != nil {
			reason = err
		}
	}
	if reason == nil {
		reason = l.start(last, in)
	}
	if reason == nil {
		return nil
	}
	if transient(reason) || !errors.Is(reason, ErrDamaged) && !errors.Is(reason, errBadFile) {
		return reason
	}
	l.aside = reason.Error()
	l.o.Logger.Warn("local store is set aside, everything is restored from the changelog",
		"dir", l.o.Dir, "reason", l.aside)
	if err := setAside(l.o.Dir); err != nil {
		return err
	}
	l.state.MemTableBytes = 0
	return l.start(session{}, inspection{empty: true})
}

// Check says whether a directory is one of the application on the cluster that opens with one of the keys (nil: in the clear), without opening or
// changing it: [ErrOtherApp], [ErrOtherCluster], [ErrNewerFormat], [ErrKey]. Nothing is wrong with one that is not there; one whose content is in
// doubt is [Open]'s to deal with.
func Check(dir, app, cluster string, key, old Key) error {
	var st state
	if known, err := readJSON(dir, stateName, &st); !known || errors.Is(err, errBadFile) {
		return nil
	} else if err != nil {
		return err
	}
	if err := st.refuse(dir, app, cluster); err != nil {
		return err
	}
	l := &Log{o: Options{Dir: dir, Key: key, OldKey: old}, state: st}
	if _, _, err := l.findKey(true); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil // the store is another user's, who will see
}

// refuse finds out whether the directory is ours.
func (st state) refuse(dir, app, cluster string) error {
	switch {
	case st.Format > dirFormat:
		return fmt.Errorf("txlog: %w: %q has format %d, this program knows %d",
			ErrNewerFormat, dir, st.Format, dirFormat)
	case st.App != app:
		return fmt.Errorf("txlog: %w: %q belongs to %q, this is %q", ErrOtherApp, dir, st.App, app)
	case st.Cluster != "" && cluster != "" && st.Cluster != cluster:
		return fmt.Errorf("txlog: %w: %q was filled from cluster %q, this is %q",
			ErrOtherCluster, dir, st.Cluster, cluster)
	}
	return nil
}

// makeRoom checks the free space before Badger replays its logs. Copies of stores that were set
// aside go first.
func (l *Log) makeRoom() error {
	floor := l.o.MinFreeBytes
	if floor == 0 {
		floor = uint64(max(DefaultMinFreeBytes, 4*l.o.MemTableBytes))
	}
	for {
		free, _, err := diskSpace(l.o.Dir)
		if err != nil {
			return err
		}
		full := checkRoom(l.o.Dir, free, floor)
		if full == nil {
			return nil
		}
		removed, err := removeAside(l.o.Dir)
		if err != nil || !removed {
			return errors.Join(full, err)
		}
		l.o.Logger.Warn("state disk is full: removed the stores that were set aside", "dir", l.o.Dir)
	}
}

// lastSession reads how the last session ended, and the reason to doubt the store if there is one.
func (l *Log) lastSession(known bool) (last session, reason, err error) {
	found, err := readJSON(l.o.Dir, sessionName, &last)
	if errors.Is(err, errBadFile) {
		return session{}, err, nil
	}
	if err != nil {
		return session{}, nil, err
	}
	_, statErr := os.Stat(filepath.Join(l.o.Dir, storeName))
	stored := statErr == nil
	doubt := func(format string, args ...any) (session, error, error) {
		return session{}, fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...), nil
	}
	switch {
	case !found && !stored:
		return session{}, nil, nil // new
	case !found || !known:
		return doubt("there is a store, but %s or %s is missing", stateName, sessionName)
	case !stored && last.Phase != phaseOpening:
		return doubt("the store is gone")
	case last.Phase == phaseOpening && last.Attempt >= maxOpenAttempts:
		return doubt("the last %d starts died while they opened it", last.Attempt)
	case last.Phase != phaseClosed && !last.Power && (last.Boot == "" || last.Boot != l.o.BootID()):
		return doubt("the machine was restarted without a clean stop, and commits were not synced")
	}
	return last, nil, nil
}

// start opens the store and checks all of it. An error that is [ErrDamaged] is a reason to set the
// store aside.
func (l *Log) start(last session, in inspection) error {
	if err := l.describe(last, in); err != nil {
		return err
	}
	now := session{Phase: phaseOpening, Attempt: last.Attempt + 1, Boot: l.o.BootID(), Power: l.o.Power}
	if last.Phase != phaseOpening {
		now.Attempt = 1
	}
	if err := writeJSON(l.o.Dir, sessionName, now); err != nil {
		return err
	}
	fault.Point("store.opening")
	s, err := openKV(l.o.Dir, l.o, l.state.MemTableBytes, l.o.Logger)
	if err != nil {
		return err
	}
	l.kv = s
	err = l.load(last, in)
	if err == nil {
		now.Phase, now.Attempt = phaseOpen, 0
		// Without sync: if the machine dies before it reaches the disk, the phase before says the same.
		err = replaceJSON(l.o.Dir, sessionName, now, l.o.Power)
	}
	if err != nil {
		return errors.Join(err, s.close())
	}
	return nil
}

// describe brings the STATE file up to date.
func (l *Log) describe(last session, in inspection) error {
	before := l.state
	mem := l.o.MemTableBytes
	if last.Phase != phaseClosed {
		// Logs are left over. A larger one does not fit a smaller memtable: log.Fatal in Badger.
		mem = max(mem, l.state.MemTableBytes, in.memTableBytes)
	}
	l.state = state{
		Format: clearFormat, App: l.o.App, Cluster: l.o.Cluster, Instance: before.Instance, MemTableBytes: mem, Key: l.o.Key.fingerprint(),
	}
	if l.state.Key != "" {
		l.state.Format = dirFormat
	}
	if l.state.Cluster == "" {
		l.state.Cluster = before.Cluster
	}
	if l.state.Instance == "" {
		id, err := l.o.NewInstanceID()
		if err != nil {
			return fmt.Errorf("txlog: instance ID: %w", err)
		}
		l.state.Instance = id
	}
	if l.state == before {
		return nil
	}
	return writeJSON(l.o.Dir, stateName, l.state)
}

// load reads the names and checks each task against its position record.
func (l *Log) load(last session, in inspection) error {
	if v := l.kv.version; v != in.version {
		return fmt.Errorf("%w: the files hold version %d, Badger opened %d", ErrDamaged, in.version, v)
	}
	if v := l.kv.version; last.Phase == phaseClosed && v != last.Version {
		return fmt.Errorf("%w: the newest version is %d, it was %d at the clean stop", ErrDamaged, v, last.Version)
	}
	if err := l.loadNames(); err != nil {
		return err
	}
	for _, name := range l.Tasks() {
		if err := l.tasks[name].load(); err != nil {
			return fmt.Errorf("task %q: %w", name, err)
		}
	}
	return nil
}

// SetAside says why the store that was found at [Open] was doubted and set aside. ok is false
// if it was not, or if there was none.
func (l *Log) SetAside() (reason string, ok bool) { return l.aside, l.aside != "" }

// InstanceID names this state directory among all instances of the application: 16 hexadecimal
// digits that were drawn when the directory was made, or what [Log.SetInstanceID] gave.
func (l *Log) InstanceID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Instance
}

// SetInstanceID changes the instance ID and keeps it. Two live processes must not share one.
func (l *Log) SetInstanceID(id string) error {
	if id == "" || len(id) > maxNameBytes {
		return fmt.Errorf("txlog: instance ID of %d bytes: %w", len(id), ErrTooLarge)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("txlog: %w", ErrClosed)
	}
	if l.state.Instance == id {
		return nil
	}
	st := l.state
	st.Instance = id
	if err := writeJSON(l.o.Dir, stateName, st); err != nil {
		return err
	}
	l.state = st
	return nil
}

// Task returns the task of that name, an empty one if the log does not know it. Nothing is
// written until its first batch.
func (l *Log) Task(name string) (*Task, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("txlog: %w", ErrClosed)
	}
	if t := l.tasks[name]; t != nil {
		return t, nil
	}
	n, err := l.newTaskName(name)
	if err != nil {
		return nil, err
	}
	t := newTask(l, name, n)
	l.tasks[name] = t
	return t, nil
}

// Tasks returns the names of the tasks that have content, sorted.
func (l *Log) Tasks() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for text, t := range l.tasks {
		if t.name.Load().durable.Load() {
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

// Forget forgets a task: at once for whoever asks, on disk little by little. A [Task] of that
// name answers [ErrClosed] from now on.
func (l *Log) Forget(name string) error {
	l.mu.Lock()
	t := l.tasks[name]
	l.mu.Unlock()
	if t == nil {
		return nil
	}
	return t.forget()
}

// FreeSpace returns what is free on the disk of the state directory, and its size, in bytes.
func (l *Log) FreeSpace() (free, total uint64, err error) { return diskSpace(l.o.Dir) }

// DiskLow says whether less than the floor is free, so that [Task.Apply] would refuse. An
// unreadable disk is low. It costs a few microseconds: ask before each fetch.
func (l *Log) DiskLow() bool {
	l.kv.followManifest()
	return l.kv.room() != nil
}

// Floor is the free space below which nothing is written, in bytes.
func (l *Log) Floor() uint64 { return l.kv.floor.Load() }

// Sizes is what the files of the store take on the disk, in bytes.
type Sizes struct {
	Total, Tables, Logs int64
	TableFiles          int
}

// Sizes reads the sizes of the files now.
func (l *Log) Sizes() (Sizes, error) {
	if err := l.kv.gate.enter(); err != nil {
		return Sizes{}, err
	}
	defer l.kv.gate.exit()
	return l.kv.usage()
}

// Flatten deletes what is left of dropped generations and forgotten tasks and compacts the whole
// store into one level. It takes a second per few hundred megabytes and slows others down: call
// it when idle, after generations were dropped.
func (l *Log) Flatten() error {
	l.flattening.Lock()
	defer l.flattening.Unlock()
	for left := true; left; {
		if err := l.kv.room(); err != nil {
			return err
		}
		var err error
		if left, err = l.Sweep(sweepAll); err != nil {
			return err
		}
	}
	return l.kv.flatten()
}

// Close waits for running calls, writes everything to tables and notes that the stop was clean.
// It is idempotent. If the disk is too full for that, it returns [ErrDiskFull] and leaves
// everything as a kill would, the lock included: nothing is lost, and the process must end.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	free, _, err := diskSpace(l.o.Dir)
	if err == nil {
		err = checkRoom(l.o.Dir, free, uint64(2*l.kv.memTableBytes))
	}
	if err != nil {
		l.kv.gate.close()
		return fmt.Errorf("txlog: not closed cleanly: %w", err)
	}
	err = l.kv.close()
	if err == nil && l.kv.failed == nil {
		err = writeJSON(l.o.Dir, sessionName, session{
			Phase: phaseClosed, Boot: l.o.BootID(), Power: l.o.Power, Version: l.kv.version,
		})
	}
	return errors.Join(err, l.lock.release())
}
