package changelog

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123_000_000, time.UTC)

func somePoint() record.CommitPoint {
	return record.CommitPoint{
		Sequence: 184, Incarnation: math.MaxUint64, StreamTime: noon,
		Inputs: []record.InputPosition{
			{TopicPartition: record.TopicPartition{Topic: "bills", Partition: 3}, Next: 1 << 40},
			{TopicPartition: record.TopicPartition{Topic: "rates", Partition: math.MaxInt32}},
		},
		Counters: []record.Counter{{Name: "a", Value: 1}, {Name: "", Value: math.MaxUint64}},
	}
}

func someBlock() record.OperatorBlock {
	return record.OperatorBlock{Operator: "unique", IDBlock: record.IDBlock{Generation: 7, StreamTime: noon, EntryBytes: 16, Entries: bytes.Repeat([]byte("0123456789abcdef"), 3)}}
}

func TestRoundTrip(t *testing.T) {
	for _, p := range []record.CommitPoint{somePoint(), {Sequence: 1}} {
		k, v := EncodeCommit(p)
		if kind, err := KindOf(k); kind != KindCommit || err != nil {
			t.Fatal(kind, err)
		}
		got, err := DecodeCommit(v)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%+v, %v", got, err)
		}
		if p.StreamTime.IsZero() != got.StreamTime.IsZero() {
			t.Error("no time became some time")
		}
	}
	b := someBlock()
	k, v := EncodeBlock(b)
	if kind, err := KindOf(k); kind != KindBlock || err != nil {
		t.Fatal(kind, err)
	}
	if got, err := DecodeBlock(k, v); err != nil || !reflect.DeepEqual(got, b) {
		t.Errorf("%+v, %v", got, err)
	}
}

// The bytes are a promise: docs/format.md describes these.
func TestBytes(t *testing.T) {
	b := someBlock()
	b.Entries = b.Entries[:16]
	k, v := EncodeBlock(b)
	if string(k) != "\x01unique" || string(v) != "\x01\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x69\xa4\x2a\x40\x07\x54\xd4\xc0\x100123456789abcdef" {
		t.Errorf("%q %q", k, v)
	}
	p := somePoint()
	p.Inputs, p.Counters, p.Incarnation = p.Inputs[:1], p.Counters[:1], 5
	p.Inputs[0].TopicID = "Zk3x"
	p.Stores = []record.StorePosition{{Store: "totals", TopicID: "t", Next: 9}}
	k, v = EncodeCommit(p)
	want := "\x01\x00\x00\x00\x00\x00\x00\x00\xb8\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x69\xa4\x2a\x40\x07\x54\xd4\xc0" +
		"\x01\x05bills\x00\x00\x00\x03\x04Zk3x\x00\x00\x01\x00\x00\x00\x00\x00\x01\x01a\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\x01\x06totals\x01t\x00\x00\x00\x00\x00\x00\x00\x09"
	if string(k) != "\x02" || string(v) != want {
		t.Errorf("%q %q", k, v)
	}
	const text = "streamd/1 seq=184 inc=0000000000000005 at=2026-03-01T12:00:00.123Z topic=Zk3x"
	if got := (Metadata{184, 5, noon, "Zk3x"}).String(); got != text {
		t.Errorf("%q", got)
	}
}

