package files

import (
	"errors"
	"strings"

	"github.com/streamd/streamd/sink"
)

// extension ends the names of files.
func (t *target) extension() string {
	if t.cfg.Gzip {
		return string(t.cfg.Format) + ".gz"
	}
	return string(t.cfg.Format)
}

// head is what each file begins with.
func (t *target) head() []byte {
	if t.cfg.Format == JSONLines {
		return nil
	}
	var b []byte
	for i, c := range t.cfg.Table.Columns {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, c.Name)
	}
	return append(b, '\n')
}

// lines are the rows as they stand in a file. A row that has no such form is a *sink.RowError.
func (t *target) lines(rows []sink.Row) (b []byte, err error) {
	for i, r := range rows {
		if err := t.cfg.Table.Check(r); err != nil {
			return nil, &sink.RowError{Index: i, Err: err}
		}
		if t.cfg.Format == CSV {
			b, err = t.appendCSV(b, r)
		} else {
			b, err = t.cfg.Table.AppendJSON(b, r)
		}
		if err != nil {
			return nil, &sink.RowError{Index: i, Err: err}
		}
		b = append(b, '\n')
	}
	return b, nil
}

// appendCSV appends one row. A null and an empty text are not the same: only the latter is quoted, as COPY of PostgreSQL reads it too.
func (t *target) appendCSV(b []byte, r sink.Row) ([]byte, error) {
	for i, v := range r.Values {
		if i > 0 {
			b = append(b, ',')
		}
		if v == nil {
			if len(r.Values) == 1 {
				return nil, errors.New("a null alone is an empty line of CSV, which readers pass over")
			}
			continue
		}
		switch t.cfg.Table.Columns[i].Kind {
		case sink.Text, sink.JSON, sink.Bytes:
			b = appendQuoted(b, sink.ValueText(v))
		default:
			b = append(b, sink.ValueText(v)...)
		}
	}
	return b, nil
}

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	b = append(b, strings.ReplaceAll(s, `"`, `""`)...)
	return append(b, '"')
}
