package txlog

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
)

// Helper processes are this test binary, told by the environment what to do.
const helperEnv = "TXLOG_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "":
		flag.Parse()
		if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
			_ = f.Value.Set("12") // each is a dozen restarts of a store; more with the flag
		}
		os.Exit(m.Run())
	case "apply":
		helperApply(os.Args[len(os.Args)-1])
	case "hold":
		helperHold(os.Args[len(os.Args)-1])
	case "die opening":
		helperDieOpening(os.Args[len(os.Args)-1])
	case "fill":
		helperFill(os.Args[len(os.Args)-1])
	}
	os.Exit(3)
}

// helper starts this binary again. It is killed at the end of the test.
func helper(t testing.TB, what, dir string) (*exec.Cmd, *bufio.Reader, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$", "--", dir)
	cmd.Env = append(os.Environ(), helperEnv+"="+what)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(out), &stderr
}

// The workload of the crash tests: what a batch holds depends on its sequence alone, so that the
// content at any position can be computed.
const (
	crashGeneration = 20 // batches per generation
	crashLive       = 4  // generations that are kept
	crashIDs        = 200
	crashKeys       = 512
)

func crashBig(seq uint64) bool { return seq%37 == 0 }

func crashBatch(seq uint64) *record.Batch {
	gen := seq / crashGeneration
	b := &record.Batch{
		Blocks:   []record.OperatorBlock{block("d", gen, int(seq), ids(seq, crashIDs))},
		Position: position(seq),
	}
	if seq%crashGeneration == 0 && gen >= crashLive {
		b.Drops = []record.GenerationDrop{{Operator: "d", Generation: gen - crashLive}}
	}
	n, size := 64, 20
	if crashBig(seq) {
		n, size = crashKeys, 8000 // several transactions with 8 MiB memtables
	}
	for i := range n {
		c := record.StateChange{Store: "s", Key: fmt.Appendf(nil, "k%03d", (int(seq)*64+i)%crashKeys)}
		if (int(seq)+i)%11 != 0 {
			c.Value = append(fmt.Appendf(nil, "%d ", seq), bytes.Repeat([]byte{'x'}, size)...)
		}
		b.State = append(b.State, c)
	}
	return b
}

// verifyCrash checks that the content is exactly that of its position, and returns the position's
// sequence. Only a batch in several transactions may be there in part.
func verifyCrash(l *Log) (uint64, error) {
	task, err := l.Task("t/0")
	if err != nil {
		return 0, err
	}
	p, ok := task.Position()
	if !ok {
		return 0, nil
	}
	if err := task.Check(); err != nil {
		return 0, err
	}
	if want := position(p.Sequence); fmt.Sprint(p) != fmt.Sprint(want) {
		return 0, fmt.Errorf("position %v, want %v", p, want)
	}
	want := map[string]string{}
	// Eight batches in a row write every key.
	for seq := max(16, p.Sequence) - 15; seq <= p.Sequence; seq++ {
		for _, c := range crashBatch(seq).State {
			want[string(c.Key)] = string(c.Value)
		}
	}
	ahead := map[string]string{}
	if crashBig(p.Sequence + 1) {
		for _, c := range crashBatch(p.Sequence + 1).State {
			ahead[string(c.Key)] = string(c.Value)
		}
	}
	store := task.Store("s")
	for i := range crashKeys {
		key := fmt.Sprintf("k%03d", i)
		v, err := store.Get([]byte(key))
		if err != nil {
			return 0, err
		}
		if got := string(v); got != want[key] && (len(ahead) == 0 || got != ahead[key]) {
			return 0, fmt.Errorf("at %d state %s is %.20q, want %.20q", p.Sequence, key, got, want[key])
		}
	}
	return p.Sequence, verifyCrashIDs(task.Operator("d"), p.Sequence)
}

func verifyCrashIDs(op *Operator, seq uint64) error {
	gens, err := op.Generations()
	if err != nil {
		return err
	}
	newest := seq / crashGeneration
	oldest := uint64(0)
	if newest >= crashLive {
		oldest = newest - crashLive + 1
	}
	if uint64(len(gens)) != newest-oldest+1 {
		return fmt.Errorf("at %d %d generations, want %d to %d", seq, len(gens), oldest, newest)
	}
	for i, g := range gens {
		if g.Number != oldest+uint64(i) {
			return fmt.Errorf("generation %d where %d should be", g.Number, oldest+uint64(i))
		}
		var want, got []byte
		for s := max(1, g.Number*crashGeneration); s < (g.Number+1)*crashGeneration && s <= seq; s++ {
			want = append(want, ids(s, crashIDs)...)
		}
		if !g.Sealed {
			err = op.Blocks(g.Number, func(b record.IDBlock) error { got = append(got, b.Entries...); return nil })
		} else {
			want = sorted(want)
			var filter []byte
			if filter, err = op.Filter(g.Number); err == nil && string(filter) != fmt.Sprint("filter of ", g.Number) {
				err = fmt.Errorf("filter is %q", filter)
			}
			for slot := uint32(0); slot < g.Slots && err == nil; slot++ {
				var run []byte
				run, err = op.Run(g.Number, slot)
				got = append(got, run...)
			}
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("at %d generation %d (sealed %v) has %d IDs, want %d", seq, g.Number, g.Sealed, len(got)/16, len(want)/16)
		}
	}
	return nil
}

