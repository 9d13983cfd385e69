package pipeline

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Schema returns the JSON Schema (draft 2020-12) of pipeline files, made of Reference. It is for editors: it knows names and
// kinds of values, and is not stricter than Load anywhere. ${...} may stand in place of any single value.
func Schema() ([]byte, error) {
	defs := map[string]any{}
	var root map[string]any
	for _, s := range Reference() {
		if s.Name == "pipeline" {
			root = s.schema()
			continue
		}
		defs[s.Name] = s.schema()
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "streamd pipeline"
	root["$defs"] = defs
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("pipeline: schema: %w", err)
	}
	return append(b, '\n'), nil
}

func (s Section) schema() map[string]any {
	out := map[string]any{"type": "object", "description": s.Doc}
	if s.Members != nil {
		out["additionalProperties"] = s.Members.schema()
		return out
	}
	properties, required := map[string]any{}, []string{}
	for _, f := range s.Fields {
		properties[f.Name] = f.schema()
		if f.Required {
			required = append(required, f.Name)
		}
	}
	// A YAML merge key is resolved before anybody asks.
	properties["<<"] = true
	out["properties"], out["additionalProperties"] = properties, false
	if len(required) > 0 {
		out["required"] = required
	}
	if len(s.OneOf) > 0 {
		var one []any
		for _, name := range s.OneOf {
			one = append(one, map[string]any{"required": []string{name}})
		}
		out["oneOf"] = one
	}
	return out
}

// variable is a text with ${...} in it: what comes of it is not known to a schema.
const variable = `\$\{`

func (f Field) schema() map[string]any {
	out := f.value()
	doc := f.Doc
	if f.Default != "" {
		doc += " Default: " + f.Default + "."
	}
	if _, ref := out["$ref"]; ref {
		return map[string]any{"allOf": []any{out}, "description": doc}
	}
	out["description"] = doc
	return out
}

func (f Field) value() map[string]any {
	orVariable := func(x map[string]any) map[string]any {
		return map[string]any{"anyOf": []any{x, map[string]any{"type": "string", "pattern": variable}}}
	}
	ref := map[string]any{"$ref": "#/$defs/" + f.Section}
	scalar := []string{"string", "number", "boolean"}
	switch f.Kind {
	case KindSection:
		return ref
	case KindSections:
		return map[string]any{"type": "array", "items": ref}
	case KindNames:
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	case KindTexts, KindKey:
		one := map[string]any{"type": scalar}
		return map[string]any{"anyOf": []any{one, map[string]any{"type": "array", "items": one}}}
	case KindBool:
		return orVariable(map[string]any{"type": "boolean"})
	case KindWord:
		var words []any
		for _, w := range f.Words {
			words = append(words, w)
		}
		if f.Name == "version" {
			words = append(words, 1)
		}
		return orVariable(map[string]any{"enum": words})
	case KindDuration:
		pattern := `^([0-9]+(ms|s|m|h|d))+$`
		if f.Name == "idleness" {
			pattern = strings.TrimSuffix(pattern, "$") + "$|^" + never + "$"
		}
		return orVariable(map[string]any{"type": "string", "pattern": pattern})
	case KindCount, KindNumber:
		return map[string]any{"type": []string{"string", "number"}}
	case KindTemplate, KindAny:
		return map[string]any{}
	case KindType:
		return map[string]any{"type": []string{"string", "array"}}
	}
	return map[string]any{"type": scalar}
}

// ReferenceText returns the reference of the file format as Markdown.
func ReferenceText() string {
	var b strings.Builder
	for _, s := range Reference() {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", s.Name, s.Doc)
		if s.Example != "" {
			fmt.Fprintf(&b, "```yaml\n%s\n```\n\n", s.Example)
		}
		if s.Members != nil {
			fmt.Fprintf(&b, "The names are yours; each is %s\n\n", s.Members.kindText())
			continue
		}
		if len(s.OneOf) > 0 {
			fmt.Fprintf(&b, "Exactly one of `%s`.\n\n", strings.Join(s.OneOf, "`, `"))
		}
		b.WriteString("| field | | default | |\n|---|---|---|---|\n")
		for _, f := range s.Fields {
			def := "–"
			switch {
			case f.Required:
				def = "required"
			case f.Default != "":
				def = "`" + f.Default + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.kindText(), def, f.Doc)
		}
		b.WriteByte('\n')
	}
	return strings.TrimSpace(b.String()) + "\n"
}

func (f Field) kindText() string {
	switch f.Kind {
	case KindWord:
		return "`" + strings.Join(f.Words, "` `") + "`"
	case KindSection:
		return "[" + f.Section + "](#" + f.Section + ")"
	case KindSections:
		return "list of [" + f.Section + "](#" + f.Section + ")"
	}
	return string(f.Kind)
}
