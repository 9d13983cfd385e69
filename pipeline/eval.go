package pipeline

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/record"
)

// Expression is an expression of the file format by itself, to be tried on records. It is used by one goroutine.
type Expression struct {
	e     *expr
	value valueSerde
}

// Sample is a record that an expression is tried on. Nil Key and Value are null.
type Sample struct {
	Key, Value        []byte
	Headers           record.Headers
	Topic             string
	Partition, Offset int64
	Timestamp         time.Time
}

// Compile compiles an expression on records with JSON values of a type: a built-in one, one that p declares (p may be nil), or ""
// for any. The error is an *Error whose positions are those of the text.
func Compile(text, typeName string, p *Pipeline) (*Expression, error) {
	structs := map[string]*structType{}
	if p != nil {
		maps.Copy(structs, p.plan.structs)
	}
	d := newDocument(Options{File: "expression"})
	d.lines = []string{text}
	in := &output{key: cel.NullableType(cel.StringType), value: types.DynType, format: formatJSON, positions: true}
	if typeName != "" {
		if t := d.readType(&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: typeName}, "type", nil, structs, 0); t != nil {
			in.value = t
		}
	}
	c, err := newCompiler(d, structs)
	if err != nil {
		return nil, err
	}
	x := &Expression{value: valueSerde{format: formatJSON, typ: in.value, dec: c.dec}}
	if len(d.diags) == 0 {
		x.e = c.expression(&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Line: 1, Column: 1}, "the expression", c.scope(in))
	}
	if ds := d.finish(); x.e == nil {
		return nil, &Error{Diagnostics: ds}
	}
	return x, nil
}

// Eval evaluates the expression on a record and returns the result as JSON.
func (x *Expression) Eval(s Sample) ([]byte, error) {
	value := x.value
	value.src = &sourceInfo{topic: s.Topic}
	v, err := value.Decode(s.Value)
	if err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	position := record.CompositeID("cluster", "topic", strconv.FormatInt(s.Partition, 10), strconv.FormatInt(s.Offset, 10))
	out, err := x.e.eval(&event{Key: recKey{raw: s.Key}, Value: v, Headers: s.Headers, Timestamp: s.Timestamp, Identity: record.RootIdentity(position)})
	if err != nil {
		return nil, err
	}
	return appendJSON(nil, out, 0)
}
