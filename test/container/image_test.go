//go:build container && linux

package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/test/namespace"
)

const (
	repository = "../.."
	dockerfile = "deploy/docker/Dockerfile"
	version    = "v0.1.0"
)

// tool runs a program of test/tools in the repository, and decodes what it writes.
func tool(into any, name string, args ...string) error {
	path, err := filepath.Abs(filepath.Join(repository, "build/tools", name))
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w: run `make go-tools`", err)
	}
	c := exec.Command(path, args...)
	c.Dir = repository
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said.Bytes())
	}
	return json.Unmarshal(out, into)
}

// plan is a Dockerfile, and the files that a builder gets.
type plan struct {
	Stages  []stage
	Context []string
}

type stage struct {
	Name, Base string
	Steps      []step
	Config     imageConfig
}

type step struct {
	Kind, Path, Script, From, To, Owner, Allowed string
	Caches, Env, Sources                         []string
}

// imageConfig is what the image says of its containers.
type imageConfig struct {
	Entrypoint, Cmd, Volumes, Ports, Env []string
	User, Dir, StopSignal                string
	Labels                               map[string]string
	Health                               *struct {
		Test                           []string
		Interval, Timeout, StartPeriod time.Duration
		Retries                        int
	}
}

// image is what a Dockerfile makes.
type image struct {
	root   string // its files
	config imageConfig
}

var (
	building sync.Mutex // guards built
	built    *image
)

// theImage is that of the Dockerfile, made once.
func theImage(t *testing.T) *image {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if built == nil {
		begin := time.Now()
		var err error
		if built, err = build(t); err != nil {
			t.Fatalf("%s: %v", dockerfile, err)
		}
		t.Logf("built in %v", time.Since(begin).Round(time.Millisecond))
	}
	return built
}

