package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// stage is one FROM, and what it leaves.
type stage struct {
	Name, Base string
	Steps      []step
	Config     config
}

// step is a WORKDIR, a RUN or a COPY.
type step struct {
	Kind           string
	Path           string   `json:",omitempty"` // of WORKDIR
	Script         string   `json:",omitempty"` // of RUN
	Caches         []string `json:",omitempty"` // where RUN has them
	Env            []string `json:",omitempty"` // of RUN: ENV and ARG so far
	From, To       string   `json:",omitempty"` // of COPY; From is a stage, "" is the context
	Sources        []string `json:",omitempty"`
	Owner, Allowed string   `json:",omitempty"` // --chown, --chmod
}

// config is what the image says of its containers.
type config struct {
	Entrypoint, Cmd, Volumes, Ports, Env []string
	User, Dir, StopSignal                string
	Labels                               map[string]string
	Health                               *health `json:",omitempty"`
}

type health struct {
	Test                           []string
	Interval, Timeout, StartPeriod time.Duration
	Retries                        int
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "dockerfile: want FILE [ARG=VALUE]...")
		os.Exit(2)
	}
	stages, err := read(os.Args[1], os.Args[2:])
	var files []string
	if err == nil {
		files, err = context(".")
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(map[string]any{"Stages": stages, "Context": files})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dockerfile:", err)
		os.Exit(1)
	}
}

func read(path string, args []string) ([]stage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ast, err := parser.Parse(f)
	if err != nil {
		return nil, err
	}
	parsed, meta, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		return nil, err
	}
	if len(meta) > 0 {
		return nil, fmt.Errorf("%s: ARG before the first FROM is not known here", path)
	}
	given := map[string]string{}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		given[name] = value
	}
	lex := shell.NewLex(ast.EscapeToken)
	var out []stage
	for _, p := range parsed {
		s := stage{Name: p.Name, Base: p.BaseName, Config: config{Labels: map[string]string{}}}
		v := variables{given: given}
		for _, c := range p.Commands {
			if e, ok := c.(instructions.SupportsSingleWordExpansion); ok {
				expand := func(word string) (string, error) {
					text, _, err := lex.ProcessWord(word, shell.EnvsFromSlice(v.all))
					return text, err
				}
				if err := e.Expand(expand); err != nil {
					return nil, fmt.Errorf("%s: %v: %w", path, c, err)
				}
			}
			if err := s.add(c, &v); err != nil {
				return nil, fmt.Errorf("%s: %v: %w", path, c, err)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// context lists what a builder gets of a folder: all files but those that .dockerignore names.
func context(root string) ([]string, error) {
	var patterns []string
	f, err := os.Open(filepath.Join(root, ".dockerignore"))
	if err == nil {
		patterns, err = ignorefile.ReadAll(f)
		_ = f.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, err
	}
	var files []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		no, err := ignored.MatchesOrParentMatches(path)
		switch {
		case err != nil:
			return err
		case no && d.IsDir() && !ignored.Exclusions():
			return fs.SkipDir
		case !no && d.Type().IsRegular():
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// variables are those of one stage.
type variables struct {
	given map[string]string
	all   []string
}

func (s *stage) add(c instructions.Command, v *variables) error {
	switch c := c.(type) {
	case *instructions.ArgCommand:
		for _, a := range c.Args {
			value, ok := v.given[a.Key]
			if !ok {
				value = a.ValueString()
			}
			v.all = append(v.all, a.Key+"="+value)
		}
	case *instructions.EnvCommand:
		for _, e := range c.Env {
			v.all = append(v.all, e.String())
			s.Config.Env = append(s.Config.Env, e.String())
		}
	case *instructions.LabelCommand:
		for _, l := range c.Labels {
			s.Config.Labels[l.Key] = l.Value
		}
	case *instructions.WorkdirCommand:
		s.Config.Dir = c.Path
		s.Steps = append(s.Steps, step{Kind: "workdir", Path: c.Path})
	case *instructions.RunCommand:
		if !c.PrependShell {
			return fmt.Errorf("RUN without a shell is not known here")
		}
		run := step{Kind: "run", Script: strings.Join(c.CmdLine, " "), Env: append([]string(nil), v.all...)}
		for _, m := range instructions.GetMounts(c) {
			if m.Type != instructions.MountTypeCache {
				return fmt.Errorf("a mount of type %s is not known here", m.Type)
			}
			run.Caches = append(run.Caches, m.Target)
		}
		s.Steps = append(s.Steps, run)
	case *instructions.CopyCommand:
		if len(c.SourceContents) > 0 || len(c.ExcludePatterns) > 0 {
			return fmt.Errorf("COPY of a here-document or with exclusions is not known here")
		}
		s.Steps = append(s.Steps, step{Kind: "copy", From: c.From, Sources: c.SourcePaths, To: c.DestPath, Owner: c.Chown, Allowed: c.Chmod})
	case *instructions.VolumeCommand:
		s.Config.Volumes = append(s.Config.Volumes, c.Volumes...)
	case *instructions.ExposeCommand:
		s.Config.Ports = append(s.Config.Ports, c.Ports...)
	case *instructions.UserCommand:
		s.Config.User = c.User
	case *instructions.StopSignalCommand:
		s.Config.StopSignal = c.Signal
	case *instructions.HealthCheckCommand:
		h := c.Health
		s.Config.Health = &health{h.Test, h.Interval, h.Timeout, h.StartPeriod, h.Retries}
	case *instructions.EntrypointCommand:
		s.Config.Entrypoint = command(c.ShellDependantCmdLine)
	case *instructions.CmdCommand:
		s.Config.Cmd = command(c.ShellDependantCmdLine)
	default:
		return fmt.Errorf("%s is not known here", c.Name())
	}
	return nil
}

// command is what is run: by a shell if it was not written as a list.
func command(c instructions.ShellDependantCmdLine) []string {
	if c.PrependShell {
		return append([]string{"/bin/sh", "-c"}, c.CmdLine...)
	}
	return c.CmdLine
}
