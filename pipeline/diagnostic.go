package pipeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Severity says whether a diagnostic prevents the pipeline from running.
type Severity uint8

// The severities.
const (
	SeverityWarning Severity = iota
	SeverityError
)

// String returns "warning" or "error".
func (s Severity) String() string {
	if s == SeverityError {
		return "error"
	}
	return "warning"
}

// Rules name the kinds of diagnostics, so that a user can search for one and silence it.
const (
	RuleSyntax        = "syntax"         // not YAML, or YAML that cannot be a pipeline
	RuleTooLarge      = "too-large"      // beyond a limit of the loader
	RuleUnknownField  = "unknown-field"  //
	RuleMissingField  = "missing-field"  //
	RuleDuplicateKey  = "duplicate-key"  //
	RuleWrongType     = "wrong-type"     // a list where a mapping is expected, and so on
	RuleInvalidValue  = "invalid-value"  // the right type, but not a value that means something
	RuleNotAvailable  = "not-available"  // part of the format, not of this version
	RuleVariable      = "variable"       // a ${...} that cannot be resolved
	RuleExpression    = "expression"     // CEL
	RuleUnknownName   = "unknown-name"   // a source, step or type that is not there
	RuleDuplicateName = "duplicate-name" //
	RuleOneOperator   = "one-operator"   // a step with none or several
	RuleFrom          = "from"           // a step without a clear input
	RuleSet           = "set"            // --set does not fit the file
	RuleUnknownRule   = "unknown-rule"   // in a streamd:ignore comment
	RuleDedupScope    = "dedup-scope"    // the scope of a dedup step is not written down
	RuleIDTooCoarse   = "id-too-coarse"  // an ID that different records share
	RuleIDContentHash = "id-is-content-hash"
	RuleIDPosition    = "id-is-position" // an ID that only our own re-delivery repeats
	RuleIDNotAList    = "id-not-a-list"
	RuleFloatMoney    = "float-money"
	RuleMissingUnit   = "retention-missing-unit"
	RuleUnusedSource  = "unused-source"
	RuleUnusedType    = "unused-type"
	RuleUnusedStep    = "unused-step"
	RuleNoDeadLetter  = "no-dead-letter"
	// RuleWindowNotWritten: results of windows are written without a word of which window.
	RuleWindowNotWritten = "window-not-written"
	RuleNoSink           = "no-sink"           // a pipeline that writes nothing
	RuleLoop             = "loop"              // a topic that the pipeline reads, too, is written
	RuleTopology         = "topology"          // each step is right, together they are not
	RuleAnonymous        = "anonymous-records" // what is sent again cannot be told from what is new
	RuleOpenPort         = "open-port"         // whoever reaches an address can write
	maxShownProblems     = 100
	maxExcerptRunes      = 160
	maxSuggestDistance   = 2
)

// ruleNames lists every rule, for streamd:ignore.
func ruleNames() []string {
	return []string{
		RuleSyntax, RuleTooLarge, RuleUnknownField, RuleMissingField, RuleDuplicateKey, RuleWrongType, RuleInvalidValue,
		RuleNotAvailable, RuleVariable, RuleExpression, RuleUnknownName, RuleDuplicateName, RuleOneOperator, RuleFrom, RuleSet,
		RuleUnknownRule, RuleDedupScope, RuleIDTooCoarse, RuleIDContentHash, RuleIDPosition, RuleIDNotAList, RuleFloatMoney,
		RuleMissingUnit, RuleUnusedSource, RuleUnusedType, RuleUnusedStep, RuleNoDeadLetter, RuleNoSink, RuleTopology, RuleWindowNotWritten, RuleLoop,
		RuleAnonymous, RuleOpenPort,
	}
}

// Diagnostic is one thing that is wrong, or doubtful, in a pipeline file.
type Diagnostic struct {
	// File is the name of the file, or the option ("--set path") that the text came from.
	File string `json:"file"`
	// Line and Column count from 1, columns in characters. Both are 0 if there is no position.
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	Severity Severity `json:"-"`
	Rule     string   `json:"rule"`
	Message  string   `json:"message"`
	Hints    []string `json:"hints,omitempty"`
	// Excerpt is the source line, with secrets masked. Empty without a position.
	Excerpt string `json:"-"`

	caret int // the column in the excerpt
}

