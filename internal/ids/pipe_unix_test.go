//go:build unix

package ids

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A named pipe is read as standard input is: once, and never gone on with.
func TestCSVFromAPipe(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(text string) (print string, ids []string) {
		t.Helper()
		wrote := make(chan error, 1)
		go func() { wrote <- os.WriteFile(name, []byte(text), 0o600) }()
		s, err := openCSV(name, SourceConfig{Stdin: strings.NewReader("")})
		if err != nil {
			t.Fatal(err)
		}
		for {
			row, err := s.read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, string(s.entry(row).id))
		}
		if err := errors.Join(<-wrote, s.close()); err != nil {
			t.Fatal(err)
		}
		return s.fingerprint(), ids
	}
	first, ids := read("a\nb\n")
	if got := strings.Join(ids, " "); got != "a b" {
		t.Errorf("read %q", got)
	}
	if second, _ := read("a\nb\n"); second == first {
		t.Error("two pipes are one source")
	}
}
