//go:build packages && linux

package packages

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/streamd/streamd/test/namespace"
)

const (
	repository = "../.."
	epoch      = 1700000000
)

func TestMain(m *testing.M) { os.Exit(namespace.Run(m, namespace.Options{})) }

// made is a deb and an rpm of one version.
type made struct{ deb, rpm string }

const version = "v0.1.0"

// build makes both under a umask, of a build of its own.
func build(t *testing.T, umask int) made {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dist")
	c := exec.CommandContext(t.Context(), "bash", "-c", `umask "$1"; shift; exec make "$@"`, "bash", fmt.Sprintf("%03o", umask),
		"--no-print-directory", "dist", "packages", "DIST="+dir, "PLATFORMS=linux/"+runtime.GOARCH, "VERSION="+version)
	c.Dir, c.Env = repository, append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("make dist packages: %v\n%s", err, out)
	}
	one := func(pattern string) string {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: %q, %v: one was to be made", pattern, files, err)
		}
		return files[0]
	}
	return made{one("*.deb"), one("*.rpm")}
}

var (
	building     sync.Mutex // guards the rest
	plain, tight made
)

// packages are made twice, of one source: in different folders, at different times, the second ones under a umask that
// keeps others out. (Two versions would have to be made twice too, which takes most of the time.)
func packages(t *testing.T) (first, again made) {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if plain.deb == "" {
		move := func(m made, dir string) made {
			for _, p := range []*string{&m.deb, &m.rpm} {
				to := filepath.Join(namespace.Scratch(), dir, filepath.Base(*p))
				if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(*p, to); err != nil {
					t.Fatal(err)
				}
				*p = to
			}
			return m
		}
		plain = move(build(t, 0o022), "plain")
		tight = move(build(t, 0o077), "tight")
	}
	return plain, tight
}

// TestSameBytes: where they are built, when and under which umask makes no difference.
func TestSameBytes(t *testing.T) {
	a, b := packages(t)
	for _, pair := range [][2]string{{a.deb, b.deb}, {a.rpm, b.rpm}} {
		x, err := os.ReadFile(pair[0])
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(pair[1])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(x, y) {
			t.Errorf("%s: two builds of one source differ", filepath.Base(pair[0]))
		}
	}
}

// entry is a file of a package.
type entry struct {
	mode  int64
	owner string
	when  int64
}

// contents lists what a package installs, by path.
func contents(t *testing.T, command string, args ...string) map[string]entry {
	t.Helper()
	c := exec.CommandContext(t.Context(), command, args...)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	found := map[string]entry{}
	if command == "rpm" { // lines of "path mode owner group mtime"
		for line := range strings.Lines(string(out)) {
			var path, owner, group string
			var e entry
			if _, err := fmt.Sscanf(line, "%s %o %s %s %d", &path, &e.mode, &owner, &group, &e.when); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			e.mode, e.owner = e.mode&0o7777, owner+":"+group
			found[path] = e
		}
		return found
	}
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		path := "/" + strings.Trim(strings.TrimPrefix(h.Name, "."), "/")
		found[path] = entry{h.Mode & 0o7777, h.Uname + ":" + h.Gname, h.ModTime.Unix()}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", path, h.Uid, h.Gid)
		}
	}
}

// TestContents: both packages bring the same files, readable by everybody, of root, and of the date of the source.
func TestContents(t *testing.T) {
	_, p := packages(t) // those of the umask
	deb := contents(t, "dpkg-deb", "--fsys-tarfile", p.deb)
	rpm := contents(t, "rpm", "-qp", "--qf", `[%{FILENAMES} %{FILEMODES:octal} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILEMTIMES}\n]`, p.rpm)
	for _, want := range []string{
		"/usr/bin/streamd", "/usr/lib/systemd/system/streamd@.service", "/etc/streamd", "/usr/share/doc/streamd/example.yaml",
		"/usr/share/man/man1/streamd.1", "/usr/share/man/man1/streamd-run.1", "/usr/share/bash-completion/completions/streamd",
		"/usr/share/zsh/site-functions/_streamd", "/usr/share/fish/vendor_completions.d/streamd.fish",
		"/usr/share/streamd/prometheus/streamd.rules.yaml", "/usr/share/streamd/grafana/streamd.json",
	} {
		for name, files := range map[string]map[string]entry{"deb": deb, "rpm": rpm} {
			if _, ok := files[want]; !ok {
				t.Errorf("%s: no %s", name, want)
			}
		}
	}
	for name, files := range map[string]map[string]entry{"deb": deb, "rpm": rpm} {
		for path, e := range files {
			want := int64(0o644)
			if path == "/usr/bin/streamd" || isFolder(path, deb) {
				want = 0o755
			}
			if e.mode != want || e.owner != "root:root" || e.when != epoch {
				t.Errorf("%s: %s has mode %o, owner %s, time %d", name, path, e.mode, e.owner, e.when)
			}
		}
	}
	for path := range rpm {
		if _, ok := deb[path]; !ok {
			t.Errorf("the deb has no %s", path)
		}
	}
	for path := range deb {
		if _, ok := rpm[path]; !ok && !isFolder(path, deb) {
			t.Errorf("the rpm has no %s", path)
		}
	}
}

