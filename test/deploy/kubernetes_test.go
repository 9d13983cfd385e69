package deploy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/template"

	"go.yaml.in/yaml/v3"
)

// kustomization reads the resources that a base names, by kind.
func kustomization(t *testing.T, folder string) map[string]any {
	t.Helper()
	k := documents(t, folder, read(t, folder+"/kustomization.yaml"))[0]
	out := map[string]any{}
	for _, r := range at(t, k, "resources").([]any) {
		for _, doc := range documents(t, r.(string), read(t, folder+"/"+r.(string))) {
			out[doc["kind"].(string)] = doc
		}
	}
	return out
}

func TestBase(t *testing.T) { checkObjects(t, kustomization(t, "deploy/kubernetes/base")) }

// checkObjects holds what the pieces must agree on.
func checkObjects(t *testing.T, o map[string]any) {
	t.Helper()
	set := at(t, o, "StatefulSet").(map[string]any)
	pod := at(t, set, "spec", "template", "spec").(map[string]any)
	container := at(t, pod, "containers", 0).(map[string]any)

	// Who selects pods selects these, and no others of the namespace.
	labels := at(t, set, "spec", "template", "metadata", "labels").(map[string]any)
	for name, selector := range map[string]any{
		"StatefulSet": at(t, set, "spec", "selector", "matchLabels"), "Service": at(t, o, "Service", "spec", "selector"),
		"PodDisruptionBudget": at(t, o, "PodDisruptionBudget", "spec", "selector", "matchLabels"),
		"NetworkPolicy":       at(t, o, "NetworkPolicy", "spec", "podSelector", "matchLabels"),
		"spread":              at(t, pod, "topologySpreadConstraints", 0, "labelSelector", "matchLabels"),
	} {
		s := selector.(map[string]any)
		if len(s) == 0 {
			t.Errorf("%s selects every pod of the namespace", name)
		}
		for k, v := range s {
			if labels[k] != v {
				t.Errorf("%s wants %s=%v, the pods have %v", name, k, v, labels[k])
			}
		}
	}
	if at(t, set, "spec", "serviceName") != at(t, o, "Service", "metadata", "name") {
		t.Error("the set's service has another name")
	}
	if at(t, pod, "serviceAccountName") != at(t, o, "ServiceAccount", "metadata", "name") {
		t.Error("the pods' account has another name")
	}
	for _, want := range []struct {
		path []any
		want any
	}{
		{[]any{"spec", "podManagementPolicy"}, "Parallel"},
		{[]any{"spec", "persistentVolumeClaimRetentionPolicy", "whenScaled"}, "Retain"},
		{[]any{"spec", "template", "spec", "securityContext", "runAsNonRoot"}, true},
		{[]any{"spec", "template", "spec", "automountServiceAccountToken"}, false},
		{[]any{"spec", "template", "spec", "containers", 0, "securityContext", "readOnlyRootFilesystem"}, true},
		{[]any{"spec", "template", "spec", "containers", 0, "securityContext", "allowPrivilegeEscalation"}, false},
	} {
		if got := at(t, set, want.path...); got != want.want {
			t.Errorf("%v = %v, want %v", want.path, got, want.want)
		}
	}
	if grace := at(t, pod, "terminationGracePeriodSeconds").(int); grace <= 60 {
		t.Errorf("a grace of %d s is not longer than --shutdown-timeout", grace)
	}

	// Probes ask addresses that internal/web serves, and none that waits for a restore kills a pod.
	handler := read(t, "internal/web/handler.go")
	for probe, path := range map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"} {
		if got := at(t, container, probe, "httpGet", "path"); got != path || !strings.Contains(handler, "GET "+path+`"`) {
			t.Errorf("%s asks %v", probe, got)
		}
	}

	// What is mounted is a volume, the state is where the daemon looks for it, and the port is that of --http.
	volumes := map[string]bool{}
	for _, v := range at(t, pod, "volumes").([]any) {
		volumes[v.(map[string]any)["name"].(string)] = true
	}
	volumes[at(t, set, "spec", "volumeClaimTemplates", 0, "metadata", "name").(string)] = true
	mounted := map[string]string{}
	for _, m := range at(t, container, "volumeMounts").([]any) {
		m := m.(map[string]any)
		mounted[m["mountPath"].(string)] = m["name"].(string)
		if !volumes[m["name"].(string)] {
			t.Errorf("%v is no volume", m["name"])
		}
	}
	env := map[string]any{}
	for _, e := range at(t, container, "env").([]any) {
		e := e.(map[string]any)
		env[e["name"].(string)] = e["value"]
	}
	if dir, _ := env["STREAMD_DATA_DIR"].(string); mounted[dir] != "state" {
		t.Errorf("the data directory %v is on no volume", dir)
	}
	if want := fmt.Sprintf(":%d", at(t, container, "ports", 0, "containerPort")); env["STREAMD_HTTP"] != want {
		t.Errorf("it listens on %v, the port is %s", env["STREAMD_HTTP"], want)
	}
}

