package pipeline

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// leastSecret is the length from which a text counts as a secret wherever it stands: shorter ones stand in other texts by chance.
const leastSecret = 6

// Masked is a pipeline file that may be given away.
type Masked struct {
	// Text is the file without comments, without its tests (their records may be real ones), and with *** for passwords, tokens and
	// addresses with passwords. What is taken from a variable or a file is shown by its name.
	Text []byte
	// Secrets are the texts that must not be shown, as far as the file and its variables tell, longest first. Show them to nobody.
	Secrets []string
}

// MaskFile reads a file that need not be right, as long as it is YAML.
func MaskFile(path string, o Options) (*Masked, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	if o.File == "" {
		o.File = path
	}
	o.AllowUnset = true
	d := newDocument(o)
	if !d.parse(data) || !d.applySet() {
		return nil, &Error{Diagnostics: d.finish()}
	}
	d.pipeline(&Pipeline{File: d.file}) // finds which texts are secret
	m := &Masked{}
	for n := range d.secrets {
		if !strings.Contains(n.Value, "${") {
			m.Secrets = append(m.Secrets, strings.TrimSpace(n.Value))
		}
	}
	m.Secrets = append(m.Secrets, d.filled...)
	m.Secrets = slices.DeleteFunc(m.Secrets, func(s string) bool { return len(s) < leastSecret })
	slices.SortFunc(m.Secrets, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	m.Secrets = slices.Compact(m.Secrets)
	if m.Text, err = yaml.Marshal(d.giveAway(d.root, 0)); err != nil {
		return nil, fmt.Errorf("pipeline: %q: %w", path, err)
	}
	return m, nil
}

// giveAway copies a tree without what is nobody's business.
func (d *document) giveAway(n *yaml.Node, depth int) *yaml.Node {
	c := *n
	c.HeadComment, c.LineComment, c.FootComment, c.Content = "", "", "", nil
	if depth > maxDepth {
		return &c
	}
	if n.Kind == yaml.AliasNode {
		c.Alias = d.giveAway(n.Alias, depth+1)
	}
	if d.secrets[n] {
		c.Value, c.Style = "***", yaml.DoubleQuotedStyle
		for _, name := range variableNames(n.Value) {
			c.Value += " ${" + name + "}"
		}
	}
	for i, x := range n.Content {
		if n.Kind == yaml.MappingNode && depth == 0 && n.Content[i&^1].Value == "tests" {
			continue
		}
		c.Content = append(c.Content, d.giveAway(x, depth+1))
	}
	return &c
}

// variableNames are the names in a text with ${...}, without defaults and messages.
func variableNames(text string) []string {
	var out []string
	for _, part := range strings.Split(text, "${")[1:] {
		inner, _, ok := strings.Cut(part, "}")
		if !ok {
			continue
		}
		if !strings.HasPrefix(inner, "file:") {
			inner, _, _ = strings.Cut(inner, ":")
		}
		out = append(out, inner)
	}
	return out
}
