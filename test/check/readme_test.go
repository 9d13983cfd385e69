package check_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	command  = regexp.MustCompile("`go test (?:-tags \\S+ )?\\./(\\S+) -run ([^`]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestTheTrackRecordNamesTests: a command of the track record that runs nothing shows nothing.
func TestTheTrackRecordNamesTests(t *testing.T) {
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := command.FindAllStringSubmatch(string(data), -1)
	if len(found) < 10 {
		t.Fatalf("%d commands", len(found))
	}
	for _, m := range found {
		files, err := filepath.Glob(filepath.Join("../..", filepath.FromSlash(m[1]), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range files {
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range testFunc.FindAllStringSubmatch(string(src), -1) {
				names = append(names, n[1])
			}
		}
		for one := range strings.SplitSeq(strings.Trim(m[2], "'"), `\|`) {
			run, err := regexp.Compile(one)
			if err != nil {
				t.Errorf("%s: %v", m[0], err)
				continue
			}
			if !run.MatchString(strings.Join(names, "\n")) {
				t.Errorf("%s: no test of ./%s is called like %q", m[0], m[1], one)
			}
		}
	}
}
