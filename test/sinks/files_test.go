//go:build sinks

package sinks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// fileTables are directories of JSON lines.
type fileTables struct {
	dir string

	mu    sync.Mutex // guards lines
	lines map[string]int
}

func (f *fileTables) create(context.Context) error {
	return errors.Join(os.Mkdir(filepath.Join(f.dir, "ledger"), 0o700), os.Mkdir(filepath.Join(f.dir, "account_totals"), 0o700))
}

// names are the files of a table: in the order of their partitions and offsets, as names have a fixed width.
func (f *fileTables) names(table string) ([]string, error) {
	return filepath.Glob(filepath.Join(f.dir, table, "*.jsonl"))
}

// count is the lines of a file, each of which is read once: it does not change.
func (f *fileTables) count(name string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n, ok := f.lines[name]; ok {
		return n, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		return 0, fmt.Errorf("%s is not whole", name)
	}
	f.lines[name] = strings.Count(string(b), "\n")
	return f.lines[name], nil
}

func (f *fileTables) rows(_ context.Context, table string) (n int, err error) {
	names, err := f.names(table)
	for _, name := range names {
		lines, e := f.count(name)
		n, err = n+lines, errors.Join(err, e)
	}
	return n, err
}

// each hands over all rows of a table.
func (f *fileTables) each(table string, fn func(row map[string]any)) error {
	names, err := f.names(table)
	if err != nil {
		return err
	}
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			row := map[string]any{}
			if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fn(row)
		}
		if err := errors.Join(lines.Err(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (f *fileTables) bills(_ context.Context, table string, fn func(id, amount string)) error {
	return f.each(table, func(row map[string]any) { fn(fmt.Sprint(row["bill_id"]), fmt.Sprint(row["amount"])) })
}

// totals goes by the last row of each account: one account is in one partition.
func (f *fileTables) totals(_ context.Context, fn func(account, total string, bills int64)) error {
	last := map[string]map[string]any{}
	if err := f.each("account_totals", func(row map[string]any) { last[fmt.Sprint(row["account"])] = row }); err != nil {
		return err
	}
	for account, row := range last {
		bills, _ := row["bills"].(float64)
		fn(account, fmt.Sprint(row["total"]), int64(bills))
	}
	return nil
}

// look takes both from one list of names: the offsets stand in them.
func (f *fileTables) look(context.Context) (v view, err error) {
	names, err := f.names("ledger")
	if err != nil {
		return v, err
	}
	for _, name := range names {
		var part int
		var first, next int64
		if _, err := fmt.Sscanf(filepath.Base(name), "ledger-%d-%d-%d.jsonl", &part, &first, &next); err != nil {
			return v, fmt.Errorf("%s: %w", name, err)
		}
		lines, err := f.count(name)
		if err != nil {
			return v, err
		}
		v.rows += lines
		v.next[part] = max(v.next[part], next)
	}
	return v, nil
}
