package sqldb

import (
	"database/sql"
	"slices"
	"strings"
)

// UpsertOnConflict is Dialect.Upsert in the words that PostgreSQL and SQLite share.
func UpsertOnConflict(key, columns []string, table, version string) string {
	var set []string
	for _, c := range columns {
		if !slices.Contains(key, c) {
			set = append(set, c+" = EXCLUDED."+c)
		}
	}
	where := ""
	if version != "" {
		set = append(set, version+" = EXCLUDED."+version)
		where = " WHERE COALESCE(" + table + "." + version + ", -1) < EXCLUDED." + version
	}
	target := "ON CONFLICT (" + strings.Join(key, ", ") + ") DO "
	if len(set) == 0 {
		return target + "NOTHING"
	}
	return target + "UPDATE SET " + strings.Join(set, ", ") + where
}

// ScanColumns reads rows of name, type, nullable, has a default, scale or null. It passes an error of the query on.
func ScanColumns(rows *sql.Rows, err error) (map[string]DBColumn, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // rows.Err says more
	found := map[string]DBColumn{}
	for rows.Next() {
		var name string
		var c DBColumn
		var scale sql.NullInt64
		if err := rows.Scan(&name, &c.Type, &c.Nullable, &c.Default, &scale); err != nil {
			return nil, err
		}
		c.Scale = -1
		if scale.Valid {
			c.Scale = int(max(0, scale.Int64))
		}
		c.Type = strings.ToLower(c.Type)
		found[strings.ToLower(name)] = c
	}
	return found, rows.Err()
}

// ScanUnique reads rows of index, column, whether only a part of the column is in it, and says whether an
// index has exactly the key's columns.
func ScanUnique(rows *sql.Rows, err error, key []string) (bool, error) {
	if err != nil {
		return false, err
	}
	defer func() { _ = rows.Close() }() // rows.Err says more
	indexed := map[string][]string{}
	for rows.Next() {
		var index, column string
		var part bool
		if err := rows.Scan(&index, &column, &part); err != nil {
			return false, err
		}
		if part {
			column = "" // matches no column
		}
		indexed[index] = append(indexed[index], strings.ToLower(column))
	}
	want := make([]string, len(key))
	for i, k := range key {
		want[i] = strings.ToLower(k)
	}
	slices.Sort(want)
	for _, columns := range indexed { // any of them
		slices.Sort(columns)
		if slices.Equal(columns, want) {
			return true, rows.Err()
		}
	}
	return false, rows.Err()
}
