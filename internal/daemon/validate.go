package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/streamd/streamd/pipeline"
)

// ErrInvalid: a file was found wrong. What is wrong has been printed.
var ErrInvalid = fmt.Errorf("invalid pipeline files: %w", ErrConfig)

// ErrWarnings: strict, and there were warnings. They have been printed.
var ErrWarnings = errors.New("warnings, and --strict is set")

// Report is the outcome of checking pipeline files.
type Report struct {
	Files    []FileReport `json:"files"`
	Errors   int          `json:"errors"`
	Warnings int          `json:"warnings"`
}

// FileReport is the outcome for one file.
type FileReport struct {
	File        string                `json:"file"`
	OK          bool                  `json:"ok"`
	Diagnostics []pipeline.Diagnostic `json:"-"`
	Lines       []diagnosticJSON      `json:"diagnostics"`
}

type diagnosticJSON struct {
	Severity string `json:"severity"`
	pipeline.Diagnostic
}

// Validate checks pipeline files without any network. An error other than what is wrong with the
// files comes back as such.
func Validate(files []string, c LoadConfig) (Report, error) {
	c.AllowUnset = true
	o, err := c.options()
	if err != nil {
		return Report{}, err
	}
	r := Report{Files: []FileReport{}}
	for _, f := range files {
		diagnostics, err := check(f, o)
		if err != nil {
			return Report{}, err
		}
		file := FileReport{File: f, OK: true, Diagnostics: diagnostics, Lines: []diagnosticJSON{}}
		for _, d := range diagnostics {
			if d.Severity == pipeline.SeverityError {
				r.Errors++
				file.OK = false
			} else {
				r.Warnings++
			}
			file.Lines = append(file.Lines, diagnosticJSON{d.Severity.String(), d})
		}
		r.Files = append(r.Files, file)
	}
	return r, nil
}

// check returns what is wrong with one file, the topology included: the loader and the builder each
// see mistakes that the other does not.
func check(file string, o pipeline.Options) ([]pipeline.Diagnostic, error) {
	p, err := pipeline.LoadFile(file, o)
	var bad *pipeline.Error
	if errors.As(err, &bad) {
		return bad.Diagnostics, nil
	}
	if err != nil {
		return nil, err
	}
	diagnostics := p.Warnings
	if _, err := p.Topology(); err != nil && !errors.Is(err, pipeline.ErrUnset) {
		diagnostics = append(diagnostics, pipeline.Diagnostic{File: file, Severity: pipeline.SeverityError, Rule: "topology", Message: err.Error()})
	}
	return diagnostics, nil
}

// Err is what the command ends with.
func (r Report) Err(strict bool) error {
	switch {
	case r.Errors > 0:
		return ErrInvalid
	case strict && r.Warnings > 0:
		return ErrWarnings
	}
	return nil
}

// Write prints a report as text, json or github (annotations of a workflow run).
func (r Report) Write(w io.Writer, format string) error {
	switch format {
	case "text":
		return r.writeText(w)
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	case "github":
		return r.writeGitHub(w)
	}
	return Usagef("format %q is not one of text, json, github", format)
}

func (r Report) writeText(w io.Writer) error {
	for _, f := range r.Files {
		errs, warnings := 0, 0
		for _, d := range f.Diagnostics {
			if d.Severity == pipeline.SeverityError {
				errs++
			} else {
				warnings++
			}
		}
		if len(f.Diagnostics) > 0 {
			if _, err := fmt.Fprintln(w, pipeline.Format(f.Diagnostics)); err != nil {
				return err
			}
		}
		word := "ok"
		if errs > 0 {
			word = Plural(errs, "error")
		}
		if warnings > 0 {
			word += ", " + Plural(warnings, "warning")
		}
		if _, err := fmt.Fprintf(w, "%s: %s\n", f.File, word); err != nil {
			return err
		}
	}
	return nil
}

func (r Report) writeGitHub(w io.Writer) error {
	// Newlines and the characters that end a property are written as the workflow commands ask for.
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, f := range r.Files {
		for _, d := range f.Diagnostics {
			message := strings.Join(append([]string{d.Message}, d.Hints...), "\n")
			if _, err := fmt.Fprintf(w, "::%s file=%s,line=%d,col=%d,title=%s::%s\n", d.Severity,
				property.Replace(d.File), max(d.Line, 1), max(d.Column, 1), property.Replace(d.Rule), data.Replace(message)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Plural is a number of things: 1 broker, 2 brokers.
func Plural(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}
