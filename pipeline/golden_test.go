package pipeline

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testOptions is the environment of the golden files.
func testOptions(file string) Options {
	env := map[string]string{"NAME": "bills", "EMPTY": "", "SECRET": "top secret", "PLAIN_SECRET": "topsecret", "KAFKA_BROKERS": "a:1,b:2"}
	return Options{
		File:      file,
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
	}
}

// report is what a user sees of a load.
func report(p *Pipeline, err error) string {
	var e *Error
	switch {
	case errors.As(err, &e):
		errs, warnings := e.Count()
		return fmt.Sprintf("%s\n%d errors, %d warnings\n", e, errs, warnings)
	case err != nil:
		return fmt.Sprintf("unexpected error: %v\n", err)
	case len(p.Warnings) > 0:
		return Format(p.Warnings) + "\nok\n"
	}
	return "ok\n"
}

// TestMistakes compares the whole text for each kind of mistake with testdata/mistakes/*.txt. After a
// change that is wanted: go test ./pipeline -run 'Mistakes|Examples' -update, then read the difference.
func TestMistakes(t *testing.T) { golden(t, "testdata/mistakes", 40) }

// TestExamples does the same for whole pipelines: the first runs.
func TestExamples(t *testing.T) {
	golden(t, "testdata/pipelines", 4)
	p, err := LoadFile("testdata/pipelines/1-dedup.yaml", Options{})
	if err != nil {
		t.Fatal(err)
	}
	topo, err := p.Topology()
	if err != nil {
		t.Fatal(err)
	}
	if got := topo.Describe(); !strings.Contains(got, "Processor: unique (stores: [unique-ids])") {
		t.Errorf("got:\n%s", got)
	}
}

func golden(t *testing.T, dir string, least int) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < least {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Load(data, testOptions(name+".yaml"))
			got := report(p, err)
			if again, err := Load(data, testOptions(name+".yaml")); report(again, err) != got {
				t.Error("a second load says something else")
			}
			for _, secret := range []string{"hunter2", "top secret", "topsecret"} {
				if strings.Contains(got, secret) {
					t.Errorf("the text shows the secret %q", secret)
				}
			}
			compare(t, strings.TrimSuffix(file, ".yaml")+".txt", got)
		})
	}
}

// compare compares with a golden file, or writes it.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden files")
	flag.Parse()
	os.Exit(m.Run())
}
