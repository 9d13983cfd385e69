package ingress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

const positionsTopic = "p-s-positions"

// fileRig is a directory whose files are read, step by step.
type fileRig struct {
	*rig
	dir string
	cfg FilesConfig
	at  time.Time
	x   *Files

	late bool // requests may come late
	// look is called before each look into a file.
	look func()
}

func newFileRig(t *testing.T, cfg FilesConfig) *fileRig {
	t.Helper()
	r := &fileRig{rig: newRig(t), dir: t.TempDir(), cfg: cfg, at: time.Unix(1_700_000_000, 0)}
	if err := r.b.Client("setup").CreateTopic(t.Context(), broker.Topic{Name: positionsTopic, Partitions: 1, Cleanup: broker.Compact}); err != nil {
		t.Fatal(err)
	}
	if r.cfg.Paths == nil {
		r.cfg.Paths = []string{filepath.Join(r.dir, "*")}
	}
	r.cfg.Owner, r.cfg.Positions = "host", positionsTopic
	return r
}

// steps reads until nothing is new. A process that is not there, or was killed, is started.
func (r *fileRig) steps() {
	r.t.Helper()
	for tries := 0; ; tries++ {
		if tries > 100 {
			r.t.Fatal("no end")
		}
		if err := r.try(); errors.As(err, new(simbroker.Crash)) || r.late && errors.Is(err, broker.ErrFenced) {
			r.x = nil // an Init that comes late fences its own process, which ends and is started again
		} else if err != nil {
			r.t.Fatal(err)
		} else {
			return
		}
	}
}

func (r *fileRig) try() (err error) {
	defer func() {
		if x := recover(); x != nil {
			crash, ok := x.(simbroker.Crash)
			if !ok {
				panic(x)
			}
			err = crash
		}
	}()
	if r.x == nil {
		r.x = NewFiles(r.cfg, r.log())
		r.x.now = func() time.Time { return r.at }
		if r.look != nil {
			r.x.open = func(path string) (handle, error) {
				f, err := os.Open(path)
				return watchedFile{f, r.look}, err
			}
		}
		if err := r.x.start(r.t.Context()); err != nil {
			return err
		}
	}
	for {
		if more, err := r.x.step(r.t.Context()); err != nil || !more {
			return err
		}
	}
}

// restart is kill -9 between two steps.
func (r *fileRig) restart() { r.x = nil }