// isFolder says whether a path has others below it, or is made to have.
func isFolder(path string, files map[string]entry) bool {
	if path == "/etc/streamd" || path == "/" {
		return true
	}
	for p := range files {
		if strings.HasPrefix(p, path+"/") {
			return true
		}
	}
	return false
}

// system is this machine with a systemctl that only writes down what it is asked.
type system struct {
	t    *testing.T
	root string
}

const asked = "/run/systemctl-was-asked"

func newSystem(t *testing.T) *system {
	t.Helper()
	for _, p := range []string{"dpkg", "rpm", "man"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("no %s on the PATH: install Debian's packages dpkg, rpm and man-db (`make tools`)", p)
		}
	}
	dir := t.TempDir()
	root, err := namespace.Overlay(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // else the folder could not be removed
		for _, m := range []string{"proc", "dev", "run", "tmp", ""} {
			_ = syscall.Unmount(filepath.Join(root, m), syscall.MNT_DETACH)
		}
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
	})
	s := &system{t, root}
	s.write("/usr/bin/systemctl", "#!/bin/sh\necho \"$*\" >> "+asked+"\n", 0o755)
	if err := os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/streamd")); err == nil {
		t.Fatal("streamd is installed on this machine: what a package brings cannot be told from it; remove it first")
	}
	return s
}

// write makes a file of this system only: the place is taken by a new one, never written through.
func (s *system) write(path, text string, mode os.FileMode) {
	s.t.Helper()
	at := filepath.Join(s.root, path)
	_ = os.Remove(at)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Chmod(at, mode); err != nil {
		s.t.Fatal(err)
	}
}

// bring copies a package in.
func (s *system) bring(path string) string {
	s.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	at := "/tmp/" + filepath.Base(path)
	s.write(at, string(b), 0o644)
	return at
}

// run runs a command in it.
func (s *system) run(args ...string) string {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), args[0], args[1:]...)
	c.Dir, c.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: s.root}
	out, err := c.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// asked returns what systemctl was asked since the last time.
func (s *system) asked() []string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.root, asked))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(s.root, asked))
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

// there fails unless the path is as it is wanted.
func (s *system) there(path string, want bool) {
	s.t.Helper()
	if _, err := os.Lstat(filepath.Join(s.root, path)); (err == nil) != want {
		s.t.Errorf("%s: is there %v, want %v (%v)", path, err == nil, want, err)
	}
}

// works: what was installed runs, and can be read.
func (s *system) works() {
	s.t.Helper()
	if out := s.run("/usr/bin/streamd", "version"); !strings.Contains(out, version) {
		s.t.Errorf("streamd version says %q, want %s", out, version)
	}
	for _, page := range []string{"streamd", "streamd-run"} {
		if out := s.run("env", "MANPAGER=cat", "MANWIDTH=120", "man", page); !strings.Contains(out, page+" - ") {
			s.t.Errorf("man %s: %.200q", page, out)
		}
	}
	// The completion is a function of the shell, and answers.
	out := s.run("bash", "-c", `. /usr/share/bash-completion/completions/streamd && complete -p streamd && streamd __complete val 2>/dev/null`)
	if !strings.Contains(out, "__start_streamd") || !strings.Contains(out, "validate") {
		s.t.Errorf("bash completes %q", out)
	}
	if out := s.run("/usr/bin/streamd", "validate", "/usr/share/doc/streamd/example.yaml"); !strings.Contains(out, "ok") {
		s.t.Errorf("the example: %q", out)
	}
	for _, path := range []string{"/usr/lib/systemd/system/streamd@.service", "/usr/share/streamd/grafana/streamd.json"} {
		s.there(path, true)
	}
}

const (
	config = "/etc/streamd/bills.yaml"
	state  = "/var/lib/streamd/bills/LOCK"
	mine   = "# the administrator's\n"
)

// manager is one way to install packages.
type manager struct {
	name             string
	install, upgrade func(s *system, p made)
	remove, purge    []string // purge: nil if there is none
	files            []string // lists what is installed
}

