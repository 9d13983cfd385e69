package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// argumentName is a name of an argument in a usage line: FILE, PARTITION@OFFSET, FILE|DIR|./...
var argumentName = regexp.MustCompile(`^[A-Z@]+[|./A-Z]*$`)

// nameArguments lets a command, and those below it, say which of its arguments is missing or too much, by the names in its usage line.
func nameArguments(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		nameArguments(c)
	}
	check := cmd.Args
	if check == nil || cmd.HasSubCommands() { // those speak of commands
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		if why := argumentError(cmd.Use, args); why != "" {
			err = errors.New(why)
		}
		return fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())
	}
}

// argumentError compares arguments with a usage line. Empty: that does not tell what is wrong.
func argumentError(use string, args []string) string {
	words := strings.Fields(use)[1:]
	var missing []string
	takes, many := 0, false
	for i, w := range words {
		if i > 0 && strings.HasPrefix(words[i-1], "--") { // the value of a flag
			continue
		}
		name := strings.TrimSuffix(w, "...")
		bare := strings.Trim(w, "[].")
		switch {
		case argumentName.MatchString(name) && !strings.HasPrefix(w, "["):
			if takes++; takes > len(args) {
				if strings.HasSuffix(name, "/") { // the three dots are those of ./...
					name = w
				}
				missing = append(missing, name)
			}
		case strings.HasPrefix(w, "[") || argumentName.MatchString(bare):
			takes++
		}
		many = many || strings.HasSuffix(strings.TrimRight(w, "]"), "...")
	}
	switch {
	case len(missing) > 0:
		return strings.Join(missing, " and ") + ": missing"
	case !many && len(args) > takes:
		return fmt.Sprintf("%q: unexpected, there is no such argument", args[takes])
	}
	return ""
}
