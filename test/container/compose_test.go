//go:build container && linux

package container

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const compose = "deploy/compose.yaml"

// service is one of compose's. What is not named here is refused for streamd's.
type service struct {
	Build *struct {
		Context    string `json:"context"`
		Dockerfile string `json:"dockerfile"`
	} `json:"build"`
	Image       string             `json:"image"`
	Command     []string           `json:"command"`
	Entrypoint  []string           `json:"entrypoint"`
	Environment map[string]*string `json:"environment"`
	Volumes     []struct {
		Type     string   `json:"type"`
		Source   string   `json:"source"`
		Target   string   `json:"target"`
		ReadOnly bool     `json:"read_only"`
		Bind     struct{} `json:"bind"`
		Volume   struct{} `json:"volume"`
	} `json:"volumes"`
	Ports []struct {
		Mode      string `json:"mode"`
		HostIP    string `json:"host_ip"`
		Target    int    `json:"target"`
		Published string `json:"published"`
		Protocol  string `json:"protocol"`
	} `json:"ports"`
	ReadOnly    bool     `json:"read_only"`
	CapDrop     []string `json:"cap_drop"`
	SecurityOpt []string `json:"security_opt"`
	Memory      string   `json:"mem_limit"`
	Grace       string   `json:"stop_grace_period"`
	Restart     string   `json:"restart"`
	DependsOn   map[string]struct {
		Condition string `json:"condition"`
		Required  bool   `json:"required"`
	} `json:"depends_on"`
	HealthCheck *struct {
		Test []string `json:"test"`
	} `json:"healthcheck"`
	Networks map[string]any `json:"networks"`
}

// services reads compose.yaml with compose's own library: an unknown key, a wrong type or a volume that is not declared is
// refused by it.
func services(t *testing.T) map[string]service {
	t.Helper()
	var project struct {
		Services map[string]json.RawMessage
		Volumes  map[string]any
	}
	if err := tool(&project, "compose", compose); err != nil {
		t.Fatal(err)
	}
	all := map[string]service{}
	for name, text := range project.Services {
		var s service
		d := json.NewDecoder(bytes.NewReader(text))
		if name == "streamd" { // all that is said of it is done in TestService
			d.DisallowUnknownFields()
		}
		if err := d.Decode(&s); err != nil {
			t.Fatalf("%s: service %s: %v", compose, name, err)
		}
		all[name] = s
	}
	return all
}

// memory and grace are streamd's limits in compose.
func (s service) memory(t *testing.T) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s.Memory, 10, 64)
	if err != nil || n <= 0 {
		t.Fatalf("mem_limit %q: %v", s.Memory, err)
	}
	return n
}

func (s service) grace(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s.Grace)
	if err != nil {
		t.Fatalf("stop_grace_period %q: %v", s.Grace, err)
	}
	return d
}

// TestCompose: what the services say of each other, of the image and of files is so.
func TestCompose(t *testing.T) {
	m, all := theImage(t), services(t)
	for name, s := range all {
		if s.Build == nil && !strings.Contains(s.Image, ":") {
			t.Errorf("%s: image %q has no version", name, s.Image)
		}
		for other, d := range s.DependsOn {
			if o, ok := all[other]; !ok || d.Condition == "service_healthy" && o.HealthCheck == nil {
				t.Errorf("%s waits for %s to be %s, which it never is", name, other, d.Condition)
			}
			if d.Condition == "service_completed_successfully" && all[other].Restart != "" {
				t.Errorf("%s waits for the end of %s, which is started again", name, other)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != "bind" {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s: %s: %v, read-only %v", name, v.Source, err, v.ReadOnly)
			}
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to the network", name, p.Published)
			}
		}
	}
	s := all["streamd"]
	if at := filepath.Join(s.Build.Context, s.Build.Dockerfile); filepath.Clean(at) != abs(t, dockerfile) {
		t.Errorf("streamd is built from %s", at)
	}
	if len(s.Ports) != 1 || !slices.Contains(m.config.Ports, strconv.Itoa(s.Ports[0].Target)) {
		t.Errorf("ports %v, the image has %v", s.Ports, m.config.Ports)
	}
	state := 0
	for _, v := range s.Volumes {
		if v.Type == "volume" && slices.Contains(m.config.Volumes, v.Target) {
			state++
		}
	}
	if state != len(m.config.Volumes) {
		t.Errorf("volumes %v, the image has %v", s.Volumes, m.config.Volumes)
	}
	if g := s.grace(t); g <= time.Minute { // the default of --shutdown-timeout
		t.Errorf("a grace of %v is not longer than --shutdown-timeout", g)
	}
	if s.Restart != "on-failure" {
		t.Errorf("restart: %s", s.Restart)
	}
}

func abs(t *testing.T, path string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
