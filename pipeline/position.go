package pipeline

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// locate returns line and column, in the file, of a byte offset in the value of a scalar. It walks the
// source text from where the scalar starts and matches it with the value, skipping what YAML leaves
// out: quotes, escapes, indentation, folded line breaks. That holds for every style of scalar.
func (d *document) locate(n *yaml.Node, offset int) (line, column int) {
	w := walker{lines: d.lines, line: n.Line, column: n.Column}
	switch n.Style &^ yaml.TaggedStyle {
	case yaml.LiteralStyle, yaml.FoldedStyle:
		// The text starts on the line after the indicator.
		w.line, w.column = n.Line+1, 1
	case yaml.DoubleQuotedStyle:
		w.column++
		w.escapes = true
	case yaml.SingleQuotedStyle:
		w.column++
	}
	if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		w.skipProperties()
	}
	offset = min(offset, len(n.Value))
	for _, r := range n.Value[:offset] {
		if unicode.IsSpace(r) {
			// In a block, a line break of the value is one of the file.
			if r == '\n' && n.Style&yaml.LiteralStyle != 0 {
				w.line, w.column = w.line+1, 1
			}
			continue
		}
		w.match(r)
	}
	// White space before the offset, and the start of the character that stands there.
	if r, _ := utf8.DecodeRuneInString(n.Value[offset:]); offset < len(n.Value) && !unicode.IsSpace(r) {
		w.seek(r)
	}
	return w.line, w.column
}

// walker is a place in the source text.
type walker struct {
	lines        []string
	line, column int // of the next character; both from 1
	escapes      bool
	runes        []rune // of the line runesOf
	runesOf      int
}

// text returns the characters of the current line.
func (w *walker) text() []rune {
	if w.runesOf != w.line {
		w.runes, w.runesOf = []rune(w.lines[w.line-1]), w.line
	}
	return w.runes
}

func (w *walker) current() (rune, bool) {
	for w.line >= 1 && w.line <= len(w.lines) {
		rest := w.text()
		if w.column <= len(rest) {
			return rest[w.column-1], true
		}
		if w.line == len(w.lines) {
			return 0, false
		}
		w.line, w.column = w.line+1, 1
	}
	return 0, false
}

// seek moves to the next place where r, or an escape that may stand for it, is written. It stays if
// there is none nearby.
func (w *walker) seek(r rune) {
	at := *w
	for range 4096 {
		c, ok := at.current()
		if !ok {
			return
		}
		if c == r || at.escapes && c == '\\' {
			*w = at
			return
		}
		at.column++
	}
}

// match moves behind r.
func (w *walker) match(r rune) {
	w.seek(r)
	c, ok := w.current()
	if !ok {
		return
	}
	w.column++
	if !w.escapes || c != '\\' {
		return
	}
	e, _ := w.current()
	w.column++
	w.column += map[rune]int{'x': 2, 'u': 4, 'U': 8}[e]
}

// skipProperties moves behind an anchor or a tag in front of the scalar.
func (w *walker) skipProperties() {
	for {
		c, ok := w.current()
		if !ok || c != '&' && c != '!' {
			return
		}
		rest := string(w.text()[w.column-1:])
		end := strings.IndexAny(rest, " \t")
		if end < 0 {
			return
		}
		w.column += utf8.RuneCountInString(rest[:end])
		for {
			if c, ok := w.current(); !ok || c != ' ' && c != '\t' {
				break
			}
			w.column++
		}
	}
}
