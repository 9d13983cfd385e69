package ingress

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// watchedFile tells of each look into it.
type watchedFile struct {
	*os.File
	look func()
}

func (f watchedFile) ReadAt(b []byte, off int64) (int, error) {
	f.look()
	return f.File.ReadAt(b, off)
}

func (f watchedFile) Stat() (os.FileInfo, error) {
	f.look()
	return f.File.Stat()
}

// TestFilesCutBetweenTwoLooks: a file is copied and cut, or cut behind its copy, between any two looks of a step, and may have grown beyond
// where it was by the next one. Each line comes once.
func TestFilesCutBetweenTwoLooks(t *testing.T) {
	for _, early := range []bool{false, true} { // the copy is there before
		for _, regrown := range []int{0, 1, 40} {
			for at, struck := 1, true; struck; at++ {
				struck = cutAt(t, at, early, regrown)
				if t.Failed() {
					t.Fatalf("cut at look %d, copied early: %v, %d lines behind", at, early, regrown)
				}
				if at > 200 {
					t.Fatal("a step has no end")
				}
			}
		}
	}
}

// cutAt says whether there was a look of that number.
func cutAt(t *testing.T, at int, early bool, regrown int) (struck bool) {
	t.Helper()
	r := newFileRig(t, FilesConfig{})
	n, armed := 0, false
	var all []string
	line := func() string {
		all = append(all, fmt.Sprintf("%d %s", len(all), strings.Repeat("x", 200)))
		return all[len(all)-1] + "\n"
	}
	grow := func(lines int) {
		for range lines {
			r.append("app.log", line())
		}
	}
	duplicate := func() {
		content, err := os.ReadFile(r.path("app.log"))
		r.must(err)
		r.must(os.WriteFile(r.path("app.log.1"), content, 0o600))
	}
	r.look = func() {
		if !armed {
			return
		}
		if n++; n != at {
			return
		}
		if !early {
			duplicate()
		}
		r.must(os.Truncate(r.path("app.log"), 0))
		grow(regrown)
	}
	grow(10)
	r.steps()
	grow(10)
	if early {
		duplicate()
	}
	armed = true
	r.steps()
	armed = false
	grow(10)
	r.steps()
	r.restart()
	r.steps()
	if n >= at {
		r.want(all...)
	}
	return n >= at
}
