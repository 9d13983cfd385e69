package rawstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

var (
	// ErrInUse: a process runs on the directory. Stop it, or leave the local store out.
	ErrInUse = errors.New("a running process uses the state directory")
	// ErrDamaged: the files are not as they were written.
	ErrDamaged = errors.New("the local store is damaged")
	// ErrKey: none of the keys that were given opens the store, which is encrypted.
	ErrKey = errors.New("the local store is encrypted, and no key that is given opens it")
)

// Store is the local store of one state directory.
type Store struct {
	Dir, App, Cluster, Instance string

	files     *files
	lock      *os.File
	operators map[uint16]string
	stores    map[uint16]string
	tasks     []*Task
}

// Task is what one task has in it.
type Task struct {
	Name                  string // sub-topology/partition
	Sequence, Incarnation uint64
	// Complete is false while a restore is under way: the content is a prefix.
	Complete    bool
	StreamTime  time.Time
	Inputs      []rawlog.Input
	Changelogs  []rawlog.Input
	Counters    map[string]uint64
	Generations []Generation

	s      *Store
	number uint16
}

// Generation is a live part of an operator's IDs.
type Generation struct {
	Operator   string
	Number     uint64
	EntryBytes int
	IDs        uint64 // that were ever logged in it
	nextSeq    uint64
	operator   uint16
}

// Open opens the store of a state directory whose process has ended. A directory without a store is
// fs.ErrNotExist. One that is encrypted is opened with the one of the keys that fits; empty ones are none.
func Open(dir string, keys ...[]byte) (*Store, error) {
	head := struct {
		App, Cluster, Instance, Key string
		Format                      int
		MemTableBytes               int64 `json:"memtable_bytes"`
	}{}
	if err := readState(filepath.Join(dir, "STATE"), &head); err != nil {
		return nil, err
	}
	if head.Format != 1 && head.Format != 2 {
		return nil, fmt.Errorf("rawstore: %s: format %d of the state directory: %w", dir, head.Format, rawlog.ErrFormat)
	}
	const leastMemTable = 8 << 20
	lock, err := lockShared(filepath.Join(dir, "LOCK"))
	if err != nil {
		return nil, err
	}
	files, err := openFiles(filepath.Join(dir, "txlog"), max(head.MemTableBytes, leastMemTable), head.Key != "", keys)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s := &Store{
		Dir: dir, App: head.App, Cluster: head.Cluster, Instance: head.Instance,
		files: files, lock: lock, operators: map[uint16]string{}, stores: map[uint16]string{},
	}
	if err := s.read(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close removes the temporary files and gives the directory free.
func (s *Store) Close() error { return errors.Join(s.files.close(), s.lock.Close()) }

// readState reads the line of JSON whose checksum stands in the line behind it.
func readState(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("rawstore: %w", err)
	}
	line, sum, _ := strings.Cut(string(data), "\n")
	want := fmt.Sprintf("crc %08x\n", crc32.Checksum([]byte(line+"\n"), crc32.MakeTable(crc32.Castagnoli)))
	if sum != want {
		return fmt.Errorf("rawstore: %w: checksum of %s", ErrDamaged, path)
	}
	if err := json.Unmarshal([]byte(line), into); err != nil {
		return fmt.Errorf("rawstore: %w: %s: %w", ErrDamaged, path, err)
	}
	return nil
}

// read collects names and positions.
func (s *Store) read() error {
	tasks := map[uint16]string{}
	err := s.files.each([]byte{'n'}, func(key, value []byte) error {
		if len(key) != 4 {
			return fmt.Errorf("rawstore: %w: key %x of a name", ErrDamaged, key)
		}
		n := binary.BigEndian.Uint16(key[2:])
		switch key[1] {
		case 't':
			tasks[n] = string(value)
		case 'o':
			s.operators[n] = string(value)
		case 's':
			s.stores[n] = string(value)
		default:
			return fmt.Errorf("rawstore: %w: kind %q of a name", ErrDamaged, key[1])
		}
		return nil
	})
	if err != nil {
		return err
	}
	forgotten := map[uint16]bool{}
	err = s.files.each([]byte{'f'}, func(key, _ []byte) error {
		forgotten[binary.BigEndian.Uint16(key[1:])] = true
		return nil
	})
	if err != nil {
		return err
	}
	err = s.files.each([]byte{'p'}, func(key, value []byte) error {
		n := binary.BigEndian.Uint16(key[1:])
		if forgotten[n] || tasks[n] == "" {
			return nil
		}
		t, err := s.position(value)
		if err != nil {
			return fmt.Errorf("rawstore: position of task %q: %w", tasks[n], err)
		}
		t.Name, t.number, t.s = tasks[n], n, s
		s.tasks = append(s.tasks, t)
		return nil
	})
	slices.SortFunc(s.tasks, func(a, b *Task) int { return strings.Compare(a.Name, b.Name) })
	return err
}

// position decodes a position record.
func (s *Store) position(value []byte) (*Task, error) {
	if len(value) < 4 {
		return nil, fmt.Errorf("%w: %d bytes", ErrDamaged, len(value))
	}
	body := value[:len(value)-4]
	if crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(value[len(body):]) {
		return nil, fmt.Errorf("%w: checksum", ErrDamaged)
	}
	c := rawlog.NewCursor(body)
	if f := c.Byte(); f != 1 {
		return nil, fmt.Errorf("%w: format %d", rawlog.ErrFormat, f)
	}
	t := &Task{Complete: c.Byte()&1 != 0, Sequence: c.Uint64(), Incarnation: c.Uint64(), StreamTime: c.Time(), Counters: map[string]uint64{}}
	c.Time() // when the last record was applied, by the broker's clock
	for _, list := range []*[]rawlog.Input{&t.Inputs, &t.Changelogs} {
		for range c.Count() {
			*list = append(*list, rawlog.Input{Partition: rawlog.Partition{Topic: c.Text(), Number: int32(c.Uint32())}, TopicID: c.Text(), Next: int64(c.Uint64())})
		}
	}
	for range c.Count() {
		name := c.Text()
		t.Counters[name] = c.Uint64()
	}
	for range c.Count() {
		g := Generation{operator: c.Uint16(), Number: c.Uint64(), EntryBytes: int(c.Byte()), IDs: c.Uint64(), nextSeq: c.Uint64()}
		g.Operator = s.operators[g.operator]
		if g.EntryBytes != rawlog.HashBytes && g.EntryBytes != rawlog.HashBytes+8 {
			return nil, fmt.Errorf("%w: entries of %d bytes", ErrDamaged, g.EntryBytes)
		}
		t.Generations = append(t.Generations, g)
	}
	if c.Err() == nil && len(c.Rest()) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrDamaged, len(c.Rest()))
	}
	return t, c.Err()
}

