package ingress

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// loop is a path that cannot be read, whoever asks.
func (r *fileRig) loop(name string) {
	r.t.Helper()
	r.must(os.Symlink(r.path(name), r.path(name)))
}

// A path that cannot be read costs the others nothing, and ends the source only if it stays so: who makes a file may give it its rights a moment
// later.
func TestUnreadableFileHasSomeTime(t *testing.T) {
	r := newFileRig(t, FilesConfig{})
	r.append("a", "1\n")
	r.loop("b")
	r.steps()
	r.want("1")
	r.at = r.at.Add(unreadableFor - time.Second)
	r.append("a", "2\n")
	r.steps()
	r.want("1", "2")
	r.must(os.Remove(r.path("b")))
	r.append("b", "3\n")
	r.steps()
	r.want("1", "2", "3")
	// The time begins anew.
	r.loop("c")
	r.steps()
	r.at = r.at.Add(unreadableFor - time.Second)
	r.steps()
	r.at = r.at.Add(2 * time.Second)
	if err := r.try(); !errors.Is(err, syscall.ELOOP) || !strings.Contains(err.Error(), r.path("c")) || !strings.Contains(err.Error(), "exclude") {
		t.Errorf("ended with %v", err)
	}
	r.want("1", "2", "3")
}

// A directory that cannot be read is not an empty one: its files are not gone, and a line that waits for its end is not whole after a while.
func TestUnreadableDirectoryIsNotEmpty(t *testing.T) {
	for name, paths := range map[string]string{"a pattern": "logs/*", "a name": "logs/app", "a pattern of directories": "*/app"} {
		t.Run(name, func(t *testing.T) {
			r := newFileRig(t, FilesConfig{LastLine: 10 * time.Second})
			r.cfg.Paths = []string{r.path(paths)}
			r.must(os.Mkdir(r.path("logs"), 0o700))
			r.append("logs/app", "1\nbegu")
			r.steps()
			aside := filepath.Join(t.TempDir(), "logs")
			r.must(os.Rename(r.path("logs"), aside))
			r.loop("logs")
			for range 3 {
				r.at = r.at.Add(15 * time.Second)
				r.steps()
			}
			r.want("1")
			r.must(os.Remove(r.path("logs")))
			r.must(os.Rename(aside, r.path("logs")))
			r.append("logs/app", "n\n")
			r.steps()
			r.want("1", "begun")
			r.must(os.Rename(r.path("logs"), aside))
			r.loop("logs")
			r.steps()
			r.at = r.at.Add(unreadableFor)
			if err := r.try(); !errors.Is(err, syscall.ELOOP) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// What is written between two looks at a file that was rotated away may go on: it is no last line yet.
func TestLastLineGrowsBetweenTwoLooks(t *testing.T) {
	r := newFileRig(t, FilesConfig{LastLine: 10 * time.Second})
	r.cfg.Paths = []string{r.path("app")}
	r.append("app", "1\n")
	r.steps()
	r.must(os.Rename(r.path("app"), r.path("rotated")))
	r.steps()
	r.at = r.at.Add(20 * time.Second)
	r.must(r.x.scan(r.at))
	r.append("rotated", "begu")
	b := &batch{after: map[*file]place{}}
	if _, err := r.x.read(r.x.files[0], b, r.at); err != nil || len(b.outs) > 0 {
		t.Fatalf("%v; %d records of a line that was begun just now", err, len(b.outs))
	}
	r.append("rotated", "n\n")
	r.steps()
	r.want("1", "begun")
}

// A file that was rotated away and cannot be looked at any more was not read to its end, and its place is kept: found again, it goes on there.
func TestGoneFileThatCannotBeLookedAtKeepsItsPlace(t *testing.T) {
	r := newFileRig(t, FilesConfig{LastLine: 10 * time.Second})
	r.cfg.Paths = []string{r.path("app")}
	r.append("app", "1\n")
	r.steps()
	r.must(os.Rename(r.path("app"), r.path("rotated")))
	r.steps()
	r.append("rotated", "2\n")
	r.must(r.x.files[0].f.Close()) // as of a file server that is gone, the descriptor is of no use
	for range 3 {
		r.at = r.at.Add(15 * time.Second)
		r.steps()
	}
	r.must(os.Rename(r.path("rotated"), r.path("app")))
	r.restart()
	r.steps()
	r.want("1", "2")
}
