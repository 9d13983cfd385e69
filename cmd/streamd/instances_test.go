package main

import (
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/processor"
)

// Three processes of one application: each page and each top names all of them, and the links of one page lead to the others.
func TestInstancesOfAnApplication(t *testing.T) {
	addresses := map[string]string{"a": freeAddress(t), "b": "off", "c": freeAddress(t)}
	clients := map[string]*daemon.Client{}
	b, first, client, _ := daemonOf(t, pipelineText, "--http", addresses["a"], "--instance-id", "a")
	clients["a"] = client
	for _, name := range []string{"b", "c"} {
		socket := "unix:" + filepath.Join(t.TempDir(), "s")
		start(t, "run", first.Args[2], "-b", b.Address(), "--data-dir", t.TempDir(), "--http", addresses[name], "--admin", socket, "--instance-id", name)
		c, err := daemon.NewClient(socket)
		if err != nil {
			t.Fatal(err)
		}
		clients[name] = c
	}
	for here, c := range clients {
		var seen processor.InstancesStatus
		waitFor(t, "three instances, two of them with a task, as "+here+" sees them", func() bool {
			var st processor.Status
			if c.Get(t.Context(), "/api/v1/pipelines/p", &st) != nil || st.Instances == nil || st.State != processor.Running {
				return false
			}
			seen = *st.Instances
			tasks := 0
			for _, x := range seen.List {
				tasks += len(x.Tasks)
			}
			return len(seen.List) == 3 && tasks == 2
		})
		for i, x := range seen.List {
			want := addresses[x.Instance]
			if want == "off" {
				want = ""
			}
			if x.Instance != []string{"a", "b", "c"}[i] || x.Address != want || x.Here != (x.Instance == here) {
				t.Errorf("as %s sees it: %+v", here, x)
			}
		}
		var list struct {
			Pipelines []struct {
				Tasks, Instances int
			}
		}
		if err := c.Get(t.Context(), "/api/v1/pipelines", &list); err != nil || len(list.Pipelines) != 1 || list.Pipelines[0].Instances != 3 {
			t.Errorf("the line of %s: %+v, %v", here, list, err)
		}
	}
	// The first page leads to the third one.
	page, err := daemon.NewClient("http://" + addresses["a"])
	if err != nil {
		t.Fatal(err)
	}
	text, err := page.Read(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`<a href="(http://[^/"]*)(/[^"]*)"`).FindAllStringSubmatch(string(text), -1)
	if len(links) != 1 || links[0][1] != "http://"+addresses["c"] {
		t.Fatalf("links to others: %q", links)
	}
	there, err := daemon.NewClient(links[0][1])
	if err != nil {
		t.Fatal(err)
	}
	if text, err = there.Read(t.Context(), links[0][2]); err != nil || !strings.Contains(string(text), `<span class="quiet">c</span>`) {
		t.Errorf("the page behind the link: %v\n%s", err, text)
	}
	if got := view(t, "top", "--addr", first.socket, "--show", "instances"); strings.Count(got, "this one") != 1 || !strings.Contains(got, addresses["c"]) || !strings.Contains(got, "none") {
		t.Errorf("top:\n%s", got)
	}
}

// freeAddress is an address of this machine at which nobody listened a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