func (r *fileRig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *fileRig) append(name, text string) {
	r.t.Helper()
	f, err := os.OpenFile(r.path(name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *fileRig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// want compares the values that stand in the log with those that must, each exactly as often as it is named.
func (r *fileRig) want(values ...string) {
	r.t.Helper()
	var got []string
	ids := map[string]bool{}
	for _, l := range r.lines() {
		got = append(got, l.value)
		if ids[l.id] {
			r.t.Errorf("ID %q stands twice", l.id)
		}
		ids[l.id] = true
	}
	slices.Sort(got)
	values = slices.Sorted(slices.Values(values))
	if !slices.Equal(got, values) {
		r.t.Errorf("got %d %.8q\nwant %d %.8q", len(got), got, len(values), values)
	}
}

func TestFilesGrow(t *testing.T) {
	r := newFileRig(t, FilesConfig{})
	r.append("a", "1\r\n\n2\n3")
	r.steps()
	r.want("1", "2") // the third has no end yet
	r.append("a", "é😀\n")
	r.append("b", "x\n")
	r.steps()
	r.want("1", "2", "3é😀", "x")
	r.restart()
	r.append("a", "4\n")
	r.steps()
	r.want("1", "2", "3é😀", "x", "4")
	// The lines of a file are in one partition, in their order.
	var order []string
	at := map[record.Partition]bool{}
	for _, l := range r.lines() {
		if l.value != "x" {
			order, at[l.partition] = append(order, l.value), true
		}
	}
	if len(at) != 1 || !slices.IsSorted(order) {
		t.Errorf("%q in partitions %v", order, at)
	}
}

func TestFilesRotateByRename(t *testing.T) {
	for _, glob := range []string{"*", "app.log"} {
		r := newFileRig(t, FilesConfig{})
		r.cfg.Paths = []string{r.path(glob)}
		r.append("app.log", "1\n2\n")
		r.steps()
		r.append("app.log", "3\n4") // not read yet when it is rotated
		r.must(os.Rename(r.path("app.log"), r.path("app.log.1")))
		r.append("app.log", "5\n")
		r.append("app.log.1", "4\n") // by a writer that has it open still
		r.steps()
		r.want("1", "2", "3", "44", "5")
		if glob == "*" {
			r.restart()
		}
		r.must(os.Rename(r.path("app.log.1"), r.path("app.log.2")))
		r.append("app.log.2", "6\n")
		r.steps()
		r.want("1", "2", "3", "44", "5", "6")
	}
}

// A copy is made, then the original is cut: what stands in both counts once, and what was not read before the cut is found in the copy.
func TestFilesCopyAndTruncate(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := newFileRig(t, FilesConfig{})
		var all []string
		line := func(i int) string {
			s := fmt.Sprintf("%d %s", i, strings.Repeat("x", 200))
			all = append(all, s)
			return s + "\n"
		}
		for i := range 10 {
			r.append("app.log", line(i))
		}
		r.steps()
		r.append("app.log", line(10)) // not read before the cut
		content, err := os.ReadFile(r.path("app.log"))
		r.must(err)
		r.must(os.WriteFile(r.path("app.log.1"), content, 0o600))
		if !restart {
			r.steps() // sees the copy beside the original
			r.want(all...)
		}
		r.must(os.Truncate(r.path("app.log"), 0))
		if restart {
			r.restart()
		}
		r.append("app.log", line(11))
		r.steps()
		r.steps()
		r.want(all...)
		// And again, grown beyond where it was before anybody looks.
		content, err = os.ReadFile(r.path("app.log"))
		r.must(err)
		r.must(os.WriteFile(r.path("app.log.2"), content, 0o600))
		r.must(os.Truncate(r.path("app.log"), 0))
		for i := range 20 {
			r.append("app.log", line(100+i))
		}
		r.steps()
		r.steps()
		if restart {
			r.restart()
			r.steps()
		}
		// The copy of one short line cannot be known for sure: it is read again rather than lost.
		short := 0
		for _, l := range r.lines() {
			if strings.HasPrefix(l.value, "11 ") {
				short++
			}
		}
		if short > 1 {
			all = append(all, slices.Repeat([]string{all[11]}, short-1)...)
		}
		r.want(all...)
	}
}

// TestCopyIsReadFurtherInTheStepThatFindsTheCut: the place of what was cut is written in the transaction in which its copy goes on, and does not
// stand behind it: after a kill the copy would be read again.
func TestCopyIsReadFurtherInTheStepThatFindsTheCut(t *testing.T) {
	r := newFileRig(t, FilesConfig{})
	var all []string
	line := func(i int) string {
		all = append(all, fmt.Sprintf("%d %s", i, strings.Repeat("x", 200)))
		return all[len(all)-1] + "\n"
	}
	for i := range 10 {
		r.append("app.log", line(i))
	}
	r.steps()
	r.append("app.log", line(10))
	content, err := os.ReadFile(r.path("app.log"))
	r.must(err)
	r.must(os.WriteFile(r.path("app.log.1"), content, 0o600))
	r.must(os.Truncate(r.path("app.log"), 0))
	r.steps()
	r.restart()
	r.steps()
	r.want(all...)
}

// Files that begin alike are different ones, and a file that takes another's name is new.
func TestFilesThatLookAlike(t *testing.T) {
	r := newFileRig(t, FilesConfig{})
	head := "id,amount " + strings.Repeat("-", 100) + "\n"
	r.append("a", head)
	r.append("b", head)
	r.steps()
	h := strings.TrimSpace(head)
	r.want(h, h)
	r.append("c", head+"1\n")
	r.append("a", "2\n")
	r.steps()
	r.want(h, h, h, "1", "2")
	r.must(os.Rename(r.path("a"), r.path("d")))
	r.append("a", head)
	r.restart()
	r.steps()
	r.want(h, h, h, "1", "2") // so far it could be a copy of another one in the making
	r.at = r.at.Add(time.Minute)
	r.steps()
	r.want(h, h, h, h, "1", "2")
}

// The n-th request to Kafka meets a fault while files grow and are rotated: each line stands in the log exactly once, without any dedup.
func TestFilesEveryFault(t *testing.T) {
	faults := map[string]simbroker.Action{
		"request lost": {Verdict: simbroker.LoseRequest},
		"answer lost":  {Verdict: simbroker.LoseAnswer},
		"late":         {Verdict: simbroker.Hold, Requests: 3},
		"twice":        {Verdict: simbroker.Repeat, Requests: 2},
		"killed":       {Verdict: simbroker.CrashBefore},
		"killed after": {Verdict: simbroker.CrashAfter},
		"unknown":      {Verdict: simbroker.HandleThenFail, Code: simbroker.CoordinatorNotAvailable},
	}
	for name, act := range faults {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				r := newFileRig(t, FilesConfig{})
				r.late = act.Verdict == simbroker.Hold || act.Verdict == simbroker.Repeat
				first, hit := r.b.Calls(), false
				r.b.SetFault(func(c simbroker.Call) simbroker.Action {
					if c.N != first+n {
						return simbroker.Action{}
					}
					hit = true
					return act
				})
				r.append("app.log", "1\n2\n")
				r.steps()
				r.append("app.log", "3\n")
				r.must(os.Rename(r.path("app.log"), r.path("app.log.1")))
				r.append("app.log", "4\n")
				r.append("app.log.1", "5\n")
				r.steps()
				r.must(os.Truncate(r.path("app.log"), 0))
				r.steps()
				r.append("app.log", "6\n")
				r.steps()
				r.b.DeliverHeld()
				r.steps()
				if r.want("1", "2", "3", "4", "5", "6"); t.Failed() {
					t.Fatalf("at call %d", n)
				}
				if !hit {
					break
				}
			}
		})
	}
}

