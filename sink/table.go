package sink

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind is the type of a column as far as it decides how a value is written. Each has one Go type.
type Kind string

// The kinds, and the Go type of their values.
const (
	Text      Kind = "text"      // string, valid UTF-8
	Integer   Kind = "integer"   // int64
	Float     Kind = "float"     // float64
	Decimal   Kind = "decimal"   // string in plain notation, as -12.50: exact, never a float
	Bool      Kind = "bool"      // bool
	Timestamp Kind = "timestamp" // time.Time; written in UTC with microseconds
	Bytes     Kind = "bytes"     // []byte
	JSON      Kind = "json"      // string with one JSON value
)

// Column is one column that a sink writes.
type Column struct {
	Name string
	Kind Kind
}

// Table is what a sink writes to. The table must exist: a sink makes none but its own progress table.
type Table struct {
	// Name is the table, as NAME or SCHEMA.NAME, without quotes.
	Name    string
	Columns []Column
	// Key are the columns of the primary key, or of another unique index. With a key rows replace each
	// other and can be deleted; without one they are appended.
	Key []string
}

// Validate returns every mistake at once.
func (t Table) Validate() error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("sink: table %q: "+format, append([]any{t.Name}, args...)...))
	}
	parts := strings.Split(t.Name, ".")
	if len(parts) > 2 || slices.Contains(parts, "") {
		fail("want NAME or SCHEMA.NAME")
	}
	if len(t.Columns) == 0 {
		fail("no columns")
	}
	seen := map[string]bool{}
	for _, c := range t.Columns {
		switch {
		case c.Name == "":
			fail("a column without a name")
		case seen[strings.ToLower(c.Name)]:
			fail("column %q twice", c.Name)
		}
		seen[strings.ToLower(c.Name)] = true
		if !slices.Contains(kinds(), c.Kind) {
			fail("column %q: kind %q, want one of %v", c.Name, c.Kind, kinds())
		}
	}
	for i, k := range t.Key {
		if t.column(k) < 0 {
			fail("key column %q is not one of its columns", k)
		}
		if slices.Contains(t.Key[:i], k) {
			fail("key column %q twice", k)
		}
	}
	return errors.Join(errs...)
}

func kinds() []Kind {
	return []Kind{Text, Integer, Float, Decimal, Bool, Timestamp, Bytes, JSON}
}

// column returns the index of a column, negative if there is none.
func (t Table) column(name string) int {
	return slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name })
}

// KeyColumns returns the indexes of the key's columns, in the key's order.
func (t Table) KeyColumns() []int {
	var at []int
	for _, k := range t.Key {
		at = append(at, t.column(k))
	}
	return at
}

// Check says what is wrong with a row before a target sees it: the number of values, the type of one,
// a null in the key, a delete without a key.
func (t Table) Check(r Row) error {
	if len(r.Values) != len(t.Columns) {
		return fmt.Errorf("%d values, the table has %d columns", len(r.Values), len(t.Columns))
	}
	if r.Delete && len(t.Key) == 0 {
		return errors.New("a delete needs a table with a key")
	}
	for _, i := range t.KeyColumns() {
		if r.Values[i] == nil {
			return fmt.Errorf("column %q is a part of the key and null", t.Columns[i].Name)
		}
	}
	for i, v := range r.Values {
		if v == nil {
			continue
		}
		if err := t.Columns[i].check(v); err != nil {
			return err
		}
	}
	return nil
}

// check holds one value to the column's kind.
func (c Column) check(v any) error {
	ok, valid := false, true
	switch c.Kind {
	case Text, JSON:
		var s string
		s, ok = v.(string)
		valid = utf8.ValidString(s)
	case Decimal:
		var s string
		s, ok = v.(string)
		valid = isDecimal(s)
	case Integer:
		_, ok = v.(int64)
	case Float:
		_, ok = v.(float64)
	case Bool:
		_, ok = v.(bool)
	case Timestamp:
		_, ok = v.(time.Time)
	case Bytes:
		_, ok = v.([]byte)
	}
	switch {
	case !ok:
		return fmt.Errorf("column %q: a %T, want the Go type of %s", c.Name, v, c.Kind)
	case !valid:
		return fmt.Errorf("column %q: no valid %s", c.Name, c.Kind) // without the value: errors are shown to more people than records
	}
	return nil
}

// isDecimal accepts what every database does: a sign, digits, a point and digits.
func isDecimal(s string) bool {
	whole, fraction, point := strings.Cut(strings.TrimLeft(s, "+-"), ".")
	if len(s)-len(strings.TrimLeft(s, "+-")) > 1 || whole == "" || point && fraction == "" {
		return false
	}
	return !strings.ContainsFunc(whole+fraction, func(r rune) bool { return r < '0' || r > '9' })
}
