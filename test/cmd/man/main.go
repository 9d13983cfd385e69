package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "man: want BINARY FOLDER")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := write(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// write makes everything below folder.
func write(ctx context.Context, binary, folder string) error {
	for _, dir := range []string{"man", "completions"} {
		if err := os.MkdirAll(filepath.Join(folder, dir), 0o755); err != nil {
			return err
		}
	}
	say := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, binary, args...).Output()
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", binary, strings.Join(args, " "), err)
		}
		return string(out), nil
	}
	var pages func(title string, path []string) error
	pages = func(title string, path []string) error {
		help, err := say(append(path, "--help")...)
		if err != nil {
			return err
		}
		name := strings.Join(append([]string{"streamd"}, path...), "-")
		if err := os.WriteFile(filepath.Join(folder, "man", name+".1"), []byte(page(name, title, help)), 0o644); err != nil {
			return err
		}
		for _, c := range commands(help) {
			if err := pages(c.short, append(path[:len(path):len(path)], c.name)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := pages("process records on Kafka exactly once", nil); err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := say("completion", shell)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, "completions", "streamd."+shell), []byte(script), 0o644); err != nil {
			return err
		}
	}
	return nil
}

var (
	// A section begins with a word at the margin and a line of commands below it: "  run    Run one or more pipelines".
	commandLine = regexp.MustCompile(`^  ([a-z][a-z-]*)\s{2,}(\S.*)`)
	heading     = regexp.MustCompile(`^[A-Z][A-Za-z ]*:?$`)
)

// command is one that a help lists.
type command struct{ name, short string }

// commands are those that a help lists: between the usage and the flags, where the text before the usage may have examples
// that look alike.
func commands(help string) []command {
	_, rest, _ := strings.Cut(help, "\nUsage:\n")
	rest, _, _ = strings.Cut(rest, "\nFlags:\n")
	var out []command
	inUsage := true
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		if heading.MatchString(line) {
			inUsage = line == "Aliases:" || line == "Examples:"
			continue
		}
		if m := commandLine.FindStringSubmatch(line); m != nil && !inUsage && m[1] != "help" {
			out = append(out, command{m[1], m[2]})
		}
	}
	return out
}

// page is a man page of a help's text, as it is: without filling, so that examples and tables stay what they are.
func page(name, title, help string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" streamd\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n", escape(strings.ToUpper(name)), escape(name), escape(title))
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		if head, ok := strings.CutSuffix(line, ":"); ok && heading.MatchString(line) {
			fmt.Fprintf(&b, ".fi\n.SH %s\n.nf\n", escape(strings.ToUpper(head)))
			continue
		}
		b.WriteString(escape(line) + "\n")
	}
	b.WriteString(".fi\n")
	return b.String()
}

// escape keeps roff from reading a line of text as one of its own.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