func TestDecodeErrors(t *testing.T) {
	bk, bv := EncodeBlock(someBlock())
	_, cv := EncodeCommit(somePoint())
	change := func(b []byte, i int, x byte) []byte {
		b = bytes.Clone(b)
		b[i] = x
		return b
	}
	for name, c := range map[string]struct {
		err  func() error
		want error
	}{
		"newer block":         {func() error { _, err := DecodeBlock(bk, change(bv, 0, 2)); return err }, ErrNewerFormat},
		"no format":           {func() error { _, err := DecodeBlock(bk, change(bv, 0, 0)); return err }, ErrCorrupt},
		"empty block":         {func() error { _, err := DecodeBlock(bk, nil); return err }, ErrCorrupt},
		"no entries":          {func() error { _, err := DecodeBlock(bk, bv[:blockHeader]); return err }, ErrCorrupt},
		"cut entry":           {func() error { _, err := DecodeBlock(bk, bv[:len(bv)-1]); return err }, ErrCorrupt},
		"cut header":          {func() error { _, err := DecodeBlock(bk, bv[:9]); return err }, ErrCorrupt},
		"entry size":          {func() error { _, err := DecodeBlock(bk, change(bv, 21, 12)); return err }, ErrCorrupt},
		"nanoseconds":         {func() error { _, err := DecodeBlock(bk, change(bv, 17, 0xff)); return err }, ErrCorrupt},
		"no operator":         {func() error { _, err := DecodeBlock(bk[:1], bv); return err }, ErrCorrupt},
		"long operator":       {func() error { _, err := DecodeBlock(append(bk, make([]byte, 1024)...), bv); return err }, ErrCorrupt},
		"newer commit":        {func() error { _, err := DecodeCommit(change(cv, 0, 9)); return err }, ErrNewerFormat},
		"trailing bytes":      {func() error { _, err := DecodeCommit(append(bytes.Clone(cv), 0)); return err }, ErrCorrupt},
		"no sequence":         {func() error { _, err := DecodeCommit(change(cv, 8, 0)); return err }, ErrCorrupt},
		"tombstone":           {func() error { _, err := DecodeCommit(nil); return err }, ErrCorrupt},
		"a billion inputs":    {func() error { _, err := DecodeCommit(append(bytes.Clone(cv[:29]), 0xff, 0xff, 0xff, 0x0f)); return err }, ErrCorrupt},
		"kind of no key":      {func() error { _, err := KindOf(nil); return err }, ErrForeign},
		"kind of text":        {func() error { _, err := KindOf([]byte("key")); return err }, ErrForeign},
		"kind of the future":  {func() error { _, err := KindOf([]byte{3}); return err }, ErrNewerFormat},
		"metadata of others":  {func() error { _, err := ParseMetadata("sarama"); return err }, ErrForeign},
		"no metadata":         {func() error { _, err := ParseMetadata(""); return err }, ErrForeign},
		"newer metadata":      {func() error { _, err := ParseMetadata("streamd/2 x"); return err }, ErrNewerFormat},
		"metadata without":    {func() error { _, err := ParseMetadata("streamd/1"); return err }, ErrCorrupt},
		"metadata of nothing": {func() error { _, err := ParseMetadata(Metadata{CommitTime: noon}.String()); return err }, ErrCorrupt},
		"metadata order":      {func() error { _, err := ParseMetadata("streamd/1 inc=1 seq=1 at=2026-03-01T12:00:00.123Z"); return err }, ErrCorrupt},
		"metadata format": {func() error {
			_, err := ParseMetadata("streamd/-1 seq=1 inc=1 at=2026-03-01T12:00:00.123Z")
			return err
		}, ErrCorrupt},
	} {
		if err := c.err(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range cv {
		if _, err := DecodeCommit(cv[:i]); err == nil {
			t.Errorf("a commit record cut at %d is taken", i)
		}
	}
}

func TestMetadata(t *testing.T) {
	for _, m := range []Metadata{
		{Sequence: 1, CommitTime: noon},
		{Sequence: math.MaxUint64, Incarnation: math.MaxUint64, CommitTime: noon, TopicID: strings.Repeat("x", 64)},
	} {
		s := m.String()
		if got, err := ParseMetadata(s); err != nil || got != m {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
		if len(s) > MaxMetadataBytes {
			t.Errorf("%d bytes", len(s))
		}
	}
	for _, id := range []string{"a b", "é", strings.Repeat("x", 65), "a\n"} {
		m := Metadata{Sequence: 1, CommitTime: noon, TopicID: id}
		if got, err := ParseMetadata(m.String()); err != nil || got.TopicID != "" {
			t.Errorf("topic ID %q: %+v, %v", id, got, err)
		}
	}
}

func FuzzBlock(f *testing.F) {
	k, v := EncodeBlock(someBlock())
	f.Add(k, v)
	f.Add([]byte{1, 'x'}, []byte{1})
	f.Add([]byte{1}, []byte{2})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		b, err := DecodeBlock(key, value)
		if err != nil {
			return
		}
		if k, v := EncodeBlock(b); !bytes.Equal(k, key) || !bytes.Equal(v, value) {
			t.Fatalf("%q %q became %q %q", key, value, k, v)
		}
	})
}

func FuzzCommit(f *testing.F) {
	_, v := EncodeCommit(somePoint())
	f.Add(v)
	f.Add([]byte{1})
	f.Add([]byte{9})
	f.Fuzz(func(t *testing.T, value []byte) {
		p, err := DecodeCommit(value)
		if err != nil {
			return
		}
		_, v := EncodeCommit(p)
		again, err := DecodeCommit(v)
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add(Metadata{184, 5, noon, "Zk3x"}.String())
	f.Add("")
	f.Add("streamd/1 seq=1 inc=1 at=x")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMetadata(s)
		if err != nil {
			return
		}
		if again, err := ParseMetadata(m.String()); err != nil || again != m {
			t.Fatalf("%q: %+v became %+v, %v", s, m, again, err)
		}
	})
}