// crashWork applies batches from the position on, seals in the background, and calls done after each.
func crashWork(l *Log, until uint64, done func(seq uint64)) error {
	task, err := l.Task("t/0")
	if err != nil {
		return err
	}
	op := task.Operator("d")
	p, _ := task.Position()
	var sealing sync.WaitGroup
	defer sealing.Wait()
	for seq := p.Sequence + 1; seq <= until; seq++ {
		if err := task.Apply(crashBatch(seq)); err != nil {
			return err
		}
		done(seq)
		gens, err := op.Generations()
		if err != nil {
			return err
		}
		if g := gens[0]; !g.Sealed && len(gens) > 1 {
			sealing.Wait()
			sealing.Go(func() {
				err := sealAll(op, g.Number, 8, fmt.Append(nil, "filter of ", g.Number))
				if err != nil && !errors.Is(err, ErrUnknownGeneration) {
					fmt.Println("seal:", err)
				}
			})
		}
	}
	return nil
}

func helperApply(dir string) {
	fmt.Println("started")
	l, err := Open(crashOptions(dir))
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	if reason, ok := l.SetAside(); ok {
		fmt.Println("aside:", reason)
	}
	fmt.Println("open")
	if err := crashWork(l, 1<<40, func(seq uint64) { fmt.Println("ack", seq) }); err != nil {
		fmt.Println("apply:", err)
	}
}

// CRASH 11. Kills at any moment, also while the store is opened, sealed or swept: nothing that was
// acknowledged is lost, nothing is torn, nothing is set aside.
func TestKill(t *testing.T) {
	kills := 30
	if testing.Short() {
		kills = 10
	}
	testKill(t, kills)
}

// The same of an encrypted store.
func TestKillEncrypted(t *testing.T) {
	kills := 15
	if testing.Short() {
		kills = 5
	}
	t.Setenv(encryptedEnv, "1")
	testKill(t, kills)
}

// encryptedEnv makes the crash tests, and the processes that they kill, encrypt their store.
const encryptedEnv = "TXLOG_TEST_ENCRYPTED"

func crashOptions(dir string) Options {
	if os.Getenv(encryptedEnv) != "" {
		return encrypted(testOptions(dir))
	}
	return testOptions(dir)
}

func testKill(t *testing.T, kills int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	var acked, inOpen uint64
	for round := range kills {
		cmd, out, stderr := helper(t, "apply", dir)
		kill := func() { _ = cmd.Process.Kill() }
		delay := time.Duration(rng.IntN(120)) * time.Millisecond
		early := rng.IntN(4) == 0 // also while it starts
		if early {
			time.AfterFunc(delay, kill)
		}
		opened := false
		for {
			line, err := out.ReadString('\n')
			if err != nil {
				break // a half line is no acknowledgement
			}
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch word {
			case "ack":
				seq, err := strconv.ParseUint(rest, 10, 64)
				must(t, err)
				if seq <= acked {
					t.Fatalf("round %d: batch %d is applied again", round, seq)
				}
				acked = seq
			case "open":
				opened = true
				if !early {
					time.AfterFunc(delay, kill)
				}
			case "started":
			default:
				t.Fatalf("round %d: helper says %q", round, line)
			}
		}
		_ = cmd.Wait()
		if stderr.Len() > 0 {
			t.Fatalf("round %d: helper wrote\n%s", round, stderr.String())
		}
		if !opened {
			inOpen++
		}
		if keysOf(t, dir).encrypted != (crashOptions(dir).Key != nil) && opened {
			t.Fatalf("round %d: encrypted is %v", round, keysOf(t, dir).encrypted)
		}
		if got := verifyCopy(t, dir); got < acked || got > acked+1 {
			t.Fatalf("round %d: position %d, acknowledged %d", round, got, acked)
		}
	}
	t.Logf("%d kills, %d of them during the open, %d batches acknowledged", kills, inOpen, acked)
}

