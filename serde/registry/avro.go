package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/twmb/avro"
)

// avroKind is what a type's values look like, logical types included.
type avroKind uint8

const (
	kindNull avroKind = iota
	kindBoolean
	kindInt // also long: their bytes are the same
	kindFloat
	kindDouble
	kindBytes
	kindString
	kindRecord
	kindEnum
	kindArray
	kindMap
	kindUnion
	kindFixed
	kindDecimal  // on bytes, or on fixed if size > 0
	kindDate     // on int
	kindTime     // on int or long, in units of unit nanoseconds
	kindMoment   // timestamps, on long, in units of unit nanoseconds
	kindLocal    // timestamps without a zone
	kindUUID     // on fixed(16); on a string it is a text like others
	kindDuration // on fixed(12)
)

// avroType is a type of a compiled schema. Types that name each other share their avroType, so that a schema may refer to itself.
type avroType struct {
	kind     avroKind
	name     string // for messages: the full name, or the name of the kind
	low, top int64  // of the numbers of kindInt
	size     int    // of fixed
	scale    int    // of decimal
	digits   int    // of decimal
	unit     int64  // of times, in nanoseconds
	symbols  []string
	fields   []avroField
	element  *avroType // of arrays and maps
	branches []*avroType
}

type avroField struct {
	name     string
	label    string // the name as JSON, with the colon
	typ      *avroType
	fallback any // what parseJSON gives for the default
	has      bool
}

// maxDecimalBytes bounds the number of a decimal: 154 digits.
const maxDecimalBytes = 64

// avroCompiler compiles one schema.
type avroCompiler struct{ named map[string]*avroType }

// compileAvro reads a schema. The library checks it; what is made here is what bytes are read by, with a bound on each step.
func compileAvro(src source) (*avroType, error) {
	var cache avro.SchemaCache
	for _, r := range src.refs {
		if _, err := cache.Parse(r.text); err != nil {
			return nil, fmt.Errorf("what it refers to as %q: %w", r.name, err)
		}
	}
	parsed, err := cache.Parse(src.text)
	if err != nil {
		return nil, fmt.Errorf("it is no Avro schema: %w", err)
	}
	c := avroCompiler{named: map[string]*avroType{}}
	return c.compile(parsed.Root(), "", 0)
}

// fullName is the name by which others refer to the type.
func fullName(name, space string) string {
	if space == "" || strings.Contains(name, ".") {
		return name
	}
	return space + "." + name
}

func (c *avroCompiler) compile(n *avro.SchemaNode, space string, depth int) (*avroType, error) {
	switch {
	case n.Scale > maxDigits:
		return nil, fmt.Errorf("a decimal of scale %d, more than %d", n.Scale, maxDigits)
	case depth > maxDepth:
		return nil, fmt.Errorf("types are nested more than %d levels deep", maxDepth)
	}
	t := &avroType{name: n.Type}
	switch n.Type {
	case "record", "error", "enum", "fixed":
		space = n.Namespace
		if i := strings.LastIndexByte(n.Name, '.'); i >= 0 {
			space = n.Name[:i]
		}
		t.name = fullName(n.Name, n.Namespace)
		c.named[t.name] = t
	}
	var err error
	switch n.Type {
	case "null":
		t.kind = kindNull
	case "boolean":
		t.kind = kindBoolean
	case "int", "long":
		t.kind, t.low, t.top = kindInt, math.MinInt64, math.MaxInt64
		if n.Type == "int" {
			t.low, t.top = math.MinInt32, math.MaxInt32
		}
		t.logicalInt(n.LogicalType)
	case "float":
		t.kind = kindFloat
	case "double":
		t.kind = kindDouble
	case "string":
		t.kind = kindString
	case "bytes", "fixed":
		if t.kind = kindBytes; n.Type == "fixed" {
			t.kind, t.size = kindFixed, n.Size
		}
		t.logicalBytes(n)
	case "enum":
		t.kind, t.symbols = kindEnum, n.Symbols
	case "array":
		t.kind = kindArray
		t.element, err = c.compile(n.Items, space, depth+1)
	case "map":
		t.kind = kindMap
		t.element, err = c.compile(n.Values, space, depth+1)
	case "union":
		t.kind = kindUnion
		for i := range n.Branches {
			b, err := c.compile(&n.Branches[i], space, depth+1)
			if err != nil {
				return nil, err
			}
			t.branches = append(t.branches, b)
		}
	case "record", "error":
		t.kind = kindRecord
		err = c.fields(t, n, space, depth)
	default:
		for _, name := range []string{fullName(n.Type, space), n.Type} {
			if known := c.named[name]; known != nil {
				return known, nil
			}
		}
		err = fmt.Errorf("no type is called %q", n.Type)
	}
	return t, err
}

