package pipeline

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// text reads a value that is any text but the empty one.
func (d *document) text(n *yaml.Node, what string) string {
	s, ok := d.scalar(n, what)
	if !ok || s.unset {
		return ""
	}
	if strings.TrimSpace(s.text) == "" {
		d.errorf(n, RuleInvalidValue, "%s is empty", what)
	}
	return s.text
}

// optional reads a text from a field that need not be there.
func (o *object) optional(name string) string {
	n := o.get(name)
	if n == nil {
		return ""
	}
	return o.d.text(n, name)
}

// boolean reads true or false.
func (d *document) boolean(n *yaml.Node, what string) bool {
	s, ok := d.scalar(n, what)
	switch {
	case !ok || s.unset:
		return false
	case s.text == "true" || s.text == "false":
		return s.text == "true"
	}
	d.errorf(n, RuleWrongType, "%s must be true or false, this is %s", what, d.shown(s))
	return false
}

// choice reads one of the given words. It returns "" after a report.
func (d *document) choice(n *yaml.Node, what string, words ...string) string {
	s, ok := d.scalar(n, what)
	if !ok || s.unset {
		return ""
	}
	for _, w := range words {
		if w == s.text {
			return w
		}
	}
	d.errorf(n, RuleInvalidValue, "%s is not one of %s%s", d.shown(s), quotedList(words), suggest(s.text, words))
	return ""
}

// level reads a guarantee, one of those that are allowed. It returns "" after a report.
func (d *document) level(n *yaml.Node, allowed ...topology.Level) topology.Level {
	words := make([]string, len(allowed))
	for i, l := range allowed {
		words[i] = string(l)
	}
	return topology.Level(d.choice(n, "guarantee", words...))
}

// durationUnits are the units of a duration, the largest first.
func durationUnits() []struct {
	name string
	unit time.Duration
} {
	return []struct {
		name string
		unit time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"ms", time.Millisecond}, {"m", time.Minute}, {"s", time.Second}}
}

// duration reads a duration such as 90s, 1h30m or 7d. It returns 0 after a report.
func (d *document) duration(n *yaml.Node, what string) time.Duration {
	s, ok := d.scalar(n, what)
	if !ok || s.unset {
		return 0
	}
	if _, err := strconv.ParseFloat(s.text, 64); err == nil {
		d.errorf(n, RuleMissingUnit, "%s has no unit", d.shown(s)).hint("write a duration such as %ss, 15m or 7d", strings.TrimSpace(s.text))
		return 0
	}
	total, ok := parseDuration(s.text)
	if !ok {
		note := d.errorf(n, RuleInvalidValue, "%s is not a duration such as 90s, 15m, 1h30m or 7d", d.shown(s))
		if t := strings.ReplaceAll(s.text, " ", ""); t != s.text {
			if i := strings.IndexFunc(t, func(r rune) bool { return r < '0' || r > '9' }); i > 0 {
				if _, ok := parseDuration(t[:i+1]); ok {
					note.hint("did you mean %s?", t[:i+1])
				}
			}
		}
		return 0
	}
	return total
}

func parseDuration(text string) (time.Duration, bool) {
	var total time.Duration
	if text == "" {
		return 0, false
	}
	for text != "" {
		digits := 0
		for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
			digits++
		}
		v, err := strconv.ParseInt(text[:digits], 10, 64)
		if err != nil {
			return 0, false
		}
		text = text[digits:]
		var unit time.Duration
		for _, u := range durationUnits() {
			if strings.HasPrefix(text, u.name) {
				unit, text = u.unit, text[len(u.name):]
				break
			}
		}
		if unit == 0 || v > int64(math.MaxInt64-total)/int64(unit) {
			return 0, false
		}
		total += time.Duration(v) * unit
	}
	return total, true
}

// count reads a number of things: 1000, 50k, 50M, 2G. It returns 0 after a report.
func (d *document) count(n *yaml.Node, what string) int {
	s, ok := d.scalar(n, what)
	if !ok || s.unset {
		return 0
	}
	text, unit := s.text, int64(1)
	if text != "" {
		switch text[len(text)-1] {
		case 'k', 'K':
			unit = 1e3
		case 'M':
			unit = 1e6
		case 'G', 'B':
			unit = 1e9
		}
		if unit > 1 {
			text = text[:len(text)-1]
		}
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil || v < 1 || v > math.MaxInt/unit {
		d.errorf(n, RuleInvalidValue, "%s must be a count such as 1000, 500k or 50M, this is %s", what, d.shown(s))
		return 0
	}
	return int(v * unit)
}

// ratio reads a number between from and to.
func (d *document) ratio(n *yaml.Node, what string, from, to float64) float64 {
	s, ok := d.scalar(n, what)
	if !ok || s.unset {
		return 0
	}
	v, err := strconv.ParseFloat(s.text, 64)
	if err != nil || !(v >= from && v <= to) {
		d.errorf(n, RuleInvalidValue, "%s must be a number from %v to %v, this is %s", what, from, to, d.shown(s))
		return 0
	}
	return v
}

// name reads an identity that becomes part of topic names and metric labels: letters, digits, ".", "_"
// and "-", at most 100 characters.
func (d *document) name(n *yaml.Node, what string) string {
	s, ok := d.scalar(n, what)
	if !ok || s.unset {
		return ""
	}
	if !d.checkName(n, s.text, what) {
		return ""
	}
	return s.text
}

func (d *document) checkName(n *yaml.Node, name, what string) bool {
	const most = 100
	bad := strings.IndexFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	switch {
	case name == "" || len(name) > most:
		d.errorf(n, RuleInvalidValue, "%s must have 1 to %d characters", what, most)
	case bad >= 0:
		r, _ := utf8.DecodeRuneInString(name[bad:])
		d.errorf(n, RuleInvalidValue, "%s may hold letters, digits, - and _ only, not %q", what, r).
			hint("it becomes part of topic names, transactional IDs and metric labels")
	default:
		return true
	}
	return false
}

// variableText is a variable in a text.
var variableText = regexp.MustCompile(`\$\{([^}:]*)[^}]*\}`)

// topic reads the name of a Kafka topic. A variable without a value stands for itself by its name: what a pipeline computes
// does not depend on how its topics are called.
func (d *document) topic(n *yaml.Node, what string) string {
	beside := d.beside
	d.beside = true
	s, ok := d.scalar(n, what)
	d.beside = beside
	switch {
	case !ok:
		return ""
	case s.unset:
		s.text = variableText.ReplaceAllString(d.visit(n).Value, "$1")
	}
	// Kafka's org.apache.kafka.common.internals.Topic: 249 characters of [a-zA-Z0-9._-], not "." and "..".
	bad := strings.IndexFunc(s.text, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	if s.text == "" || len(s.text) > 249 || bad >= 0 || s.text == "." || s.text == ".." {
		d.errorf(n, RuleInvalidValue, "%s %s is not a name of a topic", what, d.shown(s)).
			hint("Kafka allows 1 to 249 letters, digits, '.', '_' and '-'")
		return ""
	}
	return s.text
}

// sorted returns the names in order.
func sorted(names []string) []string {
	slices.Sort(names)
	return names
}
