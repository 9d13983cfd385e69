package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// peer is the Kafka Streams bench program in a scratch folder, with its broker.
type peer struct {
	dir string
	env []string
	log io.Writer
}

// ownJava are the workloads that the peer's own program does not have, with the input and the check of the join of streams. It
// is built with it.
//
//go:embed peer/bench/*.java
var ownJava embed.FS

// The head of the peer's checker, which knows nothing but its own workloads, and what is put behind it.
const (
	verifyHead = "  private String verify(String out, int[][] input, long records) throws Exception {\n"
	verifyOwn  = "    if (args.get(\"workload\").equals(StreamJoin.WORKLOAD)) return StreamJoin.verify(consumer(out), out, input);\n"
)

// errNoPeer says what PEER expects.
var errNoPeer = errors.New("no peer: set PEER (or -peer) to a folder with the Kafka Streams bench program, that is run.sh, " +
	"pom.xml and src/main/java/bench/Bench.java whose harness takes --exec; see test/bench/doc.go")

// preparePeer copies the peer to scratch and builds it.
func preparePeer(ctx context.Context, from, scratch, libs string, log io.Writer) (*peer, error) {
	if from == "" {
		return nil, errNoPeer
	}
	for _, need := range []string{"run.sh", "pom.xml", "src/main/java/bench/Bench.java"} {
		if _, err := os.Stat(filepath.Join(from, need)); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoPeer, err)
		}
	}
	for _, program := range []string{"javac", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("no %s on the PATH: the peer is built with Maven and a JDK (apt-get install maven default-jdk-headless)", program)
		}
	}
	p := &peer{dir: filepath.Join(scratch, "peer"), log: log}
	work := filepath.Join(scratch, "work")
	p.env = append(os.Environ(), "WORK="+work, "KAFKA_LIBS="+libs)
	if _, err := os.Stat(filepath.Join(p.dir, "target", "streams-bench.jar")); err == nil {
		return p, nil // by an earlier call
	}
	// By hand and not with os.CopyFS, which keeps the modes: a read-only checkout would stay so.
	err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(p.dir, rel)
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o755)
	})
	if err != nil {
		return nil, fmt.Errorf("copying the peer: %w", err)
	}
	if err := p.addOwn(); err != nil {
		return nil, err
	}
	if _, err := p.call(ctx, "build"); err != nil {
		return nil, err
	}
	return p, nil
}

// addOwn puts our classes among the peer's and our check into its checker.
func (p *peer) addOwn() error {
	classes := filepath.Join(p.dir, "src/main/java/bench")
	files, err := ownJava.ReadDir("peer/bench")
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := ownJava.ReadFile("peer/bench/" + f.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(classes, f.Name()), data, 0o600); err != nil {
			return err
		}
	}
	harness := filepath.Join(classes, "Bench.java")
	data, err := os.ReadFile(harness)
	if err != nil {
		return err
	}
	if bytes.Count(data, []byte(verifyHead)) != 1 {
		return fmt.Errorf("%w: %s: want one line %q, which the check of the join of streams goes behind", errNoPeer, harness, strings.TrimSpace(verifyHead))
	}
	return os.WriteFile(harness, bytes.Replace(data, []byte(verifyHead), []byte(verifyHead+verifyOwn), 1), 0o600)
}

// classPath is where the peer's classes are after the build.
func (p *peer) classPath() string {
	target := filepath.Join(p.dir, "target")
	return filepath.Join(target, "streams-bench.jar") + string(os.PathListSeparator) + filepath.Join(target, "libs", "*")
}

// call runs run.sh with the arguments and returns the result lines of its output.
func (p *peer) call(ctx context.Context, args ...string) ([]result, error) {
	return p.command(ctx, append([]string{"./run.sh"}, args...)...)
}

// command is call of another program.
func (p *peer) command(ctx context.Context, args ...string) ([]result, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = p.dir, p.env
	// To the whole group: run.sh is a shell with a harness and an application below it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	if slices.Equal(args, []string{"./run.sh", "broker"}) {
		// The broker outlives run.sh and inherits its output: a pipe would never end.
		file, err := os.Create(filepath.Join(p.dir, "broker-start.log"))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		cmd.Stdout, cmd.Stderr = file, file
	} else {
		cmd.Stdout = io.MultiWriter(&out, p.log)
		cmd.Stderr = cmd.Stdout
	}
	fmt.Fprintf(p.log, "$ %s\n", strings.Join(args, " "))
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("the peer's %s: %w\n%s", strings.Join(args, " "), err, tail(out.String(), 3000))
	}
	var all []result
	for line := range strings.Lines(out.String()) {
		r, ok := parseResult(line)
		if !ok {
			continue
		}
		if r.wrong {
			return nil, fmt.Errorf("a run that is not right is no figure: %s", strings.TrimSpace(line))
		}
		all = append(all, r)
	}
	return all, nil
}

// The input topics. The loader of the peer deletes all topics whose names begin with that of its own.
const (
	input      = "in"
	timedInput = "timed" // the same records with times of their own, for joins of streams
)

// load makes an input topic, unless an earlier call has.
func (p *peer) load(ctx context.Context, topic string, records int) error {
	mark, want := filepath.Join(p.dir, "loaded-"+topic), strconv.Itoa(records)
	if have, err := os.ReadFile(mark); err == nil && string(have) == want {
		return nil
	}
	args := []string{"./run.sh", "one", "load"}
	if topic == timedInput {
		args = p.java("bench.StreamJoin", "--bootstrap=127.0.0.1:39092")
	}
	if _, err := p.command(ctx, append(args, "--in="+topic, "--records="+want)...); err != nil {
		return err
	}
	return os.WriteFile(mark, []byte(want), 0o600)
}

// java is the command that runs one of the classes.
func (p *peer) java(class string, args ...string) []string {
	return append([]string{"java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", p.classPath(), class}, args...)
}

// measure is call, with the bytes that the broker wrote to its files meanwhile.
func (p *peer) measure(ctx context.Context, args ...string) ([]result, error) {
	before, err := p.brokerBytes()
	if err != nil {
		return nil, err
	}
	all, err := p.call(ctx, append([]string{"one"}, args...)...)
	if err != nil {
		return nil, err
	}
	after, err := p.brokerBytes()
	if err != nil {
		return nil, err
	}
	for i := range all {
		if n := all[i].figures["inputs"]; n > 0 && after > before {
			// As one more figure of the line, so that it is kept with it.
			all[i], _ = parseResult(fmt.Sprintf("%s broker_bytes=%.1f", all[i].text, float64(after-before)/n))
		}
	}
	return all, nil
}

// brokerBytes is what the broker has written to files so far (proc(5): write_bytes, in whole pages).
// It is 0 where the kernel does not tell.
func (p *peer) brokerBytes() (int64, error) {
	pid, err := p.brokerPID()
	if err != nil {
		return 0, err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, nil //nolint:nilerr // no figure, no row
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, nil
}

func (p *peer) brokerPID() (int, error) {
	for _, e := range p.env {
		if work, ok := strings.CutPrefix(e, "WORK="); ok {
			data, err := os.ReadFile(filepath.Join(work, "broker.pid"))
			if err != nil {
				return 0, fmt.Errorf("the peer's broker: %w", err)
			}
			return strconv.Atoi(strings.TrimSpace(string(data)))
		}
	}
	return 0, errors.New("the peer's broker has no work folder")
}

// stop ends the broker and waits until it is gone, so that its folder can be removed.
func (p *peer) stop() {
	pid, err := p.brokerPID()
	if err != nil {
		return // it never started
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if syscall.Kill(pid, 0) != nil {
			return
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
