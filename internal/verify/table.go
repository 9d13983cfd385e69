package verify

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/streamd/streamd/internal/verify/proof"
)

// WriteTable prints a line for each check, and below it the first differences with their places.
func WriteTable(w io.Writer, results []*proof.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CHECK\tRESULT\tCOMPARED\tWHAT")
	for _, r := range results {
		state, compared := r.State(), fmt.Sprint(r.Compared)
		if r.Differences > 0 {
			state = fmt.Sprintf("%d DIFFER", r.Differences)
		}
		title := r.Title
		if r.Skipped != "" {
			title += ": " + r.Skipped
			compared = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Check, state, compared, title)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		for _, n := range r.Notes {
			fmt.Fprintf(w, "%s: %s\n", r.Check, n)
		}
		for _, d := range r.First {
			fmt.Fprintf(w, "%s: %s: %s\n", r.Check, d.Where, d.What)
		}
		if more := r.Differences - int64(len(r.First)); more > 0 {
			fmt.Fprintf(w, "%s: and %d more\n", r.Check, more)
		}
	}
	return nil
}