func build(t *testing.T) (*image, error) {
	t.Helper()
	var p plan
	err := tool(&p, "dockerfile", dockerfile, "VERSION="+version, "REVISION=of-the-test", "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	roots := map[string]string{}
	var root string
	var config imageConfig
	for i, s := range p.Stages {
		b := &builder{context: p.Context, stages: roots, scratch: filepath.Join(namespace.Scratch(), "stage-"+strconv.Itoa(i))}
		if root, config, err = b.base(s.Base); err != nil {
			return nil, err
		}
		b.root, b.dir = root, config.Dir
		for _, s := range s.Steps {
			if err := b.step(s); err != nil {
				return nil, fmt.Errorf("%s %s%s%s: %w", s.Kind, s.Path, s.Script, s.To, err)
			}
		}
		roots[s.Name] = root
		config = config.with(s.Config)
	}
	return &image{root, config}, nil
}

// with is a base's configuration with what a stage says more.
func (c imageConfig) with(s imageConfig) imageConfig {
	env := append(slices.Clone(c.Env), s.Env...)
	for _, f := range []struct {
		of   *string
		base string
	}{{&s.User, c.User}, {&s.Dir, c.Dir}, {&s.StopSignal, c.StopSignal}} {
		if *f.of == "" {
			*f.of = f.base
		}
	}
	s.Env = env
	return s
}

// builder does the steps of one stage.
type builder struct {
	context []string
	stages  map[string]string
	scratch string
	root    string
	dir     string
	env     []string // of the base, for RUN
}

// base makes a stand-in for an image.
func (b *builder) base(name string) (string, imageConfig, error) {
	if tag, ok := strings.CutPrefix(name, "golang:"); ok {
		out, err := exec.Command("go", "env", "GOVERSION", "GOROOT").Output()
		if err != nil {
			return "", imageConfig{}, err
		}
		have := strings.Fields(string(out))
		if have[0] != "go"+tag && !strings.HasPrefix(have[0], "go"+tag+".") {
			return "", imageConfig{}, fmt.Errorf("it builds with Go %s, and this machine has %s", tag, have[0])
		}
		// As that image has it: nothing fetches another Go.
		b.env = []string{"PATH=" + have[1] + "/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOPATH=/go", "GOTOOLCHAIN=local", "HOME=/root"}
		root, err := namespace.Overlay(b.scratch)
		return root, imageConfig{}, err
	}
	if name == "gcr.io/distroless/static-debian12:nonroot" {
		root := filepath.Join(b.scratch, "root")
		for path, mode := range map[string]os.FileMode{"etc": 0o755, "tmp": 0o777 | os.ModeSticky, "home/nonroot": 0o700, "var/lib": 0o755, "proc": 0o755, "sys": 0o755, "dev": 0o755} {
			at := filepath.Join(root, path)
			if err := os.MkdirAll(at, 0o755); err != nil {
				return "", imageConfig{}, err
			}
			if err := os.Chmod(at, mode); err != nil {
				return "", imageConfig{}, err
			}
		}
		if err := os.Chown(filepath.Join(root, "home/nonroot"), 65532, 65532); err != nil {
			return "", imageConfig{}, err
		}
		for path, text := range map[string]string{
			"etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n",
			"etc/group":  "root:x:0:\nnonroot:x:65532:\n",
		} {
			if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil { //nolint:gosec // read by everybody
				return "", imageConfig{}, err
			}
		}
		return root, imageConfig{User: "65532", Dir: "/home/nonroot", Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}, nil
	}
	return "", imageConfig{}, fmt.Errorf("there is no stand-in for the base image %s: add one to test/container", name)
}

func (b *builder) step(s step) error {
	switch s.Kind {
	case "workdir":
		b.dir = filepath.Join("/", b.dir, s.Path)
		if filepath.IsAbs(s.Path) {
			b.dir = s.Path
		}
		return os.MkdirAll(filepath.Join(b.root, b.dir), 0o755)
	case "run":
		return b.run(s)
	case "copy":
		return b.copy(s)
	}
	return errors.New("not known")
}

// run runs a line in the machine's network, with the machine's caches of Go in the places of the builder's.
func (b *builder) run(s step) error {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		return err
	}
	have := strings.Fields(string(out))
	places := map[string]string{"/go/pkg/mod": have[0], "/root/.cache/go-build": have[1]}
	for i, c := range s.Caches {
		from, at := places[c], filepath.Join(b.root, c)
		if from == "" {
			if from = filepath.Join(b.scratch, "cache-"+strconv.Itoa(i)); os.MkdirAll(from, 0o755) != nil {
				return fmt.Errorf("no cache at %s", from)
			}
		}
		if err := namespace.Bind(from, at); err != nil {
			return err
		}
		defer func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) }()
	}
	c := namespace.Outside("chroot", b.root, "/bin/sh", "-c", `cd "$0" && eval "$1"`, filepath.Join("/", b.dir), s.Script)
	c.Env = append(slices.Clone(b.env), s.Env...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// copy copies from the context or another stage.
func (b *builder) copy(s step) error {
	uid, gid := 0, 0
	if s.Owner != "" {
		if n, err := fmt.Sscanf(s.Owner, "%d:%d", &uid, &gid); n != 2 || err != nil {
			return fmt.Errorf("--chown=%s: two numbers are known here", s.Owner)
		}
	}
	if s.Allowed != "" {
		return fmt.Errorf("--chmod is not known here")
	}
	to := s.To
	if !filepath.IsAbs(to) {
		to = filepath.Join(b.dir, to) + "/"
	}
	for _, source := range s.Sources {
		from, only := repository, b.context
		if s.From != "" {
			root, ok := b.stages[s.From]
			if !ok {
				return fmt.Errorf("no stage %s", s.From)
			}
			from, only = root, nil
		}
		if err := copyTree(filepath.Join(from, source), filepath.Join(b.root, to), strings.HasSuffix(to, "/"), source, only, uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies a file or what is in a folder; of the context only what is named.
func copyTree(from, to string, into bool, name string, only []string, uid, gid int) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if into {
			to = filepath.Join(to, filepath.Base(from))
		}
		if only != nil && !slices.Contains(only, filepath.Clean(name)) {
			return fmt.Errorf("%s is in .dockerignore", name)
		}
		return copyFile(from, to, info, uid, gid)
	}
	if only != nil {
		for _, path := range only {
			rest, err := filepath.Rel(filepath.Clean(name), path)
			if err != nil || strings.HasPrefix(rest, "..") {
				continue
			}
			info, err := os.Stat(filepath.Join(from, rest))
			if err != nil {
				return err
			}
			if err := copyFile(filepath.Join(from, rest), filepath.Join(to, rest), info, uid, gid); err != nil {
				return err
			}
		}
		return nil
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		at := filepath.Join(to, rest)
		if !d.IsDir() {
			return copyFile(path, at, info, uid, gid)
		}
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(at, info.Mode().Perm()); err != nil {
			return err
		}
		return os.Chown(at, uid, gid)
	})
}

func copyFile(from, to string, info fs.FileInfo, uid, gid int) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	_ = os.Remove(to) // never written through
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := os.Chmod(to, info.Mode().Perm()); err != nil {
		return err
	}
	return os.Chown(to, uid, gid)
}

// user is who runs in the image.
func (m *image) user() (uid, gid int, err error) {
	if n, err := fmt.Sscanf(m.config.User, "%d:%d", &uid, &gid); n != 2 || err != nil {
		return 0, 0, fmt.Errorf("USER %s: Kubernetes' runAsNonRoot wants a number, and a group goes with it", m.config.User)
	}
	return uid, gid, nil
}
