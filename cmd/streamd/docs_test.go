package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

// command is a line of a page that somebody may type.
type command struct {
	where string
	args  []string // behind the name of the program
}

// typed finds the command of a line, without its comment and what a shell would do with its output.
func typed(where, line string) (command, bool) {
	line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
	for _, name := range []string{"go run ./cmd/streamd ", "streamd "} {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		var args []string
		rest, _, _ = strings.Cut(rest, "   ") // help texts say what it does behind a gap
		for _, w := range words(rest) {
			if w == "|" || w == ">" || w == "&" || w == "&&" || w == ";" || strings.HasPrefix(w, "#") {
				break
			}
			args = append(args, w)
		}
		return command{where, args}, true
	}
	return command{}, false
}

// words are those of a line, as a shell sees them.
func words(line string) (out []string) {
	var word strings.Builder
	open, quote := false, rune(0)
	for _, c := range line + " " {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, open = c, true
		case quote == 0 && c == ' ':
			if open || word.Len() > 0 {
				out = append(out, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(c)
		}
	}
	return out
}

// pages are what a reader finds: all Markdown files but those that tell of the past.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel("../..", path)
		if err != nil {
			return err
		}
		if d.IsDir() && (name == "docs/adr" || name == "build" || strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".md") && name != "CHANGELOG.md" {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out[name] = string(data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Each command that a page or a help text shows is one of the program's, with flags that it has and as many arguments as it takes.
func TestCommandsOfThePagesAreThere(t *testing.T) {
	var all []command
	for name, text := range pages(t) {
		fenced := false
		for n, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
				continue
			}
			if c, ok := typed(fmt.Sprintf("%s:%d", name, n+1), line); ok && (fenced || strings.HasPrefix(line, "    ")) {
				all = append(all, c)
			}
		}
	}
	documented := len(all)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for line := range strings.Lines(c.Long) {
			if x, ok := typed(c.CommandPath()+" --help", line); ok && strings.HasPrefix(line, "  ") {
				if at := slices.IndexFunc(x.args, func(w string) bool { return w == "" }); at < 0 {
					all = append(all, x)
				}
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&cli{}).root())
	if documented < 40 || len(all) < documented+60 {
		t.Errorf("%d commands were found in pages, %d in all", documented, len(all))
	}
	for _, c := range all {
		if err := fits(c.args); err != nil {
			t.Errorf("%s: streamd %s: %v", c.where, strings.Join(c.args, " "), err)
		}
	}
}

// fits is an error if the program does not take these arguments.
func fits(args []string) error {
	root := (&cli{}).root()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(asGoDoes(args))
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if help, _ := c.Flags().GetBool("help"); help || !c.Runnable() {
		return nil
	}
	return c.ValidateArgs(c.Flags().Args())
}

// The other language shows the same commands, programs and outputs, and names the same pages.
func TestBothReadmesShowTheSame(t *testing.T) {
	all := pages(t)
	blocks := func(name string) []string { return fencedBlock.FindAllString(all[name], -1) }
	links := func(name string) []string {
		out := pageLink.FindAllString(all[name], -1)
		slices.Sort(out)
		return slices.DeleteFunc(slices.Compact(out), func(l string) bool { return strings.HasPrefix(l, "](README") })
	}
	const other = "README.zh-CN.md"
	if b := blocks("README.md"); len(b) < 5 || !slices.Equal(b, blocks(other)) {
		t.Errorf("README.md has %d blocks, and %s others", len(b), other)
	}
	if l := links("README.md"); len(l) < 10 || !slices.Equal(l, links(other)) {
		t.Errorf("README.md has the links\n%s, and %s\n%s", l, other, links(other))
	}
}

var (
	pageLink    = regexp.MustCompile(`\]\([^)]+\)`)
	fencedBlock = regexp.MustCompile("(?s)```(\\w*)\n(.*?)```")
	daemonPart  = regexp.MustCompile(`(?s)\n## As a daemon\n(.*?)\n## `)
)

// TestTheSessionOfTheReadme does what the README tells a reader to type, line by line.
func TestTheSessionOfTheReadme(t *testing.T) {
	part := daemonPart.FindStringSubmatch(pages(t)["README.md"])
	if part == nil {
		t.Fatal("README.md has no part that is called As a daemon")
	}
	var file string
	var lines []command
	for _, b := range fencedBlock.FindAllStringSubmatch(part[1], -1) {
		if b[1] == "yaml" {
			file = b[2]
			continue
		}
		for line := range strings.Lines(b[2]) {
			if c, ok := typed("README.md", line); ok {
				lines = append(lines, c)
			}
		}
	}
	var s strings.Builder
	fmt.Fprintln(&s, "closedport KAFKA\nenv KAFKA_BROKERS=$KAFKA\nenv STREAMD_HTTP=127.0.0.1:0")
	for _, c := range lines {
		quoted := make([]string, len(c.args))
		for i, w := range c.args {
			quoted[i] = "'" + strings.ReplaceAll(w, "localhost:9092", "'$KAFKA'") + "'"
		}
		line := "exec streamd " + strings.Join(quoted, " ")
		switch c.args[0] {
		case "dev":
			fmt.Fprintf(&s, "%s --port $KAFKA_PORT &dev&\nlistening $KAFKA\n", line)
		case "run":
			fmt.Fprintf(&s, "%s &run&\nuntil streamd status --check\nsend $KAFKA bills.raw bills.txt\nreceive $KAFKA bills.unique want.txt\n", line)
		case "init":
			fmt.Fprintf(&s, "%s\ncp stdout totals.yaml\n", line)
		case "soak":
			fmt.Fprintf(&s, "%s\n", strings.ReplaceAll(line, "'1m'", "'3s'"))
		default:
			fmt.Fprintln(&s, line)
		}
	}
	fmt.Fprintf(&s, "kill -INT run\nwait run\nkill -INT dev\nwait dev\n-- pipeline.yaml --\n%s-- bills.txt --\nanna\t{\"bill_id\":\"b-1\"}\nanna\t{\"bill_id\":\"b-1\"}\n-- want.txt --\n{\"bill_id\":\"b-1\"}\n", file)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "readme.txtar"), []byte(s.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(lines) < 8 || file == "" {
		t.Errorf("only %d commands", len(lines))
	}
	testscript.Run(t, sessions(dir))
}
