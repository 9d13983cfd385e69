package operate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/txlog"
)

// The findings have been printed: what the command ends with names each kind once.
func TestDoctorNamesEachKindOnce(t *testing.T) {
	e := Examination{Findings: []Finding{{Severity: Failure}, {Severity: Failure}, {Severity: Warning}}}
	err := e.Err()
	if !errors.Is(err, ErrUnfit) || !errors.Is(err, daemon.ErrConfig) || strings.Count(err.Error(), "configuration") != 1 {
		t.Errorf("%q", err)
	}
}

// A directory in which nothing can be made, and room in which nothing is written, are said before a start.
func TestDoctorLooksAtTheDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		look  func(*doctor)
		want  Severity
		words string
	}{
		"behind a file":     {func(d *doctor) { d.disk(filepath.Join(file, "state")) }, Warning, "cannot write there"},
		"not there yet":     {func(d *doctor) { d.room("/dir", 500<<30, 1000<<30) }, Fine, "500.0 GiB"},
		"little room":       {func(d *doctor) { d.room("/dir", 2<<30, 1000<<30) }, Warning, "only 2.0 GiB"},
		"nothing's written": {func(d *doctor) { d.room("/dir", 255<<20, 1<<30) }, Failure, "255 MiB free"},
	} {
		d := &doctor{out: &Examination{}}
		c.look(d)
		if f := d.out.Findings; len(f) != 1 || f[0].Severity != c.want || !strings.Contains(f[0].Message, c.words) {
			t.Errorf("%s: %+v", what, f)
		}
		if err := d.out.Err(); c.want == Failure && (!errors.Is(err, txlog.ErrDiskFull) || daemon.ExitCode(err) != daemon.ExitTemporary) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
