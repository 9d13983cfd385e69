package operate

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/daemon"
)

// The findings have been printed: what the command ends with names each kind once.
func TestDoctorNamesEachKindOnce(t *testing.T) {
	e := Examination{Findings: []Finding{{Severity: Failure}, {Severity: Failure}, {Severity: Warning}}}
	err := e.Err()
	if !errors.Is(err, ErrUnfit) || !errors.Is(err, daemon.ErrConfig) || strings.Count(err.Error(), "configuration") != 1 {
		t.Errorf("%q", err)
	}
}