// Tasks are the tasks that have a position, by name.
func (s *Store) Tasks() []*Task { return s.tasks }

// Stores are the names of the state stores that the task may have content in.
func (t *Task) Stores() []string {
	var out []string
	for _, name := range t.s.stores {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// State calls fn for each key of a state store, in order. Both are valid only during the call.
func (t *Task) State(store string, fn func(key, value []byte) error) error {
	for n, name := range t.s.stores {
		if name != store {
			continue
		}
		prefix := t.prefix('s', n)
		return t.s.files.each(prefix, func(key, value []byte) error { return fn(key[len(prefix):], value) })
	}
	return nil
}

func (t *Task) prefix(kind byte, of uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{kind}, t.number), of)
}

// IDs calls fn for each entry of a live generation: of its blocks, or of its runs once it is sealed. An
// entry is valid only during the call.
func (t *Task) IDs(g Generation, fn func(entry []byte) error) error {
	marker := binary.BigEndian.AppendUint64(t.prefix('g', g.operator), g.Number)
	sealed := false
	if err := t.s.files.each(marker, func(_, _ []byte) error { sealed = true; return nil }); err != nil {
		return err
	}
	kind, head := byte('l'), 2+12 // format, entry bytes, time
	if sealed {
		kind, head = 'r', 0
	}
	prefix := binary.BigEndian.AppendUint64(t.prefix(kind, g.operator), g.Number)
	return t.s.files.each(prefix, func(key, value []byte) error {
		// What stands at or above the next sequence belongs to a batch that did not finish.
		if !sealed && (len(key) != len(prefix)+8 || binary.BigEndian.Uint64(key[len(prefix):]) >= g.nextSeq) {
			return nil
		}
		if len(value) < head || (len(value)-head)%g.EntryBytes != 0 {
			return fmt.Errorf("rawstore: %w: task %s: %d bytes in generation %d of %q", ErrDamaged, t.Name, len(value), g.Number, g.Operator)
		}
		for e := value[head:]; len(e) > 0; e = e[g.EntryBytes:] {
			if err := fn(e[:g.EntryBytes:g.EntryBytes]); err != nil {
				return err
			}
		}
		return nil
	})
}