// Position returns "file:line:column".
func (d Diagnostic) Position() string {
	if d.Line == 0 {
		return d.File
	}
	return fmt.Sprintf("%s:%d:%d", d.File, d.Line, d.Column)
}

// Header returns the first line of the text: position, severity, message and rule.
func (d Diagnostic) Header() string {
	return fmt.Sprintf("%s: %s: %s [%s]", d.Position(), d.Severity, d.Message, d.Rule)
}

// String returns the whole text: header, source line with caret, hints.
func (d Diagnostic) String() string {
	var b strings.Builder
	b.WriteString(d.Header())
	if d.Excerpt != "" {
		line, column := cutExcerpt(d.Excerpt, d.caret)
		fmt.Fprintf(&b, "\n%5d | %s\n      | %s^", d.Line, line, strings.Repeat(" ", max(column-1, 0)))
	}
	for _, h := range d.Hints {
		b.WriteString("\n      = ")
		b.WriteString(h)
	}
	return b.String()
}

// cutExcerpt shortens a long line around the column. Tabs become single spaces, so that the caret
// stands where it should.
func cutExcerpt(line string, column int) (string, int) {
	runes := []rune(strings.ReplaceAll(line, "\t", " "))
	if len(runes) <= maxExcerptRunes {
		return string(runes), column
	}
	from := max(column-1-maxExcerptRunes/2, 0)
	to := min(from+maxExcerptRunes, len(runes))
	from = max(to-maxExcerptRunes, 0)
	out, shift := string(runes[from:to]), from
	if from > 0 {
		out, shift = "..."+out, from-3
	}
	if to < len(runes) {
		out += "..."
	}
	return out, column - shift
}

// Error is what Load returns for a file that cannot run: all diagnostics, warnings included.
type Error struct {
	// Diagnostics are sorted by position.
	Diagnostics []Diagnostic
}

// Error returns every diagnostic in full, one after the other.
func (e *Error) Error() string { return Format(e.Diagnostics) }

// Count returns how many errors and warnings there are.
func (e *Error) Count() (errors, warnings int) {
	for _, d := range e.Diagnostics {
		if d.Severity == SeverityError {
			errors++
		} else {
			warnings++
		}
	}
	return errors, warnings
}

// Format returns the text of several diagnostics, without a newline at the end. At most 100 are
// written out.
func Format(ds []Diagnostic) string {
	var b strings.Builder
	for i, d := range ds {
		if i == maxShownProblems {
			fmt.Fprintf(&b, "\n... and %d more", len(ds)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(d.String())
	}
	return b.String()
}

// sortDiagnostics orders by position; what has none comes last. Exact repeats (a mistake behind a
// YAML alias is met once for each use) are dropped.
func sortDiagnostics(ds []Diagnostic) []Diagnostic {
	slices.SortStableFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(b2i(a.Line == 0), b2i(b.Line == 0)),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Message, b.Message))
	})
	return slices.CompactFunc(ds, func(a, b Diagnostic) bool { return a.Header() == b.Header() })
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// suggest returns `; did you mean "x"?` for the candidate nearest to name, or "": one edit in a name of
// three characters, two in one of five.
func suggest(name string, candidates []string) string {
	best, bestDistance := "", maxSuggestDistance+1
	for _, c := range candidates {
		if c == name {
			continue
		}
		if d := editDistance(strings.ToLower(name), strings.ToLower(c), maxSuggestDistance); d < bestDistance && 2*d < utf8.RuneCountInString(name) {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// editDistance is the number of insertions, deletions, changes and swaps of neighbours between a
// and b, or limit+1 if it is larger.
func editDistance(a, b string, limit int) int {
	x, y := []rune(a), []rune(b)
	if abs(len(x)-len(y)) > limit || len(x) > 100 || len(y) > 100 {
		return limit + 1
	}
	rows := [3][]int{make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)}
	before, last, row := rows[0], rows[1], rows[2]
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row[0] = i
		for j := 1; j <= len(y); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+b2i(x[i-1] != y[j-1]))
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(y)], limit+1)
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

// quotedList returns "a, b, c" for messages.
func quotedList(names []string) string { return strings.Join(names, ", ") }
