package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of the loader: a file beyond them is refused, whatever it says.
const (
	maxFileBytes = 1 << 20
	maxNodes     = 100_000 // visited, so that aliases of aliases count each time they are followed
	maxDepth     = 64
)

// document is a YAML file on its way into a Pipeline. It hands out nodes with their positions and
// collects what is wrong with them.
type document struct {
	file    string
	lines   []string
	opts    Options
	root    *yaml.Node
	diags   []Diagnostic
	origins map[*yaml.Node]string // nodes that came from --set, with the option's text
	secrets map[*yaml.Node]bool   // scalars whose text must not be shown
	filled  []string              // what variables and files have put into scalars
	visited int
	tooMuch bool // maxNodes was reported
	unset   bool // a variable has no value, see Options.AllowUnset
	// beside is set while something is read that the topology does not depend on: how the cluster is reached, a name of a topic,
	// an address. A variable without a value there does not set unset.
	beside bool
	// finished is called with each mapping that was read; nil: nobody wants to know.
	finished func(*object)
}

// parse reads the YAML. It returns false if there is no tree to look at.
func (d *document) parse(data []byte) bool {
	if len(data) > maxFileBytes {
		d.add(Diagnostic{
			File: d.file, Severity: SeverityError, Rule: RuleTooLarge,
			Message: fmt.Sprintf("the file has %d bytes, at most %d are read", len(data), maxFileBytes),
		})
		return false
	}
	d.lines = strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		d.at(1, 1, SeverityError, RuleSyntax, "the file is empty", "streamd init > pipeline.yaml writes one to start from")
		return false
	case err != nil:
		d.syntaxError(err)
		return false
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		d.errorf(&next, RuleSyntax, "a second document in the file").hint("one file holds one pipeline; put the second one into a file of its own")
	case !errors.Is(err, io.EOF):
		d.syntaxError(err)
		return false
	}
	d.root = doc.Content[0]
	return true
}

// yamlLine finds the position in an error of the YAML library, which has it as text only.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntaxError reports what the YAML library does not understand, in our words where the library's
// are known to confuse.
func (d *document) syntaxError(err error) {
	line, text := 1, err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = m[2]
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
			line = n
		}
	}
	line = min(line, len(d.lines))
	// A tab in the indentation is the usual reason for several messages that do not name it.
	for i, l := range d.lines {
		indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
		if tab := strings.IndexByte(indent, '\t'); tab >= 0 && strings.TrimSpace(l) != "" && abs(i+1-line) <= 1 {
			d.at(i+1, tab+1, SeverityError, RuleSyntax, "a tab in the indentation", "YAML is indented with spaces")
			return
		}
	}
	var hints []string
	switch {
	case strings.Contains(text, "mapping values are not allowed"):
		hints = append(hints, `a text with ": " in it needs quotes; else look at the indentation of this line and the one before`)
	case strings.Contains(text, "unknown anchor"):
		hints = append(hints, "an alias *name comes after its anchor &name")
	case strings.Contains(text, "cannot start any token"):
		hints = append(hints, "a text that starts with this character needs quotes")
	}
	column := 1
	if line >= 1 {
		column = len(d.lines[line-1]) - len(strings.TrimLeft(d.lines[line-1], " ")) + 1
	}
	d.at(line, column, SeverityError, RuleSyntax, "not YAML: "+text, hints...)
}

// note is a diagnostic that was just added, to add hints to.
type note struct {
	d *document
	i int
}

func (n note) hint(format string, args ...any) note {
	if n.d != nil {
		n.d.diags[n.i].Hints = append(n.d.diags[n.i].Hints, fmt.Sprintf(format, args...))
	}
	return n
}

// errorf reports an error at a node; warnf a warning.
func (d *document) errorf(n *yaml.Node, rule, format string, args ...any) note {
	return d.report(n, SeverityError, rule, fmt.Sprintf(format, args...))
}

func (d *document) warnf(n *yaml.Node, rule, format string, args ...any) note {
	return d.report(n, SeverityWarning, rule, fmt.Sprintf(format, args...))
}

func (d *document) report(n *yaml.Node, s Severity, rule, message string) note {
	if origin, ok := d.origins[n]; ok {
		return d.add(Diagnostic{File: origin, Severity: s, Rule: rule, Message: message})
	}
	return d.at(n.Line, n.Column, s, rule, message)
}

// at reports at a line and a column of the file.
func (d *document) at(line, column int, s Severity, rule, message string, hints ...string) note {
	return d.add(Diagnostic{File: d.file, Line: line, Column: column, Severity: s, Rule: rule, Message: message, Hints: hints})
}

func (d *document) add(x Diagnostic) note {
	d.diags = append(d.diags, x)
	return note{d, len(d.diags) - 1}
}

// failed says whether there is an error among the diagnostics.
func (d *document) failed() bool {
	for _, x := range d.diags {
		if x.Severity == SeverityError {
			return true
		}
	}
	return false
}