// verifyCopy checks a copy of the directory as it was left, so that the next process starts from
// what the kill left and not from a clean stop.
func verifyCopy(t testing.TB, dir string) uint64 {
	t.Helper()
	to := t.TempDir()
	must(t, copyDir(dir, to))
	l, err := Open(crashOptions(to))
	must(t, err)
	defer l.Close()
	if reason, ok := l.SetAside(); ok {
		t.Fatalf("set aside: %s", reason)
	}
	seq, err := verifyCrash(l)
	must(t, err)
	must(t, l.Close())
	must(t, os.RemoveAll(to))
	return seq
}

// copyDir copies files and leaves holes where there are zeros, as in Badger's logs.
func copyDir(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	buf, zero, off := make([]byte, 64<<10), make([]byte, 64<<10), int64(0)
	for {
		n, err := io.ReadFull(in, buf)
		if n > 0 && !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := out.WriteAt(buf[:n], off); err != nil {
				return err
			}
		}
		off += int64(n)
		if err != nil {
			break
		}
	}
	return out.Truncate(off)
}

func helperHold(dir string) {
	l, err := Open(testOptions(dir))
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = l.Close()
}

// A directory in use is refused with the holder's name, and is free at once after kill -9.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^$", "--", dir)
	cmd.Env = append(os.Environ(), helperEnv+"=hold")
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("helper says %q, %v", line, err)
	}
	before := listing(t, dir)
	_, err = Open(testOptions(dir))
	wantErr(t, err, ErrLocked)
	host, _ := os.Hostname()
	if text := err.Error(); !strings.Contains(text, strconv.Itoa(cmd.Process.Pid)) || !strings.Contains(text, host) {
		t.Errorf("error does not name the holder: %v", err)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("a refused open changed the directory:\n%s\nbefore:\n%s", after, before)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	l := openTest(t, testOptions(dir))
	if reason, ok := l.SetAside(); ok {
		t.Errorf("set aside after kill -9: %s", reason)
	}
}

// In one process, too, a directory is opened once.
func TestLockInProcess(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openTest(t, o)
	_, err := Open(o)
	wantErr(t, err, ErrLocked)
	must(t, l.Close())
	must(t, l.Close())
	openTest(t, o)
}

func helperDieOpening(dir string) {
	o := testOptions(dir)
	o.Logger = slog.New(slog.NewTextHandler(dyingWriter{}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, err := Open(o)
	fmt.Println("open:", err)
}

// dyingWriter ends the process at the first word of the log: in the middle of the open.
type dyingWriter struct{}

func (dyingWriter) Write([]byte) (int, error) {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// An open that dies again and again is ended by setting the store aside, one that dies once or
// twice, as by a kill, is not.
func TestDeathInOpen(t *testing.T) {
	for _, deaths := range []int{1, maxOpenAttempts - 1, maxOpenAttempts} {
		dir := t.TempDir()
		l := openTest(t, testOptions(dir))
		must(t, crashWork(l, 30, func(uint64) {}))
		must(t, l.Close())
		for range deaths {
			cmd, out, _ := helper(t, "die opening", dir)
			if text, _ := io.ReadAll(out); len(text) > 0 {
				t.Fatalf("helper says %q", text)
			}
			_ = cmd.Wait()
		}
		l = openTest(t, testOptions(dir))
		reason, aside := l.SetAside()
		if want := deaths == maxOpenAttempts; aside != want {
			t.Errorf("after %d deaths set aside is %v (%s)", deaths, aside, reason)
		}
		if seq, err := verifyCrash(l); err != nil || !aside && seq != 30 {
			t.Errorf("after %d deaths: position %d, %v", deaths, seq, err)
		}
		must(t, l.Close())
		l = openTest(t, testOptions(dir))
		if reason, again := l.SetAside(); again {
			t.Errorf("set aside a second time: %s", reason)
		}
	}
}

// listing is what a directory holds: names, sizes and times.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // Badger deleted it just now
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano())
		return nil
	}))
	return b.String()
}

// helperFill writes until it is refused or dies; for the test of the full disk.
func helperFill(dir string) {
	o := testOptions(dir)
	if floor, err := strconv.ParseUint(os.Getenv("TXLOG_TEST_FLOOR"), 10, 64); err == nil {
		o.MinFreeBytes = floor
	}
	l, err := Open(o)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	task, err := l.Task("t")
	if err != nil {
		fmt.Println("task:", err)
		return
	}
	p, _ := task.Position()
	for seq := p.Sequence + 1; ; seq++ {
		b := &record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, ids(seq, 4000))}, Position: position(seq)}
		if err := task.Apply(b); err != nil {
			fmt.Println("refused:", errors.Is(err, ErrDiskFull), seq-1, err)
			return
		}
	}
}