func TestLongLines(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	stop := newFileRig(t, FilesConfig{MaxLine: 1000})
	stop.append("a", "1\n"+strings.Repeat("y", 1000)+"\n"+long+"\n2\n")
	err := stop.try()
	if err == nil || !strings.Contains(err.Error(), "at byte 1003 of") || !strings.Contains(err.Error(), "on_long_line") {
		t.Errorf("%v", err)
	}
	stop.want("1", strings.Repeat("y", 1000))

	skip := newFileRig(t, FilesConfig{MaxLine: 1000, SkipLong: true})
	skip.append("a", "1\n"+strings.Repeat("y", 1001)+"\n2\n"+long)
	skip.steps()
	skip.want("1", "2")
	skip.restart() // in the middle of the long one
	skip.append("a", "tail\n3\n")
	skip.steps()
	skip.want("1", "2", "3")
}

// A last line without an end counts when its file was rotated away and is quiet.
func TestLastLine(t *testing.T) {
	r := newFileRig(t, FilesConfig{LastLine: time.Minute})
	r.cfg.Paths = []string{r.path("app.log")}
	r.append("app.log", "1\n2")
	r.steps()
	r.at = r.at.Add(time.Hour)
	r.steps()
	r.want("1") // the file is there: its writer may go on
	r.must(os.Remove(r.path("app.log")))
	r.steps()
	r.at = r.at.Add(59 * time.Second)
	r.steps()
	r.want("1")
	r.at = r.at.Add(time.Second)
	r.steps()
	r.want("1", "2")
	r.steps()
	r.steps()
	if len(r.x.files) != 0 {
		t.Errorf("%d files are open", len(r.x.files))
	}
	places, err := r.x.pos.read(t.Context())
	if err != nil || len(places) != 0 {
		t.Errorf("what was deleted is kept: %v, %v", places, err)
	}
}

// Positions of files that are not seen are forgotten after a day, not before.
func TestPlacesAreForgotten(t *testing.T) {
	r := newFileRig(t, FilesConfig{LastLine: time.Minute})
	r.cfg.Paths = []string{r.path("app.log")}
	r.append("app.log", "1\n")
	r.steps()
	r.must(os.Rename(r.path("app.log"), r.path("away")))
	r.steps()
	for _, c := range []struct {
		wait time.Duration
		left int
	}{{time.Hour, 1}, {22 * time.Hour, 1}, {2 * time.Hour, 0}} {
		r.at = r.at.Add(c.wait)
		r.steps()
		r.steps()
		if places, err := r.x.pos.read(t.Context()); err != nil || len(places) != c.left {
			t.Errorf("after %v: %v, %v", c.wait, places, err)
		}
	}
}

// Two processes of one host: the older one ends before it writes anything more.
func TestFilesAreFenced(t *testing.T) {
	r := newFileRig(t, FilesConfig{})
	r.append("a", "1\n")
	r.steps()
	old := r.x
	r.restart()
	r.steps()
	r.append("a", "2\n")
	if _, err := old.step(t.Context()); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("%v", err)
	}
	r.steps()
	r.want("1", "2")
}

// A position that cannot be read stops the start: to guess would lose or double.
func TestBrokenPositions(t *testing.T) {
	r := newFileRig(t, FilesConfig{})
	r.b.Append(record.TopicPartition{Topic: positionsTopic}, broker.Record{Key: []byte("other\x00x"), Value: []byte("{")})
	r.append("a", "1\n")
	r.steps() // another owner's is none of ours
	r.restart()
	r.b.Append(record.TopicPartition{Topic: positionsTopic}, broker.Record{Key: []byte("host\x00x"), Value: []byte("{")})
	if err := r.try(); !errors.Is(err, broker.ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

func TestExclude(t *testing.T) {
	r := newFileRig(t, FilesConfig{Exclude: []string{"*.tmp"}})
	r.append("a", "1\n")
	r.append("b.tmp", "2\n")
	r.must(os.Mkdir(r.path("c"), 0o700))
	r.steps()
	r.want("1")
}

// However the bytes of a file come, its lines are the same.
func TestCutLinesInAnyPortions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		text := make([]byte, rng.IntN(40))
		for i := range text {
			text[i] = "ab\n\r\n"[rng.IntN(5)]
		}
		whole := cutLines(text, 100)
		var got []foundLine
		for from, to := 0, 0; to < len(text); {
			to = min(len(text), to+1+rng.IntN(5))
			c := cutLines(text[from:to], 100)
			for _, l := range c.lines {
				got = append(got, foundLine{from + l.at, l.text})
			}
			from += c.used
		}
		if fmt.Sprint(got) != fmt.Sprint(whole.lines) {
			t.Fatalf("%q: %v, as a whole %v", text, got, whole.lines)
		}
	}
}
