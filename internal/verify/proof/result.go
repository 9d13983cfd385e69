package proof

import (
	"fmt"
	"slices"
)

// maxDifferences bounds what a result remembers; it counts all.
const maxDifferences = 20

// Difference is one thing that is not as it must be.
type Difference struct {
	Where string `json:"where"` // topic/partition@offset, or a task
	What  string `json:"what"`
}

// Result is the outcome of one check.
type Result struct {
	Check string `json:"check"` // "C1"
	Title string `json:"title"`
	// Compared is how many things were compared. A check that compared nothing proves nothing.
	Compared int64 `json:"compared"`
	// Differences counts all, First are the first 20 of them.
	Differences int64        `json:"differences"`
	First       []Difference `json:"first,omitempty"`
	// Skipped says why it was not checked; empty: it was.
	Skipped string `json:"skipped,omitempty"`
	// Partial says that something is there that was not compared: Skipped or Notes say what.
	Partial bool `json:"partial,omitempty"`
	// Notes are what a reader should know that is no difference.
	Notes []string `json:"notes,omitempty"`
}

// NewResult begins a result.
func NewResult(check, title string) *Result { return &Result{Check: check, Title: title} }

// Skip makes a result of a check that could not be made.
func Skip(check, title, why string) *Result {
	r := NewResult(check, title)
	r.Leave(why)
	return r
}

// Leave says that a check was not made, though there is something to check.
func (r *Result) Leave(why string) { r.Skipped, r.Partial = why, true }

// Lack notes something that was not compared.
func (r *Result) Lack(format string, args ...any) {
	r.Partial = true
	r.Note(format, args...)
}

// Differ notes a difference.
func (r *Result) Differ(where, format string, args ...any) {
	if r.Differences++; len(r.First) < maxDifferences {
		r.First = append(r.First, Difference{where, fmt.Sprintf(format, args...)})
	}
}

// Note notes what is no difference.
func (r *Result) Note(format string, args ...any) {
	if len(r.Notes) < maxDifferences {
		r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
	}
}

// OK says that something was compared and nothing differed, or that there was nothing to check.
func (r *Result) OK() bool { return r.Differences == 0 }

// State is "equal", "different" or "not checked".
func (r *Result) State() string {
	switch {
	case r.Differences > 0:
		return "different"
	case r.Skipped != "":
		return "not checked"
	}
	return "equal"
}

// Complete says whether of several results each has compared all that is there.
func Complete(results []*Result) bool {
	return !slices.ContainsFunc(results, func(r *Result) bool { return r.Partial })
}

// OK says whether no result of several has a difference.
func OK(results []*Result) bool {
	for _, r := range results {
		if !r.OK() {
			return false
		}
	}
	return true
}