func (c *avroCompiler) fields(t *avroType, n *avro.SchemaNode, space string, depth int) error {
	for i := range n.Fields {
		f := &n.Fields[i]
		typ, err := c.compile(&f.Type, space, depth+1)
		if err != nil {
			return fmt.Errorf("field %q: %w", f.Name, err)
		}
		label, err := json.Marshal(f.Name)
		if err != nil {
			return fmt.Errorf("field %q: %w", f.Name, err)
		}
		out := avroField{name: f.Name, label: string(label) + ":", typ: typ, has: f.HasDefault}
		if f.HasDefault {
			if out.fallback, err = typ.plain(f.Default, depth+1); err != nil {
				return fmt.Errorf("default of field %q: %w", f.Name, err)
			}
		}
		t.fields = append(t.fields, out)
	}
	return nil
}

// logicalInt is what a logical type makes of an int or long. One that is not known says nothing (Avro 1.12, Logical Types).
func (t *avroType) logicalInt(name string) {
	const milli, micro = 1_000_000, 1_000
	if t.top == math.MaxInt32 {
		switch name {
		case "date":
			t.kind = kindDate
		case "time-millis":
			t.kind, t.unit = kindTime, milli
		}
		return
	}
	switch name {
	case "time-micros":
		t.kind, t.unit = kindTime, micro
	case "timestamp-millis":
		t.kind, t.unit = kindMoment, milli
	case "timestamp-micros":
		t.kind, t.unit = kindMoment, micro
	case "timestamp-nanos":
		t.kind, t.unit = kindMoment, 1
	case "local-timestamp-millis":
		t.kind, t.unit = kindLocal, milli
	case "local-timestamp-micros":
		t.kind, t.unit = kindLocal, micro
	case "local-timestamp-nanos":
		t.kind, t.unit = kindLocal, 1
	}
}

func (t *avroType) logicalBytes(n *avro.SchemaNode) {
	switch {
	// Precision is set only where the library has found the logical type valid.
	case n.LogicalType == "decimal" && n.Precision > 0 && n.Scale >= 0:
		t.kind, t.scale, t.digits = kindDecimal, n.Scale, n.Precision
	case n.LogicalType == "uuid" && t.size == 16:
		t.kind = kindUUID
	case n.LogicalType == "duration" && t.size == 12:
		t.kind = kindDuration
	}
}

// plain makes of a default, as the library reads it, what parseJSON would give for the same value.
func (t *avroType) plain(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	t = t.pick(v)
	switch v := v.(type) {
	case nil, bool, string:
		return v, nil
	case int32:
		return json.Number(strconv.FormatInt(int64(v), 10)), nil
	case int64:
		return json.Number(strconv.FormatInt(v, 10)), nil
	case float32:
		return json.Number(strconv.FormatFloat(float64(v), 'g', -1, 32)), nil
	case float64:
		return json.Number(strconv.FormatFloat(v, 'g', -1, 64)), nil
	case []byte:
		switch t.kind {
		case kindDecimal:
			text, err := t.decimalText(v)
			return json.Number(text), err
		case kindUUID:
			return uuidText(v), nil
		}
		return base64.StdEncoding.EncodeToString(v), nil
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			if t.element == nil {
				return nil, errors.New("a list where the type has none")
			}
			var err error
			if out[i], err = t.element.plain(x, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		return t.plainMap(v, depth)
	}
	return nil, fmt.Errorf("a value of Go type %T", v)
}

func (t *avroType) plainMap(v map[string]any, depth int) (any, error) {
	out := make(map[string]any, len(v))
	for name, x := range v {
		of := t.element
		for i := range t.fields {
			if t.fields[i].name == name {
				of = t.fields[i].typ
			}
		}
		if of == nil {
			return nil, errors.New("a member that the type does not have")
		}
		var err error
		if out[name], err = of.plain(x, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// pick is the branch of a union that a default belongs to; it matters only where the default's form depends on it.
func (t *avroType) pick(v any) *avroType {
	for _, b := range t.branches {
		switch v.(type) {
		case []byte:
			if b.kind == kindBytes || b.kind == kindFixed || b.kind == kindDecimal || b.kind == kindUUID || b.kind == kindDuration {
				return b
			}
		case []any:
			if b.kind == kindArray {
				return b
			}
		case map[string]any:
			if b.kind == kindRecord || b.kind == kindMap {
				return b
			}
		}
	}
	return t
}
