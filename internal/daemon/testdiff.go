package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/quagmt/udecimal"

	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
)

// testRecord is a record that came out.
type testRecord struct {
	key, value []byte
	at         time.Time
	headers    record.Headers
}

// String shows key and value.
func (r testRecord) String() string {
	return fmt.Sprintf("key %s value %s", shown(r.key, true), shown(r.value, false))
}

// shown is a key or a value in a message.
func shown(b []byte, key bool) string {
	switch {
	case b == nil:
		return "null"
	case key, !json.Valid(b):
		return strconv.Quote(string(b))
	}
	return string(b)
}

// lastOfEach keeps the last record of each key, in the order in which the keys came first.
func lastOfEach(all []testRecord) []testRecord {
	var out []testRecord
	for _, r := range all {
		i := slices.IndexFunc(out, func(o testRecord) bool { return bytes.Equal(o.key, r.key) })
		if i < 0 {
			out = append(out, r)
			continue
		}
		out[i] = r
	}
	return slices.DeleteFunc(out, func(r testRecord) bool { return r.value == nil })
}

// compareOutput compares what a step wrote with what was expected, record by record. Of a record only what the file says
// is compared: fields that it does not name may be there.
func compareOutput(step string, want []pipeline.TestRecord, got []testRecord) []string {
	var out []string
	for i := range max(len(want), len(got)) {
		record := step
		if len(want) != 1 || len(got) != 1 {
			record = fmt.Sprintf("%s[%d]", step, i)
		}
		switch {
		case i >= len(got):
			out = append(out, difference(record+": a record", wanted(want[i]), "none"))
		case i >= len(want):
			out = append(out, difference(record+": a record", "none", got[i].String()))
		default:
			out = append(out, compareRecord(record, want[i], got[i])...)
		}
	}
	return out
}

func wanted(r pipeline.TestRecord) string {
	s := ""
	if r.Key != nil {
		s += "key " + string(r.Key) + " "
	}
	return s + "value " + string(r.Value)
}

func difference(what, want, got string) string {
	return what + "\n- want " + want + "\n+ got  " + got
}

func compareRecord(name string, want pipeline.TestRecord, got testRecord) []string {
	var out []string
	if want.Key != nil {
		if k := keyBytes(want.Key); !bytes.Equal(k, got.key) || (k == nil) != (got.key == nil) {
			out = append(out, difference(name+": key", shown(k, true), shown(got.key, true)))
		}
	}
	if want.Value != nil {
		out = append(out, compareValue(name, want.Value, got.value)...)
	}
	for _, h := range want.Headers {
		if v, ok := got.headers.Get(h[0]); !ok || string(v) != h[1] {
			is := "none"
			if ok {
				is = strconv.Quote(string(v))
			}
			out = append(out, difference(name+": header "+h[0], strconv.Quote(h[1]), is))
		}
	}
	if want.Timestamp != nil && !want.Timestamp.Equal(got.at) {
		out = append(out, difference(name+": timestamp", want.Timestamp.UTC().Format(time.RFC3339Nano), got.at.UTC().Format(time.RFC3339Nano)))
	}
	return out
}

func compareValue(name string, want, got []byte) []string {
	if string(want) == "null" || got == nil {
		if (string(want) == "null") == (got == nil) {
			return nil
		}
		return []string{difference(name+": value", string(want), shown(got, false))}
	}
	w, err := decodeJSON(want)
	if err != nil {
		return []string{fmt.Sprintf("%s: value: %v", name, err)}
	}
	g, err := decodeJSON(got)
	if err != nil {
		g = string(got) // format string or bytes
	}
	return compareJSON(name, "", w, g)
}

func decodeJSON(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("not JSON: more after the value")
	}
	return v, nil
}

// compareJSON compares what is named in want.
func compareJSON(name, path string, want, got any) []string {
	here := name + ": value"
	if path != "" {
		here = name + ": field " + path
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		var out []string
		for _, n := range sortedKeys(w) {
			sub := n
			if path != "" {
				sub = path + "." + n
			}
			x, there := g[n]
			if !there {
				out = append(out, difference(name+": field "+sub, text(w[n]), "none"))
				continue
			}
			out = append(out, compareJSON(name, sub, w[n], x)...)
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			break
		}
		var out []string
		for i := range w {
			out = append(out, compareJSON(name, fmt.Sprintf("%s[%d]", path, i), w[i], g[i])...)
		}
		return out
	case json.Number:
		if g, ok := got.(json.Number); ok && sameNumber(w.String(), g.String()) {
			return nil
		}
	default:
		if want == got {
			return nil
		}
	}
	return []string{difference(here, text(want), text(got))}
}

// sameNumber compares exactly: 1 and 1.0 are the same.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	x, err := udecimal.Parse(a)
	y, err2 := udecimal.Parse(b)
	return err == nil && err2 == nil && x.Equal(y)
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// sortedKeys are the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
