package metric

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	metricName  = regexp.MustCompile(`\bstreamd_[a-z0-9_]*[a-z0-9]\b`)
	alertName   = regexp.MustCompile(`(?m)^\s+- alert: (\w+)`)
	runbookName = regexp.MustCompile(`(?m)^\s+runbook_url: docs/runbooks/(\w+)\.md$`)
)

const repository = "../.."

// named calls f for every metric that a file below the folders names.
func named(t *testing.T, f func(path, name string), roots ...string) {
	t.Helper()
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join(repository, root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, name := range metricName.FindAllString(string(text), -1) {
				f(path, name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A rule, a dashboard or a page that names a metric which is not there shows nothing, for ever.
func TestEveryMetricNamedSomewhereExists(t *testing.T) {
	known := map[string]bool{"streamd_progress": true, "streamd_version": true} // of the database sinks, not metrics
	for _, d := range slices.Concat(Catalogue(), IngressCatalogue(), ProcessCatalogue()) {
		known[d.Name] = true
		if d.Type == Histogram {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				known[d.Name+part] = true
			}
		}
	}
	seen := 0
	named(t, func(path, name string) {
		seen++
		// A recording rule leaves out the _total of the counter that it sums.
		if !known[name] && !known[name+"_total"] {
			t.Errorf("%s names %s, which is not in the catalogue", path, name)
		}
	}, "deploy", "docs", "README.md", "SAFETY.md", "ARCHITECTURE.md")
	if seen < 50 {
		t.Errorf("%d names were looked at: the test looks in the wrong places", seen)
	}
}

func TestEveryAlertHasARunbook(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(repository, "deploy/prometheus/streamd.rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(repository, "deploy/prometheus/streamd.rules_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	alerts, links := alertName.FindAllSubmatch(rules, -1), runbookName.FindAllSubmatch(rules, -1)
	if len(alerts) < 13 || len(alerts) != len(links) {
		t.Fatalf("%d alerts, %d links to runbooks", len(alerts), len(links))
	}
	books := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(repository, "docs/runbooks/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		books[strings.TrimSuffix(filepath.Base(f), ".md")] = true
	}
	for i, a := range alerts {
		name := string(a[1])
		if link := string(links[i][1]); link != name || !books[name] {
			t.Errorf("%s: the runbook is %q, which exists: %v", name, link, books[link])
		}
		if !strings.Contains(string(tests), "alertname: "+name) {
			t.Errorf("%s: no test in streamd.rules_test.yaml", name)
		}
		delete(books, name)
	}
	for name := range books {
		t.Errorf("docs/runbooks/%s.md belongs to no alert", name)
	}
}
