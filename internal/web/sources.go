package web

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/ingress"
)

type sourceRow struct {
	Name, Kind, Where, Records, Refused, Position, Waits, Last, Topic string
}

// sources lists the sources outside of Kafka.
func sources(now time.Time, all []ingress.Status) (out []sourceRow) {
	for _, s := range all {
		out = append(out, sourceRow{
			Name: s.Name, Kind: string(s.Kind), Where: s.Where, Records: Count(s.Records), Refused: SourceRefused(s), Position: SourcePosition(s, now),
			Waits: s.Waits, Last: SourceError(s, now), Topic: s.Topic,
		})
	}
	return out
}

// SourceRefused says in a line what a source did not take, by reason; "0" if there is nothing.
func SourceRefused(s ingress.Status) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(s.Refused)) {
		parts = append(parts, Count(s.Refused[reason])+" "+strings.ReplaceAll(reason, "_", " "))
	}
	if s.LongLines > 0 {
		parts = append(parts, Count(s.LongLines)+" long lines")
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ", ")
}

// SourcePosition says in a line how far a source is, as its kind has it.
func SourcePosition(s ingress.Status, now time.Time) string {
	switch {
	case s.Files != nil:
		return Count(s.Files.Known) + " files, " + Size(uint64(max(0, s.Files.Behind))) + " behind"
	case s.Table != nil:
		return tablePosition(s.Table, now)
	case s.HTTP != nil:
		return senders(s.HTTP, "in flight", now)
	case s.TCP != nil:
		return senders(s.TCP, "connections", now)
	}
	return ""
}

func tablePosition(t *ingress.TableStatus, now time.Time) string {
	if !t.Reading {
		return "not read here"
	}
	out := "number " + Count(t.Number)
	if !t.ReadAt.IsZero() {
		out += " read " + Since(now, t.ReadAt) + " ago"
	}
	out += ", " + Count(t.Behind) + " numbers behind"
	if t.Undecided != "" {
		out += fmt.Sprintf(", undecided for %s: %s", Age(time.Duration(t.UndecidedSeconds*float64(time.Second))), t.Undecided)
	}
	return out
}

func senders(s *ingress.SenderStatus, what string, now time.Time) string {
	out := Count(s.Open) + " " + what
	if !s.OldestSince.IsZero() {
		out += ", oldest " + Since(now, s.OldestSince)
	}
	return out
}

// SourceError is the last failure with its age; empty: none.
func SourceError(s ingress.Status, now time.Time) string {
	if s.LastError == "" {
		return ""
	}
	return Since(now, s.LastErrorAt) + " ago: " + s.LastError
}
