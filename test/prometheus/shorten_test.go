//go:build prometheus

package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Where a rule has a time: `for:`, a range or the step of a subquery, `offset`; and, in seconds, what time() less a timestamp, or an age, is
// compared with.
var (
	forTime    = regexp.MustCompile(`(?m)^(\s+for: )(\d+[smhd])$`)
	rangeTime  = regexp.MustCompile(`([\[:])(\d+[smhd])\b`)
	offsetTime = regexp.MustCompile(`(\boffset )(\d+[smhd])\b`)
	ageTime    = regexp.MustCompile(`((?:time\(\)[^\n]*|_undecided_seconds\) )> )(\d+)\b`)
)

// shorten makes each minute of the rules a second, so that hours of alerts can be seen in a minute; nothing else is changed. Prometheus has to
// scrape and evaluate sixty times as often as well: each 500 ms, as of each 30 s.
func shorten(rules string) string {
	for _, at := range []*regexp.Regexp{forTime, rangeTime, offsetTime, ageTime} {
		rules = at.ReplaceAllStringFunc(rules, func(s string) string {
			m := at.FindStringSubmatch(s)
			return m[1] + shorter(m[2])
		})
	}
	return rules
}

// shorter is a sixtieth of a duration of Prometheus, or of a number of seconds.
func shorter(s string) string {
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		return strconv.FormatFloat(n/60, 'f', -1, 64)
	}
	unit := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[s[len(s)-1]]
	n, err := strconv.Atoi(s[:len(s)-1])
	if err != nil {
		panic(err) // the expressions above allow digits only
	}
	return strconv.FormatInt((time.Duration(n)*unit/60).Milliseconds(), 10) + "ms"
}

func TestShorten(t *testing.T) {
	in := "- record: a:ratio5m\n  expr: max_over_time(a[2m] offset 5m) > 1000 and min_over_time((sum(increase(b[1m])))[5m:1m]) > 6\n" +
		"  expr: (time() - max by (pipeline) (x) > 600)\n  expr: max by (pipeline) (a_undecided_seconds) > 600\n  for: 1h\n  labels: {severity: warning}\n"
	want := "- record: a:ratio5m\n  expr: max_over_time(a[2000ms] offset 5000ms) > 1000 and min_over_time((sum(increase(b[1000ms])))[5000ms:1000ms]) > 6\n" +
		"  expr: (time() - max by (pipeline) (x) > 10)\n  expr: max by (pipeline) (a_undecided_seconds) > 10\n  for: 60000ms\n  labels: {severity: warning}\n"
	if got := shorten(in); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	text, err := os.ReadFile(filepath.Join(rules, rulesName))
	if err != nil {
		t.Fatal(err)
	}
	// No time of the real rules is passed over.
	for _, line := range strings.Split(shorten(string(text)), "\n") {
		trimmed := strings.TrimSpace(line)
		prose := strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "summary:") || strings.HasPrefix(trimmed, "description:")
		if !prose && regexp.MustCompile(`\b\d+[smhd]\b`).MatchString(trimmed) {
			t.Errorf("a time is as long as before: %s", trimmed)
		}
	}
}

// shortened writes the real rules, shortened, and returns the file.
func shortened(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(rules, rulesName))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "shortened.yaml")
	if err := os.WriteFile(path, []byte(shorten(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program(t, "promtool"), "check", "rules", path).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	return path
}