var managers = []manager{
	{
		name: "deb",
		// Images of containers leave documents out by their configuration of dpkg.
		install: func(s *system, p made) {
			s.run("dpkg", "--path-include=*", "--no-triggers", "--force-unsafe-io", "-i", s.bring(p.deb))
		},
		upgrade: func(s *system, p made) {
			s.run("dpkg", "--path-include=*", "--no-triggers", "--force-unsafe-io", "-i", s.bring(p.deb))
		},
		remove: []string{"dpkg", "-r", "streamd"}, purge: []string{"dpkg", "-P", "streamd"},
		files: []string{"dpkg", "-L", "streamd"},
	},
	{
		name: "rpm",
		// Debian's rpm asks for a word, and knows no packages of its own that could provide a shell.
		install: func(s *system, p made) { s.run("rpm", "--force-debian", "--nodeps", "-i", s.bring(p.rpm)) },
		upgrade: func(s *system, p made) {
			s.run("rpm", "--force-debian", "--nodeps", "-U", "--replacepkgs", s.bring(p.rpm))
		},
		remove: []string{"rpm", "--force-debian", "--nodeps", "-e", "streamd"},
		files:  []string{"rpm", "-ql", "streamd"},
	},
}

// TestInstalled: installed, it works; an upgrade, here over itself, stops no pipeline and touches neither a pipeline file nor state; a removal
// stops the pipelines, takes its own files with it, and leaves those two; so does a purge.
func TestInstalled(t *testing.T) {
	older, newer := packages(t)
	for _, m := range managers {
		t.Run(m.name, func(t *testing.T) {
			s := newSystem(t)
			m.install(s, older)
			s.works()
			if got := s.asked(); !slices.Equal(got, []string{"daemon-reload"}) {
				t.Errorf("installing asked systemctl for %q", got)
			}
			installed := strings.Fields(s.run(m.files...))

			s.write(config, mine, 0o600)
			s.write(state, "1", 0o600)
			kept := func(when string) {
				t.Helper()
				if out := s.run("stat", "-c", "%a %U:%G", config); strings.TrimSpace(out) != "600 root:root" {
					t.Errorf("%s: the pipeline file is %s", when, out)
				}
				if out := s.run("cat", config); out != mine {
					t.Errorf("%s: the pipeline file became %q", when, out)
				}
				s.there(state, true)
			}
			m.upgrade(s, newer)
			s.works()
			kept("after an upgrade")
			if got := s.asked(); !slices.Contains(got, "daemon-reload") || slices.ContainsFunc(got, func(l string) bool { return strings.Contains(l, "stop") }) {
				t.Errorf("the upgrade asked systemctl for %q", got)
			}

			s.run(m.remove...)
			kept("after a removal")
			// systemd forgets the unit when its file is gone, not before.
			if got := s.asked(); !slices.Equal(got, []string{"stop streamd@*.service", "daemon-reload"}) {
				t.Errorf("removing asked systemctl for %q", got)
			}
			for _, path := range installed {
				if _, err := os.Lstat(path); err == nil || path == "/etc/streamd" {
					continue // of the machine itself, or not empty
				}
				s.there(path, false)
			}
			s.there("/usr/share/streamd", false)
			s.there("/usr/share/doc/streamd", false)
			if m.purge != nil {
				s.run(m.purge...)
				kept("after a purge")
			}

			// Without a file of the administrator's, nothing is left.
			m.install(s, newer)
			for _, dir := range []string{config, "/var/lib/streamd"} {
				if err := os.RemoveAll(filepath.Join(s.root, dir)); err != nil {
					t.Fatal(err)
				}
			}
			s.run(m.remove...)
			s.there("/etc/streamd", false)
		})
	}
}

// TestHalfDoneUpgrade: dpkg calls the old and the new script by other names when an upgrade fails halfway. None of them is a
// removal.
func TestHalfDoneUpgrade(t *testing.T) {
	older, _ := packages(t)
	s := newSystem(t)
	s.run("dpkg", "--path-include=*", "--no-triggers", "--force-unsafe-io", "-i", s.bring(older.deb))
	s.asked()
	for _, args := range [][]string{{"upgrade", "0.1.1"}, {"failed-upgrade", "0.1.0"}} {
		s.run(append([]string{"/var/lib/dpkg/info/streamd.prerm"}, args...)...)
		if got := s.asked(); len(got) != 0 {
			t.Errorf("prerm %s asked systemctl for %q", args[0], got)
		}
	}
	s.run("/var/lib/dpkg/info/streamd.prerm", "remove")
	if got := s.asked(); !slices.Equal(got, []string{"stop streamd@*.service"}) {
		t.Errorf("prerm remove asked systemctl for %q", got)
	}
}
