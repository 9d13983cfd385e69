package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/common/types"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// The format debezium: the value is the envelope of a change, {before, after, source, op, ...}. With the converter's own schema around it
// ({schema, payload}) the envelope is the payload. A source sees the envelope; the records without a value, which follow a deletion only so that
// Kafka forgets its key, are left out. A table sees the row, and a deletion deletes it.
const formatDebezium = "debezium"

// changesSuffix is behind a source's name in the name of the operator that leaves records without a value out.
const changesSuffix = "-changes"

// changeType is the type of an envelope whose rows have a type.
func (r *planner) changeType(name string, row *types.Type) *types.Type {
	t := newStructType(name+".change", []structField{
		{"before", row}, {"after", row}, {"source", types.DynType}, {"op", types.StringType}, {"ts_ms", types.TimestampType}, {"transaction", types.DynType},
	})
	r.plan.structs[t.name] = t
	return t.celType
}

var errNoChange = errors.New("not the envelope of a Debezium change: want an object with op and source")

// openChange takes the envelope out of the converter's schema, if there is one, and for a table the row out of the envelope. Of a row that
// was deleted there is only gone, what it was as far as the database tells: its primary key at least.
func openChange(b []byte, row bool) (value, gone []byte, err error) {
	b, op, err := envelope(b)
	if err != nil || b == nil || !row {
		return b, nil, err
	}
	name := "after"
	if string(op) == `"d"` {
		name = "before"
	}
	found, err := findField(b, name)
	switch {
	case err != nil:
		return nil, nil, err
	case name == "before":
		return nil, found, nil
	case found == nil || found[0] != '{':
		return nil, nil, fmt.Errorf("a change with op %s has no row in after: a table takes c, u, r and d", shorten(string(op)))
	}
	return found, nil, nil
}

// envelope finds the envelope and its op. nil: a record without a value, around which the converter has put its schema.
func envelope(b []byte) (change, op []byte, err error) {
	for depth := 0; ; depth++ {
		if at := skipSpace(b, 0); at == len(b) || b[at] != '{' {
			return nil, nil, errNoChange
		}
		if op, err = findField(b, "op"); err != nil {
			return nil, nil, err
		}
		if len(op) >= 2 && op[0] == '"' {
			return b, op, nil
		}
		payload, err := findField(b, "payload")
		switch {
		case err != nil:
			return nil, nil, err
		case op != nil || payload == nil || depth > 0:
			return nil, nil, errNoChange
		case payload[0] == 'n':
			return nil, nil, nil
		}
		b = payload
	}
}

// changePlace says by which fields of source a connector's event is known, beside what all have: the connector's name, its topic prefix, the table, the
// operation and the row's key. Fields that change when an event is sent again (ts_ms, version, snapshot, sequence) are none of
// them. optional ones are left empty where a connector's version does not write them.
type changePlace struct{ needed, optional []string }

// changePlaces are the connectors of which it is known what a position is. Another one has no ID, rather than one that two events share.
func changePlaces(connector string) (changePlace, bool) {
	switch connector {
	case "postgresql":
		// Several rows of one COPY or INSERT share an LSN: the key tells them apart.
		return changePlace{needed: []string{"lsn"}, optional: []string{"txId"}}, true
	case "mysql", "mariadb":
		// The row numbers the rows of one event. The GTID alone says the transaction only.
		return changePlace{needed: []string{"file", "pos"}, optional: []string{"row", "server_id"}}, true
	case "sqlserver":
		return changePlace{needed: []string{"commit_lsn"}, optional: []string{"change_lsn", "event_serial_no"}}, true
	case "oracle":
		return changePlace{needed: []string{"scn"}, optional: []string{"commit_scn", "rs_id", "ssn", "txId", "row_id"}}, true
	case "mongodb":
		return changePlace{needed: []string{"ts_ms", "ord"}, optional: []string{"lsid", "txnNumber", "stxnid"}}, true
	case "db2", "informix":
		return changePlace{needed: []string{"commit_lsn"}, optional: []string{"change_lsn"}}, true
	}
	return changePlace{}, false
}

// errNoRow: the position alone does not tell rows apart. All rows of a snapshot have one, and so have those of one COPY or INSERT in PostgreSQL.
var errNoRow = errors.New("a change without a key, of a table without a primary key, says not which row it is of: " +
	"set message.key.columns in the connector, or name the fields, such as id: [value.source.lsn, value.after.x]")

// debeziumID is the ID of a change: what happened to which row at which place of the database's own log.
func debeziumID(r *event) (record.ID, error) {
	source, err := findField(r.Value.raw, "source")
	if err != nil {
		return "", err
	}
	op, err := findField(r.Value.raw, "op")
	if err != nil {
		return "", err
	}
	if source == nil || source[0] != '{' || len(op) < 2 {
		return "", errNoChange
	}
	fields := map[string]string{}
	scan := objectScan{b: source}
	for scan.next() {
		if scan.value[0] != 'n' {
			fields[scan.name()] = textOf(scan.value)
		}
	}
	if scan.err != nil {
		return "", scan.err
	}
	place, ok := changePlaces(fields["connector"])
	if !ok {
		return "", fmt.Errorf("it is not known what identifies a change of the Debezium connector %q: name the fields, such as id: [key, value.source.x]", shorten(fields["connector"]))
	}
	key, err := changeKey(r)
	if err != nil {
		return "", err
	}
	if key == "" && textOf(op) != "t" { // a truncation is of the whole table
		return "", errNoRow
	}
	parts := []string{textOf(op), key}
	for _, name := range append([]string{"connector", "name", "db", "schema", "table", "collection"}, place.optional...) {
		parts = append(parts, name+"="+fields[name])
	}
	for _, name := range place.needed {
		v := fields[name]
		if v == "" {
			return "", fmt.Errorf("%s: %w", fieldError("source."+name, errMissing), errNoChange)
		}
		parts = append(parts, name+"="+v)
	}
	return joinedID(parts), nil
}

// changeKey is the row's key, without the schema that a converter may have put around it: that one has a version. Empty: there is none.
func changeKey(r *event) (string, error) {
	switch {
	case r.Key.null():
		return "", nil
	case r.Key.raw == nil:
		return keyText(r.Key.val)
	}
	payload, err := findField(r.Key.raw, "payload")
	if err != nil || payload == nil {
		payload = r.Key.raw // of another form
	}
	if string(bytes.TrimSpace(payload)) == "null" {
		return "", nil
	}
	return string(payload), nil
}

// joinedID joins parts so that no two lists of them are one text, and the text is one of UTF-8 if they are.
func joinedID(parts []string) record.ID {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%d:%s", len(p), p)
	}
	return record.StringID(b.String())
}

// changes leaves out what is no change.
func (p *plan) changes(s *sourcePlan, in *stream) *stream {
	return topology.Filter(in, func(r event) (bool, error) { return !r.Value.null() || r.Value.gone != nil, nil }, topology.Name(s.out.name+changesSuffix))
}
