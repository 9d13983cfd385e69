package files

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

func table() sink.Table {
	return sink.Table{Name: "bills", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}, {Name: "v", Kind: sink.Text}}}
}

func partition() sink.Partition {
	return sink.Partition{Sink: "app/bills", TopicPartition: record.TopicPartition{Topic: "app-bills-sink", Partition: 3}, TopicID: "one"}
}

// onDisk is a target on a disk of the tests' own.
func onDisk(t *testing.T, d disk, c Config) *target {
	t.Helper()
	c.Directory = "/out"
	if c.Table.Name == "" {
		c.Table = table()
	}
	made, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	x, ok := made.(*target)
	if !ok {
		t.Fatalf("a %T", made)
	}
	x.disk = d
	return x
}

func batch(first, next record.Offset) sink.Batch {
	b := sink.Batch{First: first, Next: next}
	for o := first; o < next; o++ {
		b.Rows = append(b.Rows, sink.Row{Offset: o, Values: []any{int64(o), "x"}})
	}
	return b
}

// claimed claims a partition and fails the test if it cannot.
func claimed(t *testing.T, x *target) sink.Gatherer {
	t.Helper()
	w, err := x.Claim(t.Context(), partition())
	if err != nil {
		t.Fatal(err)
	}
	g, ok := w.(sink.Gatherer)
	if !ok {
		t.Fatalf("a %T", w)
	}
	return g
}

// settle ends the open file.
func settle(t *testing.T, w sink.Gatherer) error {
	t.Helper()
	return errors.Join(w.Settle(t.Context(), time.Unix(0, 0)), w.Settle(t.Context(), time.Unix(0, 0).Add(DefaultInterval)))
}

// job writes batches of 5 up to an offset, two to a file, and returns the first error.
func job(t *testing.T, x *target, end record.Offset) error {
	if err := x.Check(t.Context()); err != nil {
		return err
	}
	w, err := x.Claim(t.Context(), partition())
	if err != nil {
		return err
	}
	next, _ := w.Next()
	for ; next < end; next += 5 {
		if err := w.Write(t.Context(), batch(next, next+5)); err != nil {
			return err
		}
	}
	g, ok := w.(sink.Gatherer)
	if !ok {
		t.Fatalf("a %T", w)
	}
	return settle(t, g)
}

// shown are the files that readers see.
func shown(d *memDisk) []string {
	var names []string
	for name := range d.find("/out").children {
		if !strings.HasPrefix(name, ".") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// exactly fails unless the files hold each record up to an offset once, in files whose names follow each other, and nothing
// is left over.
func exactly(t *testing.T, d *memDisk, end record.Offset) {
	t.Helper()
	var all []byte
	at := record.Offset(0)
	for _, name := range shown(d) {
		var first, next record.Offset
		if _, err := fmt.Sscanf(name, "bills-3-%d-%d.jsonl", &first, &next); err != nil || first != at {
			t.Fatalf("file %q follows offset %d: %v", name, at, err)
		}
		content := d.find("/out/" + name).data
		if lines := bytes.Count(content, []byte("\n")); lines != int(next-first) {
			t.Fatalf("file %q has %d lines", name, lines)
		}
		all = append(all, content...)
		at = next
	}
	var want []byte
	for o := range end {
		want = fmt.Appendf(want, "{\"n\":%d,\"v\":\"x\"}\n", o)
	}
	if at != end || !bytes.Equal(all, want) {
		t.Fatalf("files up to offset %d, want %d:\n%s", at, end, all)
	}
	if left := d.find("/out/.streamd/app%2Fbills/3/work").children; len(left) != 1 {
		t.Errorf("%d claims have left something", len(left))
	}
	if left := d.find("/out/.streamd/app%2Fbills/3/log").children; len(left) != 1 {
		t.Errorf("%d portions in the log", len(left))
	}
	for name := range d.find("/out").children {
		if name != hidden && strings.HasPrefix(name, ".") {
			t.Errorf("%q is left over", name)
		}
	}
	if left := d.find("/out/" + hidden).children; len(left) != 1 {
		t.Errorf("%d folders of sinks and checks", len(left))
	}
}

// A process dies before or after each step, by a kill or with the power, and dies again at each step of the next one's start: each
// record is in exactly one file.
func TestDeathAtEveryStep(t *testing.T) {
	for _, powerLoss := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for at := 1; ; at++ {
				d := newMemDisk()
				d.dieAt, d.after = at, after
				err := job(t, onDisk(t, d, Config{Size: 100}), 30)
				if err == nil {
					if at < 50 {
						t.Errorf("only %d steps", at)
					}
					break
				}
				if !errors.Is(err, errDead) {
					t.Fatalf("step %d: %v", at, err)
				}
				second := d.survivor(powerLoss)
				second.dieAt, second.after = 1+at%37, !after
				if err := job(t, onDisk(t, second, Config{Size: 100}), 30); err != nil && !errors.Is(err, errDead) {
					t.Fatalf("step %d, the second process: %v", at, err)
				}
				last := second.survivor(powerLoss)
				if err := job(t, onDisk(t, last, Config{Size: 100}), 30); err != nil {
					t.Fatalf("step %d, power loss %v: the next process: %v", at, powerLoss, err)
				}
				exactly(t, last, 30)
			}
		}
	}
}