// The overlay replaces what the base has: a patch of a path that is not there fails at the cluster only.
func TestOverlay(t *testing.T) {
	const folder = "deploy/kubernetes/overlays/example"
	k := documents(t, folder, read(t, folder+"/kustomization.yaml"))[0]
	base := kustomization(t, "deploy/kubernetes/base")
	var operations []struct{ Op, Path string }
	if err := yaml.Unmarshal([]byte(at(t, k, "patches", 0, "patch").(string)), &operations); err != nil {
		t.Fatal(err)
	}
	for _, o := range operations {
		var path []any
		for _, p := range strings.Split(strings.TrimPrefix(o.Path, "/"), "/") {
			if p == "0" {
				path = append(path, 0)
			} else {
				path = append(path, p)
			}
		}
		at(t, base["StatefulSet"], path...)
	}
	for _, g := range at(t, k, "configMapGenerator").([]any) {
		if !strings.Contains(read(t, "deploy/kubernetes/base/kustomization.yaml"), "name: "+g.(map[string]any)["name"].(string)) {
			t.Errorf("the base generates no %v", g)
		}
	}
}

// render renders the chart with the functions that it uses, which behave as Helm's.
func render(t *testing.T, change func(values map[string]any)) map[string]any {
	t.Helper()
	const chart = "deploy/helm/streamd"
	values := documents(t, "values", read(t, chart+"/values.yaml"))[0]
	meta := documents(t, "chart", read(t, chart+"/Chart.yaml"))[0]
	change(values)
	root := template.New("chart").Option("missingkey=error")
	indent := func(n int, s string) string {
		return "\n" + strings.Repeat(" ", n) + strings.ReplaceAll(s, "\n", "\n"+strings.Repeat(" ", n))
	}
	root.Funcs(template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := root.ExecuteTemplate(&b, name, data)
			return strings.TrimSpace(b.String()), err
		},
		"nindent": func(n int, s string) string { return indent(n, strings.TrimSuffix(s, "\n")) },
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
		"quote": func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"default": func(d, v any) any {
			if v == nil || reflect.ValueOf(v).IsZero() {
				return d
			}
			return v
		},
		"contains":   func(part, s string) bool { return strings.Contains(s, part) },
		"trunc":      func(n int, s string) string { return s[:min(n, len(s))] },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"sha256sum": func(s string) string {
			sum := sha256.Sum256([]byte(s))
			return hex.EncodeToString(sum[:])
		},
	})
	paths, err := filepath.Glob(filepath.Join(repository, chart, "templates/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := root.New(filepath.Base(p)).Parse(string(text)); err != nil {
			t.Fatal(err)
		}
	}
	data := map[string]any{
		"Values": values, "Release": map[string]any{"Name": "bills", "Namespace": "default", "Service": "Helm"},
		"Chart": map[string]any{"AppVersion": meta["appVersion"], "Name": meta["name"], "Version": meta["version"]},
	}
	out := map[string]any{}
	for _, p := range paths {
		var b strings.Builder
		if err := root.ExecuteTemplate(&b, filepath.Base(p), data); err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(p) != ".yaml" {
			continue
		}
		for _, doc := range documents(t, p, b.String()) {
			out[doc["kind"].(string)] = doc
		}
	}
	return out
}

func TestChart(t *testing.T) {
	o := render(t, func(map[string]any) {})
	checkObjects(t, o)
	if _, there := o["PodMonitor"]; there {
		t.Error("a PodMonitor needs the Prometheus operator: it is off by default")
	}
	// The pipeline of the values arrives as it is written.
	values := documents(t, "values", read(t, "deploy/helm/streamd/values.yaml"))[0]
	if got := at(t, o, "ConfigMap", "data", "pipeline.yaml"); strings.TrimSpace(got.(string)) != strings.TrimSpace(values["pipeline"].(string)) {
		t.Errorf("the pipeline became %s", got)
	}

	o = render(t, func(v map[string]any) {
		v["env"] = map[string]any{"REGION": "eu", "STREAMD_LOG_LEVEL": "debug"}
		v["tolerations"] = []any{map[string]any{"key": "x", "operator": "Exists"}}
		v["nodeSelector"], v["podAnnotations"] = map[string]any{"disk": "fast"}, map[string]any{"a": "b"}
		v["storage"].(map[string]any)["className"] = "fast"
		v["podMonitor"].(map[string]any)["enabled"] = true
	})
	checkObjects(t, o)
	if at(t, o, "PodMonitor", "spec", "podMetricsEndpoints", 0, "path") != "/metrics" {
		t.Error("the PodMonitor asks for something else")
	}
	if at(t, o, "StatefulSet", "spec", "volumeClaimTemplates", 0, "spec", "storageClassName") != "fast" {
		t.Error("the class of the storage did not arrive")
	}
}

// Base and chart are two ways to the same pods.
func TestChartIsTheBase(t *testing.T) {
	base := at(t, kustomization(t, "deploy/kubernetes/base"), "StatefulSet", "spec").(map[string]any)
	chart := at(t, render(t, func(map[string]any) {}), "StatefulSet", "spec").(map[string]any)
	for _, path := range [][]any{
		{"podManagementPolicy"},
		{"minReadySeconds"},
		{"replicas"},
		{"updateStrategy"},
		{"volumeClaimTemplates"},
		{"template", "spec", "securityContext"},
		{"template", "spec", "terminationGracePeriodSeconds"},
		{"template", "spec", "containers", 0, "args"},
		{"template", "spec", "containers", 0, "resources"},
		{"template", "spec", "containers", 0, "securityContext"},
		{"template", "spec", "containers", 0, "volumeMounts"},
		{"template", "spec", "containers", 0, "startupProbe"},
		{"template", "spec", "containers", 0, "livenessProbe"},
		{"template", "spec", "containers", 0, "readinessProbe"},
	} {
		if b, c := at(t, base, path...), at(t, chart, path...); !reflect.DeepEqual(b, c) {
			t.Errorf("%v: the base has %v, the chart %v", path, b, c)
		}
	}
}
