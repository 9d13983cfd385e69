package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program whose help looks like streamd's.
const program = `#!/bin/sh
case "$*" in
"--help") printf 'Runs things.\n\nTry it:\n  streamd   not-a-command\n\nUsage:\n  streamd [command]\n\nRun\n  run         Run it\n\nAdditional Commands:\n  help        Help about any command\n  ids         Sets of IDs\n\nFlags:\n  -q, --quiet   less\n';;
"run --help") printf 'Run it.\n.dot\n\nUsage:\n  streamd run FILE\n\nFlags:\n      --http string   a\\b\n';;
"ids --help") printf 'Sets.\n\nUsage:\n  streamd ids [command]\n\nAvailable Commands:\n  import      In\n\nFlags:\n  -h, --help\n';;
"ids import --help") printf 'In.\n\nUsage:\n  streamd ids import FILE\n';;
completion*) echo "script of $2";;
*) exit 3;;
esac
`

func TestPagesAndCompletions(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "streamd")
	if err := os.WriteFile(binary, []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := write(t.Context(), binary, dir); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man/*"))
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range pages {
		pages[i] = filepath.Base(p)
	}
	if got := strings.Join(pages, " "); got != "streamd-ids-import.1 streamd-ids.1 streamd-run.1 streamd.1" {
		t.Errorf("pages: %s", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "man/streamd-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".SH USAGE\n", ".SH FLAGS\n", `\&.dot`, `\-\-http string   a\eb`, `streamd\-run \- Run it` + "\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if text, err := os.ReadFile(filepath.Join(dir, "completions/streamd."+shell)); err != nil || string(text) != "script of "+shell+"\n" {
			t.Errorf("%s: %q, %v", shell, text, err)
		}
	}
}
