package topology

import (
	"errors"
	"fmt"
)

// Problem is a mistake in a topology. Build returns all of them, joined.
type Problem struct {
	// Operator is the operator's name, or the application's if the problem is not about an operator.
	Operator string
	// Rule names the kind of mistake: name, duplicate-name, topic, duplicate-topic, loop, serde,
	// function, option, retention, window, unused, unkeyed, store, builder, empty, guarantee.
	Rule string
	What string
}

// Error returns "topology: "operator": what [rule]".
func (p *Problem) Error() string {
	return fmt.Sprintf("topology: %q: %s [%s]", p.Operator, p.What, p.Rule)
}

// Problems takes the mistakes out of an error of Build.
func Problems(err error) []*Problem {
	var p *Problem
	if errors.As(err, &p) && error(p) == err {
		return []*Problem{p}
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var all []*Problem
	for _, e := range joined.Unwrap() {
		all = append(all, Problems(e)...)
	}
	return all
}

// maxTopicName is Kafka's limit.
const maxTopicName = 249

// topicNameProblem says what is wrong with a topic's name, or "".
func topicNameProblem(name string) string {
	switch {
	case name == "":
		return "is empty"
	case name == "." || name == "..":
		return "is not allowed"
	case len(name) > maxTopicName:
		return fmt.Sprintf("has %d characters, Kafka allows %d", len(name), maxTopicName)
	}
	for _, c := range name {
		if !legalNameChar(c) {
			return fmt.Sprintf("contains %q, Kafka allows only letters, digits, '.', '_' and '-'", c)
		}
	}
	return ""
}

func legalNameChar(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// joinProblems makes one error of all.
func joinProblems(problems []*Problem) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}
