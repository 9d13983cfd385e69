package pipeline

import (
	"fmt"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"go.yaml.in/yaml/v3"
)

// structType is a declared type, or the type of what a step computes.
type structType struct {
	name    string
	fields  []structField
	index   map[string]int
	celType *types.Type
	key     *yaml.Node // where a declared type stands; nil for a computed one
	used    bool
}

type structField struct {
	name string
	typ  *types.Type
}

func newStructType(name string, fields []structField) *structType {
	t := &structType{name: name, fields: fields, index: make(map[string]int, len(fields))}
	for i, f := range fields {
		t.index[f.name] = i
	}
	t.celType = types.NewObjectType(name, traits.FieldTesterType|traits.IndexerType)
	return t
}

// builtinTypes are the names of types that a file can use without declaring them.
func builtinTypes() []string {
	return []string{"string", "int", "float", "decimal", "bool", "timestamp", "bytes", "any"}
}

func builtinType(name string) *types.Type {
	switch name {
	case "string":
		return types.StringType
	case "int":
		return types.IntType
	case "float":
		return types.DoubleType
	case "decimal":
		return decimalTypeValue
	case "bool":
		return types.BoolType
	case "timestamp":
		return types.TimestampType
	case "bytes":
		return types.BytesType
	case "any":
		return types.DynType
	}
	return nil
}

// typeText is a type in the words of the file.
func typeText(t *types.Type) string {
	switch t.Kind() {
	case types.DoubleKind:
		return "float"
	case types.DynKind:
		return "any"
	case types.TimestampKind:
		return "timestamp"
	case types.DurationKind:
		return "duration"
	case types.ListKind:
		return "list of " + typeText(t.Parameters()[0])
	case types.NullTypeKind:
		return "null"
	}
	return t.TypeName()
}

// types reads the types section. Types may name each other in any order.
func (d *document) readTypes(n *yaml.Node) map[string]*structType {
	out := map[string]*structType{}
	o := d.object(n, n, "types")
	if o == nil {
		return out
	}
	type body struct {
		t *structType
		o *object
	}
	var bodies []body
	for i := range o.members {
		m := &o.members[i]
		m.used = true
		name := m.key.Value
		if builtinType(name) != nil {
			d.errorf(m.key, RuleDuplicateName, "%q is a built-in type", name)
			continue
		}
		if !isVariableName(name) {
			d.errorf(m.key, RuleInvalidValue, "%q is not a name of a type: letters, digits and _, not a digit first", name)
			continue
		}
		t := newStructType(name, nil)
		t.key = m.key
		out[name] = t
		if fields := d.object(m.key, m.value, fmt.Sprintf("type %q", name)); fields != nil {
			bodies = append(bodies, body{t, fields})
		}
	}
	for _, b := range bodies {
		for i := range b.o.members {
			m := &b.o.members[i]
			m.used = true
			t := d.readType(m.value, fmt.Sprintf("field %q", m.key.Value), b.t, out, 0)
			if t == nil {
				t = types.DynType
			}
			b.t.index[m.key.Value] = len(b.t.fields)
			b.t.fields = append(b.t.fields, structField{m.key.Value, t})
		}
		if len(b.t.fields) == 0 {
			d.errorf(b.t.key, RuleInvalidValue, "type %q has no fields", b.t.name)
		}
	}
	return out
}

// readType reads the type of a field: a name, or [name] for a list. in is the type that it stands in, if any:
// a type that only names itself is not in use by that.
func (d *document) readType(n *yaml.Node, what string, in *structType, all map[string]*structType, depth int) *types.Type {
	v := d.visit(n)
	if v == nil {
		return nil
	}
	if v.Kind == yaml.SequenceNode {
		if len(v.Content) != 1 || depth > 8 {
			d.errorf(n, RuleInvalidValue, "%s: a list is written [type], with one type", what)
			return nil
		}
		t := d.readType(v.Content[0], what, in, all, depth+1)
		if t == nil {
			return nil
		}
		return types.NewListType(t)
	}
	s, ok := d.scalar(n, what)
	if !ok || s.unset {
		return nil
	}
	if t := builtinType(s.text); t != nil {
		return t
	}
	if t, ok := all[s.text]; ok {
		if t != in {
			t.used = true
		}
		return t.celType
	}
	names := builtinTypes()
	for name := range all {
		names = append(names, name)
	}
	d.errorf(n, RuleUnknownName, "no type is called %s%s", d.shown(s), suggest(s.text, sorted(names))).hint("built in are %s", quotedList(builtinTypes()))
	return nil
}

// typeProvider tells CEL of the declared types and reads fields of values.
type typeProvider struct {
	*types.Registry
	structs map[string]*structType
	// missed are the fields that were asked for in vain since the last expression, for "did you mean".
	missed map[string]*structType
}

func newTypeProvider(structs map[string]*structType) (*typeProvider, error) {
	r, err := types.NewRegistry()
	if err != nil {
		return nil, fmt.Errorf("type registry: %w", err)
	}
	return &typeProvider{Registry: r, structs: structs, missed: map[string]*structType{}}, nil
}

// FindStructType implements types.Provider.
func (p *typeProvider) FindStructType(name string) (*types.Type, bool) {
	if t, ok := p.structs[name]; ok {
		return types.NewTypeTypeWithParam(t.celType), true
	}
	return nil, false
}

// FindStructFieldNames implements types.Provider.
func (p *typeProvider) FindStructFieldNames(name string) ([]string, bool) {
	t, ok := p.structs[name]
	if !ok {
		return nil, false
	}
	return t.fieldNames(), true
}

func (t *structType) fieldNames() []string {
	names := make([]string, len(t.fields))
	for i, f := range t.fields {
		names[i] = f.name
	}
	return names
}

// FindStructFieldType implements types.Provider.
func (p *typeProvider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	t, ok := p.structs[name]
	if !ok {
		return nil, false
	}
	i, ok := t.index[field]
	if !ok {
		p.missed[field] = t
		return nil, false
	}
	return &types.FieldType{
		Type: t.fields[i].typ,
		IsSet: func(target any) bool {
			o, ok := target.(*jsonObject)
			if !ok || o.typ != t {
				return false
			}
			_, err := o.field(i)
			return err == nil
		},
		GetFrom: func(target any) (any, error) {
			o, ok := target.(*jsonObject)
			if !ok || o.typ != t {
				return nil, fmt.Errorf("no %s to read the field %q from: the value is missing or null", name, field)
			}
			v, err := o.field(i)
			if err != nil {
				return nil, fieldError(field, err)
			}
			return v, nil
		},
	}, true
}

// NewValue implements types.Provider. Values are made by mappings of the file, not by CEL's Type{...}.
func (p *typeProvider) NewValue(name string, _ map[string]ref.Val) ref.Val {
	return types.NewErr("a value of type %s cannot be made in an expression", name)
}
