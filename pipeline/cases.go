package pipeline

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// tests reads the tests section: its shape, and whether the sources and steps that it names are there.
func (r *planner) tests(n *yaml.Node) []Test {
	var out []Test
	names := map[string]bool{}
	for i, e := range r.d.list(n, "tests", false) {
		o := r.d.object(e, e, fmt.Sprintf("test %d", i+1))
		if o == nil {
			continue
		}
		t := Test{Line: e.Line}
		if n := o.need("name"); n != nil {
			if t.Name = r.d.text(n, "name"); names[t.Name] && t.Name != "" {
				r.d.errorf(n, RuleDuplicateName, "two tests are called %q", t.Name)
			}
			names[t.Name] = true
		}
		if n := o.need("input"); n != nil {
			for _, rec := range r.d.list(n, "input", false) {
				t.Input = append(t.Input, r.testRecord(rec, true))
			}
		}
		if key, n := o.pair("expect"); n != nil {
			t.Expect = r.testOutputs(key, n)
		} else {
			r.d.errorf(e, RuleMissingField, "missing field %q in %s", "expect", o.what)
		}
		o.finish()
		out = append(out, t)
	}
	return out
}

func (r *planner) testOutputs(key, n *yaml.Node) []TestOutput {
	o := r.d.object(key, n, "expect")
	if o == nil {
		return nil
	}
	var sinks []string
	if r.plan != nil {
		for _, s := range r.plan.steps {
			if s.kind == opTo {
				sinks = append(sinks, s.name)
			}
		}
	}
	var out []TestOutput
	for i := range o.members {
		m := &o.members[i]
		m.used = true
		known := false
		for _, s := range sinks {
			known = known || s == m.key.Value
		}
		if !known && !r.d.failed() {
			r.d.errorf(m.key, RuleUnknownName, "no step of kind to is called %q%s", m.key.Value, suggest(m.key.Value, sinks))
		}
		t := TestOutput{Step: m.key.Value}
		for _, rec := range r.d.list(m.value, m.key.Value, false) {
			t.Records = append(t.Records, r.testRecord(rec, false))
		}
		out = append(out, t)
	}
	return out
}

func (r *planner) testRecord(n *yaml.Node, input bool) TestRecord {
	rec := TestRecord{Line: n.Line}
	o := r.d.object(n, n, "a record of a test")
	if o == nil {
		return rec
	}
	if input {
		if src := o.need("source"); src != nil {
			rec.Source = r.testSource(src)
		}
	}
	if n := o.get("key"); n != nil {
		rec.Key = r.d.json(n)
	}
	if n := o.get("value"); n != nil {
		rec.Value = r.d.json(n)
	}
	if key, n := o.pair("headers"); n != nil {
		if h := r.d.object(key, n, "headers"); h != nil {
			for i := range h.members {
				m := &h.members[i]
				m.used = true
				rec.Headers = append(rec.Headers, [2]string{m.key.Value, r.d.text(m.value, "a header")})
			}
		}
	}
	if n := o.get("timestamp"); n != nil {
		if s, ok := r.d.scalar(n, "timestamp"); ok && !s.unset {
			at, err := time.Parse(time.RFC3339Nano, s.text)
			switch {
			case err != nil:
				r.d.errorf(n, RuleInvalidValue, "%s is not a time such as 2026-01-02T15:04:05Z", r.d.shown(s))
			case input && at.UnixMilli() < 0:
				r.d.errorf(n, RuleInvalidValue, "%s is before 1970: no record in Kafka has such a timestamp", r.d.shown(s))
			}
			rec.Timestamp = &at
		}
	}
	o.finish()
	return rec
}

func (r *planner) testSource(n *yaml.Node) string {
	s, ok := r.d.scalar(n, "source")
	if !ok || s.unset || r.plan == nil {
		return ""
	}
	var names []string
	for _, src := range r.plan.sources {
		if src.out.name == s.text {
			return s.text
		}
		names = append(names, src.out.name)
	}
	for _, t := range r.plan.tables {
		if t.src == nil {
			continue // what is written to it is sent to its source
		}
		if t.src.out.name == s.text {
			return s.text
		}
		names = append(names, t.src.out.name)
	}
	r.d.errorf(n, RuleUnknownName, "no source is called %s%s", r.d.shown(s), suggest(s.text, names))
	return ""
}

// json writes a YAML value as JSON: mappings keep their order, numbers their digits.
func (d *document) json(n *yaml.Node) []byte {
	out, ok := d.appendNode(nil, n, 0)
	if !ok {
		return nil
	}
	return out
}

func (d *document) appendNode(b []byte, n *yaml.Node, depth int) ([]byte, bool) {
	v := d.visit(n)
	if v == nil {
		return nil, false
	}
	if depth > maxDepth {
		d.errorf(n, RuleTooLarge, "nested more than %d levels deep", maxDepth)
		return nil, false
	}
	switch v.Kind {
	case yaml.MappingNode:
		o := d.object(n, n, "a value")
		if o == nil {
			return nil, false
		}
		b = append(b, '{')
		for i := range o.members {
			if i > 0 {
				b = append(b, ',')
			}
			var ok bool
			if b, ok = d.appendText(b, o.members[i].key); !ok {
				return nil, false
			}
			if b, ok = d.appendNode(append(b, ':'), o.members[i].value, depth+1); !ok {
				return nil, false
			}
		}
		return append(b, '}'), true
	case yaml.SequenceNode:
		b = append(b, '[')
		for i, e := range v.Content {
			if i > 0 {
				b = append(b, ',')
			}
			var ok bool
			if b, ok = d.appendNode(b, e, depth+1); !ok {
				return nil, false
			}
		}
		return append(b, ']'), true
	}
	switch v.Tag {
	case "!!null":
		return append(b, "null"...), true
	case "!!bool":
		var value bool
		if v.Decode(&value) == nil {
			return strconv.AppendBool(b, value), true
		}
	case "!!int", "!!float":
		if json.Valid([]byte(v.Value)) {
			return append(b, v.Value...), true
		}
		var value int64
		if v.Tag == "!!int" && v.Decode(&value) == nil {
			return strconv.AppendInt(b, value, 10), true
		}
		d.errorf(n, RuleInvalidValue, "%q is not a number of JSON", v.Value)
		return nil, false
	}
	return d.appendText(b, v)
}

// appendText writes a scalar as a JSON string.
func (d *document) appendText(b []byte, n *yaml.Node) ([]byte, bool) {
	out, err := appendString(b, n.Value)
	if err != nil {
		d.errorf(n, RuleInvalidValue, "%v", err)
	}
	return out, err == nil
}