// A reader takes each file away as soon as he sees it. Whoever is killed then, and whenever, no file comes again.
func TestReadersTakeFilesAway(t *testing.T) {
	for at := 1; ; at++ {
		d := newMemDisk()
		d.dieAt = at
		first := job(t, onDisk(t, d, Config{Size: 100}), 30)
		seen := map[string]bool{}
		take := func(d *memDisk) {
			for _, name := range shown(d) {
				if seen[name] {
					t.Fatalf("step %d: %q came again", at, name)
				}
				seen[name] = true
				delete(d.find("/out").children, name)
				delete(d.find("/out").durable, name)
			}
		}
		take(d)
		next := d.survivor(false)
		if err := job(t, onDisk(t, next, Config{Size: 100}), 30); err != nil {
			t.Fatal(err)
		}
		take(next)
		if len(seen) != 3 {
			t.Fatalf("step %d: files %v", at, seen)
		}
		if first == nil {
			// Nor after a power loss, of a file that has been there for a while.
			lost := next.survivor(true)
			if err := job(t, onDisk(t, lost, Config{Size: 100}), 30); err != nil {
				t.Fatal(err)
			}
			take(lost)
			return
		}
	}
}

// Whoever is paused at any step while another one claims the partition changes nothing when he goes on.
func TestZombieAtEveryStep(t *testing.T) {
	for at := 1; ; at++ {
		d := newMemDisk()
		met := false
		d.fail = func(string, string) error {
			if d.steps == at {
				met = true
				d.fail = nil
				// In the midst of the zombie's step: another process claims, writes and ends a file.
				if err := job(t, onDisk(t, d, Config{Size: 100}), 15); err != nil && !errors.Is(err, sink.ErrFenced) {
					t.Fatalf("step %d: the successor: %v", at, err)
				}
			}
			return nil
		}
		if err := job(t, onDisk(t, d, Config{Size: 100}), 30); err != nil && !errors.Is(err, sink.ErrFenced) && !strings.Contains(err.Error(), "files: ") {
			t.Fatalf("step %d: the zombie: %v", at, err)
		}
		if !met {
			return
		}
		if err := job(t, onDisk(t, d, Config{Size: 100}), 30); err != nil {
			t.Fatalf("step %d: the last: %v", at, err)
		}
		exactly(t, d, 30)
	}
}

func TestFencedWriterTouchesNothing(t *testing.T) {
	d := newMemDisk()
	x := onDisk(t, d, Config{})
	old := claimed(t, x)
	if err := old.Write(t.Context(), batch(0, 5)); err != nil {
		t.Fatal(err)
	}
	owner := claimed(t, x)
	if err := old.Write(t.Context(), batch(5, 10)); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("a fenced write: %v", err)
	}
	if err := settle(t, old); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("a fenced file: %v", err)
	}
	if next, ok := owner.Next(); !ok || next != 0 {
		t.Errorf("the owner begins at %d, %v", next, ok)
	}
	if err := errors.Join(owner.Write(t.Context(), batch(0, 5)), settle(t, owner)); err != nil {
		t.Fatal(err)
	}
	exactly(t, d, 5)
}

// A disk that is full at any step is an error that says so, leaves the files whole, and heals.
func TestFullDisk(t *testing.T) {
	for at := 1; ; at++ {
		d := newMemDisk()
		met := false
		d.fail = func(step, _ string) error {
			if d.steps >= at && slices.Contains([]string{"mkdir", "create", "write", "fsync", "sync", "rename"}, step) {
				met = true
				return syscall.ENOSPC
			}
			return nil
		}
		err := job(t, onDisk(t, d, Config{Size: 100}), 30)
		if !met {
			return
		}
		var setup *sink.SetupError
		if err == nil || errors.As(err, &setup) || !strings.Contains(err.Error(), `no room on the disk of "/out"`) {
			t.Fatalf("step %d: %v", at, err)
		}
		next := d.survivor(false)
		if err := job(t, onDisk(t, next, Config{Size: 100}), 30); err != nil {
			t.Fatal(err)
		}
		exactly(t, next, 30)
	}
}

