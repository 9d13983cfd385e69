package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
)

// Who forgets an argument is told its name, and how the command is called.
func TestMissingArgumentsAreNamed(t *testing.T) {
	for line, want := range map[string]string{
		"doctor":                "streamd: FILE: missing\nusage: streamd doctor FILE [flags]\n",
		"run":                   "streamd: FILE: missing\nusage: streamd run FILE... [flags]\n",
		"validate":              "streamd: FILE|DIR|./...: missing\nusage: streamd validate FILE|DIR|./... [flags]\n",
		"dlq show":              "streamd: FILE and PARTITION@OFFSET: missing\nusage: streamd dlq show FILE PARTITION@OFFSET [flags]\n",
		"dlq show a.yaml":       "streamd: PARTITION@OFFSET: missing\n",
		"inspect id a.yaml":     "streamd: ID: missing\n",
		"inspect store":         "streamd: FILE: missing\n",
		"inspect store a b c d": "streamd: \"d\": unexpected, there is no such argument\n",
		"leave":                 "streamd: FILE: missing\nusage: streamd leave FILE --instance ID [flags]\n",
		"doctor a.yaml b.yaml":  "streamd: \"b.yaml\": unexpected, there is no such argument\nusage: streamd doctor FILE [flags]\n",
		"status x":              "streamd: \"x\": unexpected, there is no such argument\n",
		"bundle a.yaml b.yaml":  "streamd: \"b.yaml\": unexpected, there is no such argument\n",
		"eval":                  "streamd: EXPR: missing\n",
		"tap":                   "streamd: STEP: missing\n",
		"init totals windows":   "streamd: \"windows\": unexpected, there is no such argument\n",
	} {
		var stdout, stderr bytes.Buffer
		code := run(strings.Fields(line), &stdout, &stderr)
		if code != daemon.ExitUsage || !strings.Contains(stderr.String(), want) || !strings.Contains(stderr.String(), "--help'") {
			t.Errorf("streamd %s: exit code %d, %q; want %q", line, code, stderr.String(), want)
		}
	}
	// No command speaks in cobra's own words.
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Args == nil || c.HasSubCommands() {
			return
		}
		for _, args := range [][]string{nil, make([]string, 9)} {
			if err := c.Args(c, args); err != nil && strings.Contains(err.Error(), "arg(s)") {
				t.Errorf("%s: %v", c.CommandPath(), err)
			}
		}
	}
	walk((&cli{}).root())
}
