package ids

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/record"
)

const (
	// exportHash and exportPartition are the columns of an export; behind the second stands how many tasks there were.
	exportHash      = "streamd-id-hash"
	exportPartition = "partition-of-"
	// maxLine bounds one line of a file: a quote that is never closed would take all of it.
	maxLine = 1 << 20
	// byteOrderMark is what spreadsheets put before the first column.
	byteOrderMark = "\ufeff"
)

// csvSource is a file with an ID in each line, or what an export has written.
type csvSource struct {
	file    io.ReadCloser
	limit   *lineLimit
	csv     *csv.Reader
	print   string
	columns []int // of the ID
	key     int   // negative: none
	first   []string
	export  int32 // the number of tasks of an export; 0: this is none
	rows    uint64
	all     uint64
}

// lineLimit ends a reader that goes on and on within one line.
type lineLimit struct {
	io.Reader
	read int
}

func (l *lineLimit) Read(b []byte) (int, error) {
	if l.read > maxLine {
		return 0, fmt.Errorf("%w: a line of more than %d bytes: is there a quote that is not closed?", daemon.ErrConfig, maxLine)
	}
	n, err := l.Reader.Read(b)
	l.read += n
	return n, err
}

func openCSV(name string, c SourceConfig) (*csvSource, error) {
	// Nothing tells whether standard input, or a pipe, is what it was the last time: it is never gone on with.
	s := &csvSource{file: io.NopCloser(c.Stdin), key: -1, print: fingerprintOf("csv", "standard input", rand.Text())}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("the file of IDs: %w", err)
		}
		s.file = f
		if err := s.look(f, c); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if err := s.begin(c); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// look takes the fingerprint, of the file's size, time and beginning and of what is read of it, and guesses the number of lines.
func (s *csvSource) look(f *os.File, c SourceConfig) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("the file of IDs: %w", err)
	case info.IsDir():
		return daemon.Usagef("--from csv:%s: that is a directory: name a file in it", f.Name())
	case !info.Mode().IsRegular():
		return nil // what is read of a pipe is gone
	}
	head := make([]byte, 1<<16)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return fmt.Errorf("the file of IDs: %w", err)
	}
	head = head[:n]
	if lines := strings.Count(string(head), "\n"); lines > 0 {
		s.all = uint64(info.Size()) * uint64(lines) / uint64(n)
	}
	s.print = fingerprintOf("csv", strconv.FormatInt(info.Size(), 10), strconv.FormatInt(info.ModTime().UnixNano(), 10), strconv.Quote(string(head)), strconv.Quote(strings.Join(c.IDColumns, ",")), strconv.Quote(c.KeyColumn))
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// begin reads the first line and finds the columns.
func (s *csvSource) begin(c SourceConfig) error {
	s.limit = &lineLimit{Reader: s.file}
	text := bufio.NewReaderSize(s.limit, 1<<16)
	if mark, _ := text.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = text.Discard(len(byteOrderMark)) // it is buffered
	}
	s.csv = csv.NewReader(text)
	// No lazy quotes: one that is not closed would silently take the lines behind it into one ID.
	s.csv.FieldsPerRecord, s.csv.ReuseRecord = -1, true
	first, err := s.csv.Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return unreadable(err)
	}
	if len(first) == 2 && first[0] == exportHash && strings.HasPrefix(first[1], exportPartition) {
		n, err := strconv.ParseInt(strings.TrimPrefix(first[1], exportPartition), 10, 32)
		if err != nil || n < 1 {
			return fmt.Errorf("%w: the first line of the export, %q, does not say how many tasks there were", daemon.ErrConfig, first)
		}
		s.export = int32(n)
		return nil
	}
	names := len(c.IDColumns) == 0
	columns := c.IDColumns
	if names {
		columns = []string{"1"}
	}
	header := false
	find := func(column string) (int, error) {
		if n, err := strconv.Atoi(column); err == nil && n > 0 {
			return n - 1, nil
		}
		header = true
		if i := slices.Index(first, column); i >= 0 {
			return i, nil
		}
		if _, err := strconv.Atoi(column); err == nil {
			return 0, daemon.Usagef("column %s: columns are counted from 1", column)
		}
		return 0, daemon.Usagef("no column is called %q; the first line has: %s", column, strings.Join(first, ", "))
	}
	for _, x := range columns {
		at, err := find(x)
		if err != nil {
			return err
		}
		s.columns = append(s.columns, at)
	}
	if c.KeyColumn != "" {
		if s.key, err = find(c.KeyColumn); err != nil {
			return err
		}
	}
	if !header && len(first) > 0 {
		s.first = slices.Clone(first)
	}
	return nil
}

// unreadable is the error of a line that cannot be read.
func unreadable(err error) error {
	var quotes *csv.ParseError
	if errors.As(err, &quotes) {
		return fmt.Errorf("%w: the file of IDs: %w (an ID with a quote in it is written \"a\"\"b\")", daemon.ErrConfig, err)
	}
	return fmt.Errorf("the file of IDs: %w", err)
}

func (s *csvSource) fingerprint() string { return s.print }

func (s *csvSource) resume(ctx context.Context, at position) error {
	for s.rows < at["rows"] {
		if _, err := s.read(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if s.rows%portion == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// read returns the next line. It is valid until the next call.
func (s *csvSource) read() ([]string, error) {
	row := s.first
	if s.first = nil; row == nil {
		s.limit.read = 0
		var err error
		if row, err = s.csv.Read(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil, err
			}
			return nil, unreadable(err)
		}
	}
	s.rows++
	return row, nil
}

func (s *csvSource) next(_ context.Context, take func(*entry) error) error {
	for range portion {
		row, err := s.read()
		if err != nil {
			return err
		}
		e := s.entry(row)
		line, _ := s.csv.FieldPos(0)
		e.where = "line " + strconv.Itoa(line)
		if err := take(&e); err != nil {
			return err
		}
	}
	return nil
}

func (s *csvSource) entry(row []string) entry {
	if s.export > 0 {
		return exported(row)
	}
	for _, at := range append(s.columns[:len(s.columns):len(s.columns)], max(s.key, 0)) {
		if at >= len(row) {
			return entry{err: fmt.Errorf("%w: %d columns, column %d is wanted", errEntry, len(row), at+1)}
		}
	}
	var key []byte
	if s.key >= 0 {
		key = []byte(row[s.key])
	}
	if len(s.columns) == 1 {
		return named([]byte(row[s.columns[0]]), key)
	}
	parts := make([]string, len(s.columns))
	for i, at := range s.columns {
		parts[i] = row[at]
	}
	return named([]byte(record.CompositeID(parts...)), key)
}

// exported reads a line of an export.
func exported(row []string) entry {
	e := entry{partition: -1}
	var n int64
	err := fmt.Errorf("%d columns", len(row))
	if len(row) == 2 {
		n, err = strconv.ParseInt(row[1], 10, 32)
		e.partition = int32(n)
	}
	if err == nil {
		if len(row[0]) != 2*record.HashBytes {
			err = fmt.Errorf("a hash of %d digits", len(row[0]))
		} else {
			_, err = hex.Decode(e.hash[:], []byte(row[0]))
		}
	}
	if err != nil {
		e.err = fmt.Errorf("%w: %w: want a hash of %d digits and a partition, as an export has them", errEntry, err, 2*record.HashBytes)
	}
	return e
}

func (s *csvSource) position() position { return position{"rows": s.rows} }
func (s *csvSource) total() uint64      { return max(s.all, s.rows) }
func (s *csvSource) close() error       { return s.file.Close() }
