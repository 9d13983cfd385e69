package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/operate"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
)

// errTapEnough ends a tap after --limit records.
var errTapEnough = errors.New("enough")

func (c *cli) tapCommand() *cobra.Command {
	var ask asking
	var q daemon.TapQuery
	var key string
	var ids, redact []string
	var out, duplicates, failures, asJSON bool
	var limit int
	var span time.Duration
	cmd := &cobra.Command{
		Use:   "tap STEP",
		Short: "Watch records as they pass a step of a running process",
		Long: `Show records that reach a step, as they are processed: where each stood, what became of it at the step, its key and its value. It shows payloads,
so it goes over the admin socket only, which belongs to the user of the process. One process shows what its own tasks see: if there are several,
ask each.

  streamd tap unique
  streamd tap unique --duplicates -n 2
  streamd tap totals --key a-7 --json
  streamd tap unique --id b-1001
  streamd tap in --every 1000                                     a sample: one of a thousand
  streamd tap publish --rate 5 --redact iban --redact name        fields of a JSON value, and headers, are shown as ***

What is shown is the record as it came into that part of the pipeline, and, at a step that writes a topic, what it writes. What became of it: out, duplicate,
conflict, too_late, filtered, late, no_match, ...; consumed (taken in, nothing came out yet), error, undone (it passed, and failed at another step).
It is not committed yet: if a transaction is run again, so is what is shown of it.

The pipeline does not wait for the tap: beyond --rate, or if nobody reads, records pass unseen, and how many is said with the next one.

Exit codes: 0; 2 there is no such step; 75 no process answers, or it ended.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Step, q.HasKey = args[0], cmd.Flags().Changed("key")
			q.Key = []byte(key)
			switch len(ids) {
			case 0:
			case 1:
				q.ID = record.StringID(ids[0])
			default:
				q.ID = record.CompositeID(ids...)
			}
			for _, x := range []struct {
				on   bool
				name string
			}{{out, processor.TapOut}, {duplicates, "duplicate"}, {failures, processor.TapError}, {failures, processor.TapUndone}} {
				if x.on {
					q.Results = append(q.Results, x.name)
				}
			}
			if limit < 0 || q.Rate < 1 || q.Every < 1 || span < 0 {
				return daemon.Usagef("--limit, --rate, --every and --for are numbers above zero")
			}
			client, err := ask.client()
			if err != nil {
				return err
			}
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			shown := 0
			err = client.Tap(ctx, q, func() {
				if span > 0 {
					time.AfterFunc(span, stop)
				}
				if !c.quiet && !c.noProgress {
					_, _ = fmt.Fprintf(c.stderr, "tapping %s (Ctrl-C ends it)\n", q.Step)
				}
			}, func(t processor.Tapped) error {
				if err := writeTapped(c.stdout, &t, redact, asJSON); err != nil {
					return err
				}
				if t.Position == "" {
					return nil
				}
				if shown++; shown == limit {
					return errTapEnough
				}
				return nil
			})
			if errors.Is(err, errTapEnough) {
				return nil
			}
			return err
		},
	}
	f := cmd.Flags()
	ask.flags(f)
	f.StringVar(&q.Pipeline, "pipeline", "", "pipeline of the process (default: the only one)")
	f.BoolVar(&out, "out", false, "only records that left the step")
	f.BoolVar(&duplicates, "duplicates", false, "only records that are duplicates there")
	f.BoolVar(&failures, "errors", false, "only records that failed there, or later")
	f.StringVar(&key, "key", "", "only records with this key")
	f.StringArrayVar(&ids, "id", nil, "only records with this ID; repeat it for one of several parts")
	f.IntVarP(&limit, "limit", "n", 0, "end after so many records (0: no end)")
	f.DurationVar(&span, "for", 0, "end after this time (0: no end)")
	f.IntVar(&q.Rate, "rate", 100, "records a second at most, up to 1000")
	f.IntVar(&q.Every, "every", 1, "show one of so many of the records that are wanted")
	f.StringArrayVar(&redact, "redact", nil, "name of a field, at any depth of a JSON value, or of a header whose value is not shown; repeat it")
	f.BoolVar(&asJSON, "json", false, "print a line of JSON for each")
	return cmd
}

// tappedLine is a tapped record as it is printed.
type tappedLine struct {
	processor.Tapped
	Key     operate.Bytes           `json:"key"`
	Value   operate.Bytes           `json:"value"`
	Headers []operate.ContentHeader `json:"headers"`
}

func writeTapped(w io.Writer, t *processor.Tapped, redact []string, asJSON bool) error {
	line := tappedLine{Tapped: *t, Key: t.Key, Value: redacted(t.Value, redact), Headers: []operate.ContentHeader{}}
	for _, h := range t.Headers {
		shown := operate.ContentHeader{Key: h.Key, Value: h.Value}
		if containsFold(redact, h.Key) {
			shown.Value = []byte(blanked)
		}
		line.Headers = append(line.Headers, shown)
	}
	if asJSON {
		return json.NewEncoder(w).Encode(line)
	}
	var b strings.Builder
	if t.Missed > 0 {
		fmt.Fprintf(&b, "... %d more passed\n", t.Missed)
	}
	if t.Position == "" { // that some passed is all there is to say
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "%s  %s", t.Position, strings.Join(t.Results, ","))
	if t.To != "" {
		fmt.Fprintf(&b, "  → %s", t.To)
	}
	fmt.Fprintf(&b, "  %s  %s", line.Key, line.Value)
	if t.Cut {
		b.WriteString("…")
	}
	if t.Error != "" {
		fmt.Fprintf(&b, "  ! %s", operate.Printable(t.Error))
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// redacted is a JSON value without the values of some fields. What is no JSON (also: what was cut) is not shown at all then: nobody can
// say where the field is in it.
func redacted(value []byte, fields []string) []byte {
	if len(fields) == 0 || value == nil {
		return value
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil || d.More() {
		return []byte("(not JSON: not shown)")
	}
	out, err := json.Marshal(blank(v, fields))
	if err != nil {
		return []byte("(not shown)")
	}
	return out
}

// blanked stands for what is not shown.
const blanked = "***"

func blank(v any, fields []string) any {
	switch x := v.(type) {
	case map[string]any:
		for k, y := range x {
			if x[k] = blank(y, fields); containsFold(fields, k) {
				x[k] = blanked
			}
		}
	case []any:
		for i, y := range x {
			x[i] = blank(y, fields)
		}
	}
	return v
}

func containsFold(list []string, s string) bool {
	for _, x := range list {
		if strings.EqualFold(x, s) {
			return true
		}
	}
	return false
}
