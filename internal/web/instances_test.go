package web

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/processor"
)

// peers is a pipeline of three instances: this one, one that says where it is, one that does not.
func peers(list ...processor.InstanceStatus) processor.Status {
	st := running()
	st.Instances = &processor.InstancesStatus{AsOf: time.Now(), List: append([]processor.InstanceStatus{
		{Instance: "a", Here: true, Address: "127.0.0.1:80", Tasks: []string{"bills/0"}},
	}, list...)}
	return st
}

// rowsOf are the links and texts of the table of instances, as a reader at host sees it.
func rowsOf(t *testing.T, st processor.Status, host string) string {
	t.Helper()
	h, err := New(Config{Pipelines: []Entry{{Name: "bills", Pipeline: fake{st}}}, Link: func(pipeline, address string) string {
		return "https://" + address + "/?pipeline=" + pipeline
	}})
	if err != nil {
		t.Fatal(err)
	}
	page := get(h, "http://"+host+"/").Body.String()
	_, table, ok := strings.Cut(page, `id="instances"`)
	if !ok {
		t.Fatal("no instances on the page")
	}
	table, _, _ = strings.Cut(table, "</section>")
	return table
}

func TestInstancesAreLinked(t *testing.T) {
	st := peers(
		processor.InstanceStatus{Instance: "b", Address: "b:80", Tasks: []string{"bills/1", "bills/2", "bills/4", "totals/0"}},
		processor.InstanceStatus{Instance: "c"}, processor.InstanceStatus{Address: "<d>:80"},
	)
	rows := rowsOf(t, st, "b.example")
	for _, want := range []string{
		`>a</th><td>this one<`, `<a href="https://b:80/?pipeline=bills">b:80</a></td><td class="n">4<`, "bills/1–2 4, totals/0",
		`>c</th><td><span class="quiet">none<`, "(without an ID)", "&lt;d&gt;:80",
	} {
		if !strings.Contains(rows, want) {
			t.Errorf("no %s in %s", want, rows)
		}
	}
	if strings.Contains(rows, "As of") || strings.Contains(rows, "more instances") {
		t.Errorf("all of it is there and new: %s", rows)
	}
	st.Instances.AsOf = time.Now().Add(-2 * time.Minute)
	if rows := rowsOf(t, st, "b.example"); !strings.Contains(rows, "As of 2m ago") {
		t.Errorf("old: %s", rows)
	}
	// Nothing is said as long as nothing is known.
	st.Instances = nil
	if page := get(handlerOf(t, Entry{Name: "bills", Pipeline: fake{st}}), "/").Body.String(); strings.Contains(page, `id="instances"`) {
		t.Error("instances that are not known")
	}
}

// An address that leads to whoever uses it is a link only for a reader at that machine, and only if it is not this instance's own.
func TestLoopbackIsNoAddressForOthers(t *testing.T) {
	st := peers(processor.InstanceStatus{Instance: "b", Address: "127.0.0.1:81"}, processor.InstanceStatus{Instance: "c", Address: "127.0.0.1:80"}, processor.InstanceStatus{Instance: "d", Address: "[::1]:82"})
	for host, want := range map[string]int{"127.0.0.1:80": 2, "localhost": 2, "[::1]:80": 2, "streamd-0:80": 0, "10.0.0.1": 0} {
		rows := rowsOf(t, st, host)
		if n := strings.Count(rows, "<a href"); n != want || strings.Contains(rows, `<a href="https://127.0.0.1:80/`) {
			t.Errorf("at %s: %d links in %s", host, n, rows)
		}
	}
}

// A link is never what a browser would run, whoever makes it.
func TestNoScriptIsLinked(t *testing.T) {
	h, err := New(Config{Pipelines: []Entry{{Name: "bills", Pipeline: fake{peers(processor.InstanceStatus{Address: "b:1"})}}}, Link: func(string, string) string { return "javascript:alert(1)" }})
	if err != nil {
		t.Fatal(err)
	}
	if page := get(h, "/").Body.String(); strings.Contains(page, "javascript:") || !strings.Contains(page, "b:1") {
		t.Error("a script is linked")
	}
}

func TestTaskRuns(t *testing.T) {
	var every []string
	for i := range 500 {
		every = append(every, fmt.Sprintf("a.b/c/%d", 2*i))
	}
	for _, c := range []struct {
		tasks []string
		want  string
	}{
		{nil, ""},
		{[]string{"a/0"}, "a/0"},
		{[]string{"a/0", "a/1", "a/3", "b/4", "b/5"}, "a/0–1 3, b/4–5"},
		{[]string{"odd", "a/x", "a/7"}, "a/7"},
		{every, "a.b/c/0 2 4 6 8 10 12 14 16 18 20 22 and 488 more"},
	} {
		if got := TaskRuns(c.tasks); got != c.want {
			t.Errorf("%v: %q, want %q", c.tasks, got, c.want)
		}
	}
	big := peers()
	for range 500 {
		big.Instances.List = append(big.Instances.List, processor.InstanceStatus{Instance: "x", Tasks: every})
	}
	if rows := rowsOf(t, big, "h"); strings.Count(rows, "<tr") != maxInstances+1 || !strings.Contains(rows, "401 more instances") {
		t.Errorf("%d rows, %d bytes", strings.Count(rows, "<tr"), len(rows))
	}
}
