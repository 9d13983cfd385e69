package pipeline

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamd/streamd/topology"
)

// TestConditionsThatAreNone: what a field of a source without a type holds is known when a record is there.
// One that is not true or false is an error of that record, by the step's policy, and never "false"; with
// a type, it is an error of the file.
func TestConditionsThatAreNone(t *testing.T) {
	for step, in := range map[string]string{
		"filter": "  - {name: cond, filter: value.x}\n",
		"branch": "  - {name: cond, branch: {yes: value.x, rest: otherwise}}\n",
	} {
		t.Run(step, func(t *testing.T) {
			from := ""
			if step == "branch" {
				from = ", from: cond.yes"
			}
			text := head("sources: {in: {topic: in%s}}\nsteps:\n%s  - {name: out, to: {topic: out}%s}\n", "TYPE", in, from)
			if step == "branch" {
				text += "  - {name: rest, from: cond.rest, to: {topic: rest}}\n"
			}
			h := run(t, strings.Replace(text, "TYPE", "", 1))
			for _, value := range []string{`{"x":5}`, `{"x":"true"}`, `{"x":null}`, `{"x":[true]}`, `{}`} {
				err := h.send("in", nil, []byte(value))
				var oe *topology.OperatorError
				if !errors.As(err, &oe) || oe.Operator != "cond" || oe.Stage != topology.StageProcess {
					t.Errorf("%s: %v, want an error of the step", value, err)
				}
				if value == `{"x":5}` && !strings.Contains(err.Error(), "must be true or false, this is") {
					t.Errorf("%s: %v", value, err)
				}
			}
			for _, value := range []string{`{"x":true}`, `{"x":false}`} {
				if err := h.send("in", nil, []byte(value)); err != nil {
					t.Errorf("%s: %v", value, err)
				}
			}
			if len(h.out["out"]) != 1 {
				t.Errorf("%d records passed, want 1", len(h.out["out"]))
			}
			typed := strings.Replace(text, "sources:", "types: {T: {x: int}}\nsources:", 1)
			_, err := Load([]byte(strings.Replace(typed, "TYPE", ", type: T", 1)), Options{})
			if err == nil || !strings.Contains(err.Error(), "bool") {
				t.Errorf("with a type: %v", err)
			}
		})
	}
}
