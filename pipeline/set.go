package pipeline

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// applySet changes the tree as Options.Set and Options.Brokers say. It returns false if the root
// is no mapping, in which case nothing of the file can be read.
func (d *document) applySet() bool {
	root := d.visit(d.root)
	if root == nil {
		return false
	}
	if root.Kind != yaml.MappingNode {
		d.errorf(d.root, RuleWrongType, "a pipeline must be a mapping, this is %s", kindOf(root))
		return false
	}
	if len(d.opts.Brokers) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, b := range d.opts.Brokers {
			list.Content = append(list.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.ReplaceAll(b, "${", "$${")})
		}
		d.setPath(root, "--brokers", []string{"kafka", "brokers"}, list)
	}
	for _, s := range d.opts.Set {
		d.setOne(root, s)
	}
	return true
}

func (d *document) setOne(root *yaml.Node, s string) {
	path, value, ok := strings.Cut(s, "=")
	origin := "--set " + path
	bad := func(format string, args ...any) {
		n := &yaml.Node{}
		d.origins[n] = origin
		d.errorf(n, RuleSet, format, args...)
	}
	if !ok || path == "" {
		bad("want path=value")
		return
	}
	if len(value) > maxSubstitutedBytes {
		bad("the value has more than %d bytes", maxSubstitutedBytes)
		return
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); err != nil || len(doc.Content) == 0 {
		// A text such as "a: b: c" is not YAML: take it as it stands.
		doc = yaml.Node{Content: []*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}}}
	}
	d.setPath(root, origin, strings.Split(path, "."), doc.Content[0])
}

// setPath puts value at a path, making the mappings on the way. An element of a list is named by its
// "name" field.
func (d *document) setPath(at *yaml.Node, origin string, path []string, value *yaml.Node) {
	d.mark(value, origin, 0)
	bad := func(format string, args ...any) {
		n := &yaml.Node{}
		d.origins[n] = origin
		d.errorf(n, RuleSet, format, args...)
	}
	for i, part := range path {
		last := i == len(path)-1
		at = d.visit(at)
		switch {
		case at == nil:
			return
		case at.Kind == yaml.SequenceNode:
			element := d.named(at, part)
			if element == nil {
				bad("nothing in %q is named %q", strings.Join(path[:i], "."), part)
				return
			}
			if last {
				*element = *value
				d.origins[element] = origin
				return
			}
			at = element
		case at.Kind == yaml.MappingNode:
			next := child(at, part)
			if last {
				if next != nil {
					*next = *value
					d.origins[next] = origin
					return
				}
				d.addChild(at, origin, part, value)
				return
			}
			if next == nil {
				next = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
				d.addChild(at, origin, part, next)
			}
			at = next
		default:
			bad("%q holds %s, it has no parts", strings.Join(path[:i], "."), kindOf(at))
			return
		}
	}
}

func (d *document) addChild(at *yaml.Node, origin, name string, value *yaml.Node) {
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name}
	d.origins[key], d.origins[value] = origin, origin
	at.Content = append(at.Content, key, value)
}

// mark notes where a subtree came from.
func (d *document) mark(n *yaml.Node, origin string, depth int) {
	if depth > maxDepth {
		return
	}
	d.origins[n] = origin
	for _, c := range n.Content {
		d.mark(c, origin, depth+1)
	}
}

func child(m *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == name {
			return m.Content[i+1]
		}
	}
	return nil
}

// named returns the element of a list whose field "name" has this value.
func (d *document) named(list *yaml.Node, name string) *yaml.Node {
	for _, e := range list.Content {
		if m := d.visit(e); m != nil && m.Kind == yaml.MappingNode {
			if n := child(m, "name"); n != nil && n.Value == name {
				return e
			}
		}
	}
	return nil
}