// visit counts a node against the limit and follows aliases. It returns nil when it is better to look
// no further: the limit is reached, or an alias leads into itself.
func (d *document) visit(n *yaml.Node) *yaml.Node {
	for hops := 0; n != nil; hops++ {
		d.visited++
		if d.visited > maxNodes || hops > maxDepth {
			if !d.tooMuch {
				d.tooMuch = true
				d.errorf(n, RuleTooLarge, "the file has more than %d parts when its aliases are followed", maxNodes)
			}
			return nil
		}
		if n.Kind != yaml.AliasNode {
			return n
		}
		n = n.Alias
	}
	return nil
}

// kindOf describes a node for messages.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.Tag {
		case "!!null":
			return "nothing"
		case "!!bool":
			return "a boolean"
		case "!!int", "!!float":
			return "a number"
		}
		return "a text"
	}
	return "an alias"
}

// object is a mapping whose fields are being read. Every field that is asked for becomes a known one;
// finish reports the others.
type object struct {
	d *document
	// node is where a missing field is reported: the key that the mapping belongs to.
	node    *yaml.Node
	what    string // for messages: `source "bills"`
	members []member
	known   []string // the fields that were asked for
}

type member struct {
	key, value *yaml.Node
	used       bool
}

// object reads a mapping. It returns nil, after a report, for anything else.
func (d *document) object(key, n *yaml.Node, what string) *object {
	n = d.visit(n)
	if n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.errorf(n, RuleWrongType, "%s must be a mapping, this is %s", what, kindOf(n))
		return nil
	}
	o := &object{d: d, node: key, what: what}
	o.collect(n, nil, 0)
	return o
}

// collect takes the members of a mapping. over are names that a mapping nearer to the user has
// set already: a YAML merge key (<<) adds only what is not there.
func (o *object) collect(n *yaml.Node, over map[string]bool, depth int) {
	if depth > maxDepth {
		o.d.errorf(n, RuleTooLarge, "merge keys lead %d levels deep", maxDepth)
		return
	}
	seen := map[string]*yaml.Node{}
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := o.d.visit(n.Content[i]), n.Content[i+1]
		switch {
		case key == nil:
			return
		case key.Kind != yaml.ScalarNode:
			o.d.errorf(n.Content[i], RuleWrongType, "a key must be a text, this is %s", kindOf(key))
		case key.Tag == "!!merge":
			merges = append(merges, value)
		case seen[key.Value] != nil:
			o.d.errorf(n.Content[i], RuleDuplicateKey, "%q stands here twice, first at line %d", key.Value, seen[key.Value].Line)
		default:
			seen[key.Value] = n.Content[i]
			if !over[key.Value] {
				o.members = append(o.members, member{key: key, value: value})
			}
		}
	}
	if len(merges) == 0 {
		return
	}
	all := map[string]bool{}
	for name := range over {
		all[name] = true
	}
	for name := range seen {
		all[name] = true
	}
	for _, m := range merges {
		o.merge(m, all, depth)
	}
}

func (o *object) merge(m *yaml.Node, over map[string]bool, depth int) {
	switch v := o.d.visit(m); {
	case v == nil:
	case v.Kind == yaml.MappingNode:
		o.collect(v, over, depth+1)
	case v.Kind == yaml.SequenceNode && depth < maxDepth:
		for _, x := range v.Content {
			o.merge(x, over, depth+1)
		}
	default:
		o.d.errorf(m, RuleWrongType, "<< merges mappings, this is %s", kindOf(v))
	}
}

// get returns the value of a field, nil if it is not there.
func (o *object) get(name string) *yaml.Node {
	_, value := o.pair(name)
	return value
}

func (o *object) pair(name string) (key, value *yaml.Node) {
	if !slices.Contains(o.known, name) {
		o.known = append(o.known, name)
	}
	for i := range o.members {
		if m := &o.members[i]; m.key.Value == name {
			m.used = true
			return m.key, m.value
		}
	}
	return nil, nil
}

// need is get for a field that must be there.
func (o *object) need(name string) *yaml.Node {
	n := o.get(name)
	if n == nil {
		o.d.errorf(o.node, RuleMissingField, "missing field %q in %s", name, o.what)
	}
	return n
}

// finish reports every field that nobody asked for.
func (o *object) finish() {
	if o.d.finished != nil {
		o.d.finished(o)
	}
	for _, m := range o.members {
		if m.used {
			continue
		}
		n := o.d.errorf(m.key, RuleUnknownField, "unknown field %q in %s%s", m.key.Value, o.what, suggest(m.key.Value, o.known))
		if len(o.known) > 0 && len(o.known) <= 16 {
			n.hint("known are %s", quotedList(o.known))
		}
	}
}

// list returns the elements of a sequence. A single value stands for a list of one, if one is true.
func (d *document) list(n *yaml.Node, what string, one bool) []*yaml.Node {
	v := d.visit(n)
	switch {
	case v == nil:
		return nil
	case v.Kind == yaml.SequenceNode:
		return v.Content
	case one && v.Kind == yaml.ScalarNode && v.Tag != "!!null":
		return []*yaml.Node{n}
	}
	d.errorf(n, RuleWrongType, "%s must be a list, this is %s", what, kindOf(v))
	return nil
}
