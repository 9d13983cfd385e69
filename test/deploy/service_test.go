package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const unit = "deploy/systemd/streamd@.service"

// settings reads a unit: the values of each key, in order.
func settings(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	section := ""
	for _, line := range strings.Split(read(t, unit), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			section = strings.Trim(line, "[]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("not a setting: %q", line)
		}
		out[section+"."+key] = append(out[section+"."+key], value)
	}
	return out
}

func TestUnit(t *testing.T) {
	s := settings(t)
	for key, want := range map[string]string{
		"Service.Type":                     "notify",
		"Service.Restart":                  "on-failure",
		"Service.RestartPreventExitStatus": "2 78", // daemon.ExitUsage, daemon.ExitConfig
		"Service.StateDirectory":           "streamd/%i",
		"Service.DynamicUser":              "yes",
		"Service.TimeoutStartSec":          "infinity", // a restore takes what it takes
	} {
		if got := s[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	}
	stop, err := time.ParseDuration(s["Service.TimeoutStopSec"][0])
	if err != nil || stop <= time.Minute { // the default of --shutdown-timeout
		t.Errorf("TimeoutStopSec %v, %v: it must be longer than the shutdown timeout", stop, err)
	}
}

// TestUnitVerified asks systemd itself, where there is one. Programs and users that are not installed here are not its
// matter; unknown keys and values are.
func TestUnitVerified(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd-analyze on this machine: TestUnit has read the unit")
		return
	}
	// A program that exists in place of the installed one.
	dir := t.TempDir()
	text := strings.ReplaceAll(read(t, unit), "/usr/bin/streamd", "/bin/true")
	path := filepath.Join(dir, "streamd@.service")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", path).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "streamd") }); i >= 0 || err != nil {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