func TestSetupErrors(t *testing.T) {
	var setup *sink.SetupError
	for _, c := range []struct {
		cause  error
		rights bool
		want   string
	}{{syscall.EACCES, true, "needs the right"}, {syscall.EROFS, true, "read-only"}, {syscall.EXDEV, false, "on one disk"}} {
		d := newMemDisk()
		d.fail = func(step, _ string) error {
			if step == "rename" {
				return c.cause
			}
			return nil
		}
		err := onDisk(t, d, Config{}).Check(t.Context())
		if !errors.As(err, &setup) || setup.Rights != c.rights || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
	dir := t.TempDir()
	open := func(directory string) sink.Target {
		x, err := Open(Config{Directory: directory, Table: table()})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	if err := open(filepath.Join(dir, "missing")).Check(t.Context()); !errors.As(err, &setup) || !strings.Contains(err.Error(), "create it") {
		t.Errorf("a missing directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(filepath.Join(dir, "file")).Check(t.Context()); !errors.As(err, &setup) || setup.Remedy == "" {
		t.Errorf("a file as directory: %v", err)
	}

	d := newMemDisk()
	x := onDisk(t, d, Config{})
	if err := job(t, x, 5); err != nil {
		t.Fatal(err)
	}
	other := partition()
	other.Sink = "app/others"
	if _, err := x.Claim(t.Context(), other); !errors.As(err, &setup) || !strings.Contains(err.Error(), "app%2Fbills") {
		t.Errorf("a second sink: %v", err)
	}
	anew := partition()
	anew.TopicID = "two"
	if _, err := x.Claim(t.Context(), anew); !errors.As(err, &setup) || !strings.Contains(err.Error(), "made anew") {
		t.Errorf("another topic: %v", err)
	}
	// The progress was deleted, and the files are there.
	delete(d.find("/out/.streamd").children, "app%2Fbills")
	if err := job(t, x, 5); !errors.As(err, &setup) || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a file of an earlier run: %v", err)
	}
}

func TestDamagedLog(t *testing.T) {
	for _, content := range []string{"", "{", `{"topic_id":"one","first_offset":5,"next_offset":4}`, `{"topic_id":"one","file":"../x"}`} {
		d := newMemDisk()
		x := onDisk(t, d, Config{})
		if err := job(t, x, 5); err != nil {
			t.Fatal(err)
		}
		d.find("/out/.streamd/app%2Fbills/3/log/2/portion.json").data = []byte(content)
		var setup *sink.SetupError
		if _, err := x.Claim(t.Context(), partition()); !errors.As(err, &setup) || setup.Remedy == "" {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// The same records give the same names and bytes, whatever else was different.
func TestSameBytesAgain(t *testing.T) {
	for _, format := range []Format{JSONLines, CSV} {
		var before []byte
		for range 2 {
			d := newMemDisk()
			if err := job(t, onDisk(t, d, Config{Format: format, Gzip: true}), 20); err != nil {
				t.Fatal(err)
			}
			name := "bills-3-0000000000000000000-0000000000000000020." + string(format) + ".gz"
			if names := shown(d); len(names) != 1 || names[0] != name {
				t.Fatalf("files %v", names)
			}
			got := d.find("/out/" + name).data
			if before != nil && !bytes.Equal(got, before) {
				t.Error("other bytes")
			}
			before = got
			zip, err := gzip.NewReader(bytes.NewReader(got))
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(zip); err != nil || bytes.Count(text, []byte("\n")) < 20 {
				t.Errorf("%v: %s", err, text)
			}
		}
	}
}

func TestFormats(t *testing.T) {
	columns := []sink.Column{
		{Name: "n", Kind: sink.Integer},
		{Name: "txt", Kind: sink.Text},
		{Name: "f", Kind: sink.Float},
		{Name: "d", Kind: sink.Decimal},
		{Name: "b", Kind: sink.Bool},
		{Name: "ts", Kind: sink.Timestamp},
		{Name: "raw", Kind: sink.Bytes},
		{Name: "j", Kind: sink.JSON},
	}
	at := time.Date(2026, 3, 29, 2, 30, 0, 123456789, time.FixedZone("", 5*3600+1800))
	rows := []sink.Row{
		{Values: []any{int64(1 << 62), "a \"b\", <c>\n\U0001F980", 0.1, "12345678901234567890.10", true, at, []byte{0, 255}, "{\n \"a\": [1.0, null]}"}},
		{Values: []any{int64(0), "", -1.5e300, "-0.01", false, time.Unix(0, 0), []byte{}, `""`}},
		{Values: []any{int64(1), nil, nil, nil, nil, nil, nil, nil}},
	}
	for format, want := range map[Format]string{
		JSONLines: `{"n":4611686018427387904,"txt":"a \"b\", <c>\n` + "\U0001F980" + `","f":0.1,"d":"12345678901234567890.10","b":true,"ts":"2026-03-28T21:00:00.123456Z","raw":"AP8=","j":{"a":[1.0,null]}}
{"n":0,"txt":"","f":-1.5e+300,"d":"-0.01","b":false,"ts":"1970-01-01T00:00:00.000000Z","raw":"","j":""}
{"n":1,"txt":null,"f":null,"d":null,"b":null,"ts":null,"raw":null,"j":null}
`,
		CSV: `"n","txt","f","d","b","ts","raw","j"
4611686018427387904,"a ""b"", <c>
` + "\U0001F980" + `",0.1,12345678901234567890.10,true,2026-03-28T21:00:00.123456Z,"AP8=","{
 ""a"": [1.0, null]}"
0,"",-1.5e+300,-0.01,false,1970-01-01T00:00:00.000000Z,"",""""""
1,,,,,,,
`,
	} {
		d := newMemDisk()
		w := claimed(t, onDisk(t, d, Config{Format: format, Table: sink.Table{Name: "x", Columns: columns}}))
		if err := errors.Join(w.Write(t.Context(), sink.Batch{Rows: rows, Next: 3}), settle(t, w)); err != nil {
			t.Fatal(err)
		}
		got := string(d.find("/out/" + shown(d)[0]).data)
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", format, got, want)
		}
		if format == CSV {
			if read, err := csv.NewReader(strings.NewReader(got)).ReadAll(); err != nil || len(read) != 4 || read[1][1] != "a \"b\", <c>\n\U0001F980" {
				t.Errorf("%q, %v", read, err)
			}
		}
	}
}

// A row that has no form is the row's fault; the batch leaves nothing, and the writer goes on.
func TestRowsThatHaveNoForm(t *testing.T) {
	d := newMemDisk()
	columns := []sink.Column{{Name: "f", Kind: sink.Float}, {Name: "j", Kind: sink.JSON}}
	w := claimed(t, onDisk(t, d, Config{Table: sink.Table{Name: "x", Columns: columns}}))
	zero := 0.0
	for _, bad := range [][]any{{zero / zero, nil}, {nil, "{"}, {"text", nil}, {nil}} {
		var row *sink.RowError
		b := sink.Batch{Rows: []sink.Row{{Values: []any{1.0, nil}}, {Values: bad}}, Next: 2}
		if err := w.Write(t.Context(), b); !errors.As(err, &row) || row.Index != 1 {
			t.Errorf("%v: %v", bad, err)
		}
	}
	good := sink.Batch{Rows: []sink.Row{{Values: []any{1.0, nil}}}, Next: 2}
	if err := errors.Join(w.Write(t.Context(), good), settle(t, w)); err != nil {
		t.Fatal(err)
	}
	if got := string(d.find("/out/" + shown(d)[0]).data); got != "{\"f\":1,\"j\":null}\n" {
		t.Error(got)
	}
	one := claimed(t, onDisk(t, newMemDisk(), Config{Format: CSV, Table: sink.Table{Name: "x", Columns: columns[:1]}}))
	var row *sink.RowError
	if err := one.Write(t.Context(), sink.Batch{Rows: []sink.Row{{Values: []any{nil}}}, Next: 1}); !errors.As(err, &row) {
		t.Errorf("an empty line of CSV: %v", err)
	}
}

func TestConfigMistakes(t *testing.T) {
	_, err := Open(Config{Table: sink.Table{Name: ".x/y", Columns: table().Columns, Key: []string{"n"}}, Format: "xml", Size: -1, Interval: -1})
	for _, want := range []string{"no directory", "cannot begin the name of a file", "a key has no meaning", `format "xml"`, "-1 bytes", "-1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}
