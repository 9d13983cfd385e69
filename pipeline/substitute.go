package pipeline

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxSubstitutedBytes bounds what one scalar may grow to.
const maxSubstitutedBytes = 64 << 10

// scalar is the text of a YAML scalar after substitution.
type scalar struct {
	node *yaml.Node
	text string
	// unset: a variable without a value stands in it, and the caller allows that (Options.AllowUnset).
	// The text means nothing then; whatever is read from it is taken as valid.
	unset bool
	// filled are the texts that were put in, which messages must not repeat.
	filled []string
	// pieces map positions in text back to positions in node.Value.
	pieces []piece
}

// piece says that text[to:] continues node.Value[from:], up to the next piece. Both count bytes.
type piece struct {
	from, to int
	fixed    bool // replaced text: every position in it stands for from
}

// source maps an offset in the text to one in the node's value.
func (s scalar) source(offset int) int {
	at := offset
	for _, p := range s.pieces {
		if p.to > offset {
			break
		}
		at = p.from
		if !p.fixed {
			at += offset - p.to
		}
	}
	return min(at, len(s.node.Value))
}

// scalar reads a scalar and substitutes variables in it. ok is false, after a report, if there is
// no usable text.
func (d *document) scalar(n *yaml.Node, what string) (s scalar, ok bool) {
	v := d.visit(n)
	if v == nil {
		return s, false
	}
	if v.Kind != yaml.ScalarNode {
		d.errorf(n, RuleWrongType, "%s must be a single value, this is %s", what, kindOf(v))
		return s, false
	}
	if v.Tag == "!!null" {
		d.errorf(n, RuleWrongType, "%s has no value", what)
		return s, false
	}
	if v.Tag == "!!binary" {
		d.errorf(n, RuleWrongType, "%s: !!binary is not read here", what)
		return s, false
	}
	return d.substitute(v)
}

// substitute replaces the ${...} of a scalar:
//
//	${VAR}         the variable, an error if it is not set
//	${VAR:-text}   text if the variable is not set or empty
//	${VAR:?text}   an error with this text if it is not set or empty
//	${file:/path}  the content of a file, without white space at its end
//	$${            a literal ${
//
// What is put in is not looked at again.
func (d *document) substitute(v *yaml.Node) (s scalar, ok bool) {
	s = scalar{node: v}
	in := v.Value
	if !strings.Contains(in, "${") {
		s.text = in
		return s, true
	}
	var b strings.Builder
	ok = true
	for i := 0; i < len(in); {
		next := strings.Index(in[i:], "${")
		if next < 0 {
			next = len(in) - i
		}
		at := i + next
		escaped := at < len(in) && at > i && in[at-1] == '$'
		if escaped {
			at--
		}
		s.pieces = append(s.pieces, piece{from: i, to: b.Len()})
		b.WriteString(in[i:at])
		if at == len(in) {
			break
		}
		if escaped {
			s.pieces = append(s.pieces, piece{from: at, to: b.Len(), fixed: true})
			b.WriteString("${")
			i = at + 3
			continue
		}
		end := strings.IndexByte(in[at:], '}')
		if end < 0 {
			d.errorf(v, RuleVariable, `"${" without "}"`).hint("a literal ${ is written $${")
			return s, false
		}
		s.pieces = append(s.pieces, piece{from: at, to: b.Len(), fixed: true})
		text, state := d.variable(v, in[at+2:at+end])
		switch state {
		case variableBad:
			ok = false
		case variableUnset:
			s.unset, d.unset = true, d.unset || !d.beside
		}
		b.WriteString(text)
		s.filled = append(s.filled, text)
		if b.Len() > maxSubstitutedBytes {
			d.errorf(v, RuleTooLarge, "more than %d bytes after substitution", maxSubstitutedBytes)
			return s, false
		}
		i = at + end + 1
	}
	s.text = b.String()
	return s, ok
}

type variableState uint8

const (
	variableSet variableState = iota
	variableUnset
	variableBad
)

// variable resolves what stands between ${ and }. Errors are reported at the scalar, never with a value.
func (d *document) variable(v *yaml.Node, inner string) (string, variableState) {
	if path, ok := strings.CutPrefix(inner, "file:"); ok {
		return d.fileVariable(v, path)
	}
	name, mode, text := inner, "", ""
	if i := strings.IndexByte(inner, ':'); i >= 0 {
		name = inner[:i]
		if i+1 < len(inner) {
			mode, text = inner[i+1:i+2], inner[i+2:]
		}
		if mode != "-" && mode != "?" {
			d.errorf(v, RuleVariable, "${%s} has an unknown form", inner).hint("known are ${VAR}, ${VAR:-default}, ${VAR:?message} and ${file:/path}")
			return "", variableBad
		}
	}
	if !isVariableName(name) {
		d.errorf(v, RuleVariable, "%q is not a name of a variable", name).hint("a literal ${ is written $${")
		return "", variableBad
	}
	value, set := "", false
	if d.opts.LookupEnv != nil {
		value, set = d.opts.LookupEnv(name)
	}
	switch {
	case mode == "-" && value == "":
		return text, variableSet
	case set && (mode == "" || value != ""):
		d.secrets[v] = true
		d.filled = append(d.filled, value)
		return value, variableSet
	case d.opts.AllowUnset:
		return "", variableUnset
	case mode == "?" && text != "":
		d.errorf(v, RuleVariable, "environment variable %s is not set: %s", name, text)
	default:
		d.errorf(v, RuleVariable, "environment variable %s is not set", name).hint("a default is written ${%s:-default}", name)
	}
	return "", variableBad
}

func (d *document) fileVariable(v *yaml.Node, path string) (string, variableState) {
	if path == "" {
		d.errorf(v, RuleVariable, "${file:} names no file")
		return "", variableBad
	}
	data, err := d.opts.ReadFile(path)
	switch {
	case err != nil && d.opts.AllowUnset:
		return "", variableUnset
	case err != nil:
		// The path is part of the message of most errors of package os: show it once.
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		d.errorf(v, RuleVariable, "cannot read the file %q: %v", path, err)
		return "", variableBad
	case len(data) > maxSubstitutedBytes:
		d.errorf(v, RuleTooLarge, "the file %q has more than %d bytes", path, maxSubstitutedBytes)
		return "", variableBad
	}
	d.secrets[v] = true
	text := strings.TrimRight(string(data), " \t\r\n")
	d.filled = append(d.filled, text)
	return text, variableSet
}

func isVariableName(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// mask takes what was put into a scalar out of a message about it.
func (s scalar) mask(message string) string {
	const least = 4 // shorter texts are no secrets, and stand in messages by chance
	for _, f := range s.filled {
		if len(f) >= least {
			message = strings.ReplaceAll(message, f, "***")
		}
	}
	return message
}

// shown returns the text of a scalar for a message: as it stands in the file, so that nothing that
// came from the environment is printed; masked if it is a secret itself.
func (d *document) shown(s scalar) string {
	const most = 80
	text := s.node.Value
	if d.secrets[s.node] && !strings.Contains(text, "${") {
		return `"***"`
	}
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "..."
	}
	return fmt.Sprintf("%q", text)
}
