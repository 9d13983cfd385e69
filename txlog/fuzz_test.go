package txlog

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/streamd/streamd/record"
)

// Decoders meet any bytes with an error, never with a panic, and what they accept they give back
// as it was.

func FuzzPosition(f *testing.F) {
	p := position(3)
	f.Add(encodePosition(&p, []logged{{genID{1, 2}, 16, 3, 4}, {genID{1, 3}, 24, 30, 40}}))
	f.Add(encodePosition(&record.LocalPosition{}, nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, value := range [][]byte{b, appendCRC(bytes.Clone(b))} {
			p, gens, err := decodePosition(value)
			if err != nil {
				wantErr(t, err, ErrDamaged)
				continue
			}
			again, gens2, err := decodePosition(encodePosition(&p, gens))
			if err != nil || fmt.Sprint(again, gens2) != fmt.Sprint(p, gens) {
				t.Fatalf("%v %v becomes %v %v, %v", p, gens, again, gens2, err)
			}
		}
	})
}

func FuzzSeal(f *testing.F) {
	f.Add(encodeSeal(&seal{entryBytes: 16, slots: 8, ids: 3, logged: 4, from: at(1), to: at(2), filterBytes: 5, filterCRC: 6, runs: 7}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, value := range [][]byte{b, appendCRC(bytes.Clone(b))} {
			s, err := decodeSeal(value)
			if err != nil {
				wantErr(t, err, ErrDamaged)
			} else if !bytes.Equal(encodeSeal(s), value) {
				t.Fatalf("%x becomes %x", value, encodeSeal(s))
			}
		}
	})
}

func FuzzBlock(f *testing.F) {
	f.Add(encodeBlock(at(5), 16, ids(1, 3)))
	f.Add(encodeBlock(at(5), 24, make([]byte, 48)))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := decodeBlock(7, b)
		if err != nil {
			wantErr(t, err, ErrDamaged)
		} else if !bytes.Equal(encodeBlock(x.StreamTime, x.EntryBytes, x.Entries), b) {
			t.Fatalf("%x is not given back", b)
		}
	})
}

func FuzzKey(f *testing.F) {
	f.Add(blockKey(1, 2, 3, 4))
	f.Add(partKey(kindRun, 1, 2, 3, 4))
	f.Add(generationKey(kindSeal, 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseGenerationKey(b)
		if err != nil {
			wantErr(t, err, ErrDamaged)
			return
		}
		task := uint16(b[1])<<8 | uint16(b[2])
		var again []byte
		switch b[0] {
		case kindBlock:
			again = blockKey(task, k.op, k.gen, k.n)
		case kindSeal:
			again = generationKey(kindSeal, task, k.op, k.gen)
		default:
			again = partKey(b[0], task, k.op, k.gen, uint32(k.n))
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x becomes %x", b, again)
		}
	})
}

// A filter is read back as it was sealed, or not at all.
func FuzzFilter(f *testing.F) {
	l := openTest(f, testOptions(f.TempDir()))
	task := mustTask(f, l, "t")
	op := task.Operator("d")
	must(f, task.Apply(&record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, ids(1, 5))}, Position: position(1)}))
	filter := bytes.Repeat([]byte("0123456789abcdef"), maxBlockBytes/16*5/2)
	must(f, sealAll(op, 1, 1, filter))
	key := func(chunk byte) []byte { return partKey(kindFilter, task.number(), op.name.number, 1, uint32(chunk)) }
	f.Add(byte(0), filter[:maxBlockBytes])
	f.Add(byte(2), []byte("x"))
	f.Add(byte(3), []byte{})
	f.Fuzz(func(t *testing.T, chunk byte, value []byte) {
		old, err := l.kv.get(key(chunk))
		must(t, err)
		if len(value) > MaxValueBytes {
			return
		}
		must(t, l.kv.commit([]write{{key(chunk), append([]byte{}, value...)}}))
		got, err := op.Filter(1)
		if err != nil {
			wantErr(t, err, ErrDamaged)
		} else if !bytes.Equal(got, filter) {
			t.Fatalf("another filter of %d bytes is served", len(got))
		}
		must(t, l.kv.commit([]write{{key(chunk), old}}))
	})
}

// A log of Badger's is read as far as it is good.
func FuzzWAL(f *testing.F) {
	l := openTest(f, testOptions(f.TempDir()))
	task := mustTask(f, l, "t")
	for seq := range 3 {
		must(f, task.Apply(&record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, ids(1, 2))}, Position: position(uint64(seq))}))
	}
	path := newestLog(f, l.o.Dir)
	b, err := os.ReadFile(path)
	must(f, err)
	f.Add(bytes.TrimRight(b, "\x00"))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
	readers:
		for _, key := range []Key{nil, testKey} {
			w := walReader{b: b, size: len(b), key: key}
			for range len(b) + 1 {
				if _, ok := w.next(); !ok {
					continue readers
				}
			}
			t.Fatal("the reader does not end")
		}
	})
}

// A table is verified or refused.
func FuzzTable(f *testing.F) {
	l := openTest(f, testOptions(f.TempDir()))
	task := mustTask(f, l, "t")
	must(f, task.Apply(&record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, ids(1, 2))}, Position: position(1)}))
	must(f, l.Close())
	good, err := os.ReadFile(glob(f, l.o.Dir, "*.sst")[0])
	must(f, err)
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, key := range []Key{nil, testKey} {
			_ = guardPanic(func() error { _, err := verifyTable(bytes.Clone(b), key); return err })
		}
	})
}

// A key registry is read or refused, and no length in it is believed.
func FuzzRegistry(f *testing.F) {
	o := encrypted(testOptions(f.TempDir()))
	must(f, openTest(f, o).Close())
	good, err := os.ReadFile(glob(f, o.Dir, registryName)[0])
	must(f, err)
	f.Add(good)
	f.Add(good[:registryHeaderBytes+5])
	f.Add(append(bytes.Clone(good[:registryHeaderBytes]), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(dir+"/"+registryName, b, 0o600))
		if _, err := openRegistry(dir, testKey); err != nil {
			wantErr(t, err, ErrDamaged)
		}
	})
}

// The small files: damaged or as they were.
func FuzzSmallFiles(f *testing.F) {
	dir := f.TempDir()
	must(f, writeJSON(dir, sessionName, session{Phase: phaseOpen, Boot: "b", Version: 7}))
	good, err := os.ReadFile(dir + "/" + sessionName)
	must(f, err)
	f.Add(good)
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(dir+"/"+sessionName, b, 0o644))
		must(t, os.WriteFile(dir+"/"+markName, b, 0o644))
		var s session
		if _, err := readJSON(dir, sessionName, &s); err != nil {
			wantErr(t, err, errBadFile)
		}
		_ = checkMark(dir, b)
	})
}
