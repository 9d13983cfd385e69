package daemon

import (
	"fmt"

	"github.com/streamd/streamd/pipeline"
)

// Compare adds what the checked file would give up of the state of an older version of it: an error for each.
func (r *Report) Compare(old string, c LoadConfig) error {
	if len(r.Files) != 1 {
		return Usagef("--against compares one file, here are %d", len(r.Files))
	}
	f := &r.Files[0]
	if !f.OK {
		return nil // first of all it must be right
	}
	_, before, err := loadTopology(old, c)
	if err != nil {
		return fmt.Errorf("--against: %w", err)
	}
	_, after, err := loadTopology(f.File, c)
	if err != nil {
		return err
	}
	for _, o := range before.Orphans(after) {
		d := pipeline.Diagnostic{
			File: f.File, Severity: pipeline.SeverityError, Rule: pipeline.RuleNameChanged,
			Message: fmt.Sprintf("%q of %s: %s", o.Operator, old, o.What),
			Hints:   []string{o.Remedy, fmt.Sprintf("to accept the loss: streamd run --drop-state %s", o.Operator)},
		}
		f.Diagnostics, f.Lines = append(f.Diagnostics, d), append(f.Lines, diagnosticJSON{d.Severity.String(), d})
		f.OK = false
		r.Errors++
	}
	return nil
}
