//go:build container && linux

package container

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
	"github.com/streamd/streamd/test/namespace"
)

const (
	partitions = 4
	patience   = 3 * time.Minute // of a machine with other work
)

func TestMain(m *testing.M) {
	if _, err := exec.LookPath("crun"); err != nil {
		fmt.Fprintln(os.Stderr, "container: no crun on the PATH: install Debian's package crun (`make tools`)")
		os.Exit(1)
	}
	os.Exit(namespace.Run(m, namespace.Options{Network: true, Groups: true}))
}

// files lists what is in the image's folder, with what a write would change. The demo makes a folder in /tmp, and removes it.
func (m *image) files(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(m.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		owner := info.Sys().(*syscall.Stat_t)
		if path == filepath.Join(m.root, "tmp") {
			return nil
		}
		out[strings.TrimPrefix(path, m.root)] = fmt.Sprintf("%v %d %v %d:%d", info.Mode(), info.Size(), info.ModTime(), owner.Uid, owner.Gid)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unchanged fails if the files differ from what they were.
func (m *image) unchanged(t *testing.T, before map[string]string) {
	t.Helper()
	after := m.files(t)
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	for path := range paths {
		if before[path] != after[path] {
			t.Errorf("%s was %q and is %q: only the volume is written to", path, before[path], after[path])
		}
	}
}

// TestPlain: without a word the image tells what it can do, and as docs/install.md has it, it says its version and gives the
// tour.
func TestPlain(t *testing.T) {
	m := theImage(t)
	if l := m.config.Labels; l["org.opencontainers.image.version"] != version || l["org.opencontainers.image.revision"] == "" {
		t.Errorf("labels %v", l)
	}
	for _, x := range []struct {
		name    string
		command []string
		want    string
	}{
		{"help", nil, "streamd [command]"},
		{"version", []string{"version"}, version},
		{"demo", []string{"demo", "--http", ":8080", "--for", "5s"}, "exactly once"},
	} {
		t.Run(x.name, func(t *testing.T) {
			before := m.files(t)
			c := m.start(t, x.name, settings{command: x.command, ownNetwork: true})
			status, _ := c.await(patience)
			if status.ExitStatus() != 0 || !strings.Contains(c.said(), x.want) {
				t.Errorf("exit code %d, no %q in\n%s", status.ExitStatus(), x.want, c.said())
			}
			c.delete()
			m.unchanged(t, before)
		})
	}
}

// daemon is streamd as compose starts it.
type daemon struct {
	t    *testing.T
	ctx  context.Context
	m    *image
	s    service
	set  settings
	http string
	c    *container
	life int
}

func newDaemon(ctx context.Context, t *testing.T, brokers []string) *daemon {
	t.Helper()
	m, s := theImage(t), services(t)["streamd"]
	d := &daemon{t: t, ctx: ctx, m: m, s: s, http: fmt.Sprintf("127.0.0.1:%d", s.Ports[0].Target)}
	d.set = settings{
		command: s.Command, readOnly: s.ReadOnly, noCapabilities: slices.Contains(s.CapDrop, "ALL"), memory: s.memory(t),
		noNewPrivileges: slices.Contains(s.SecurityOpt, "no-new-privileges:true"), env: map[string]string{}, volumes: map[string]string{},
	}
	for k, v := range s.Environment {
		if v == nil {
			t.Fatalf("compose takes %s from the environment of whoever starts it", k)
		}
		d.set.env[k] = strings.ReplaceAll(*v, "kafka:9092", strings.Join(brokers, ","))
	}
	for _, v := range s.Volumes {
		if v.Type == "volume" {
			d.set.volumes[v.Target] = m.newVolume(t, v.Target)
			continue
		}
		d.set.mounts = append(d.set.mounts, mount{v.Source, v.Target})
		// An engine makes the place for it, in the layer of the container.
		if err := copyFile(v.Source, filepath.Join(m.root, v.Target), modeOf(t, v.Source), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func modeOf(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// start starts it with other settings than compose's, if change is not nil.
func (d *daemon) start(change func(s *settings)) {
	d.t.Helper()
	set := d.set
	set.env = maps.Clone(d.set.env)
	if change != nil {
		change(&set)
	}
	d.life++
	d.c = d.m.start(d.t, fmt.Sprintf("streamd-%d", d.life), set)
}

// answer is the code of an address, 0 if nobody answers.
func (d *daemon) answer(path string) int {
	ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.http+path, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// healthy runs the image's health check.
func (d *daemon) healthy() (bool, string) {
	d.t.Helper()
	h := d.m.config.Health
	if h == nil || len(h.Test) < 2 || h.Test[0] != "CMD" {
		d.t.Fatalf("HEALTHCHECK %+v: one that needs no shell is wanted", h)
	}
	code, out := d.c.exec(h.Test[1:]...)
	return code == 0, fmt.Sprintf("exit code %d: %s", code, out)
}

// ready waits until the container says so, and holds it to its word: every task runs, and the health check says the same.
func (d *daemon) ready() crash.Metrics {
	d.t.Helper()
	begin := time.Now()
	for d.answer("/readyz") != http.StatusOK {
		if !d.c.running() || time.Since(begin) > patience || d.ctx.Err() != nil {
			d.t.Fatalf("not ready after %v; running: %v; status %#x", time.Since(begin), d.c.running(), d.c.status)
		}
		time.Sleep(20 * time.Millisecond)
	}
	s, err := crash.Scrape(d.ctx, d.http)
	if err != nil {
		d.t.Fatal("ready, and does not answer:", err)
	}
	if n, _ := s.Sum("streamd_tasks", map[string]string{"state": "running"}); n != partitions {
		d.t.Errorf("ready with %v of %d tasks running", n, partitions)
	}
	if ok, said := d.healthy(); !ok {
		d.t.Errorf("ready, and the health check ends with %s", said)
	}
	return s
}

// fullRestores is how many tasks read all of their changelog.
func fullRestores(s crash.Metrics) float64 {
	n, _ := s.Sum("streamd_restore_duration_seconds", map[string]string{"mode": "full"})
	return n
}

// TestService: as compose starts it, the container has nothing that it does not need, is ready when its tasks run and not
// before, ends in time with code 0, and comes back on its volume after SIGKILL and the OOM killer; each record came out once and
// in its order.
func TestService(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	kafka := kafkaenv.Start(t)
	if err := crash.CreateTopics(ctx, kafka.Addresses(), partitions, "bills.raw", "bills.unique"); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(ctx, t, kafka.Addresses())
	before := d.m.files(t)
	d.notReadyBefore(kafka)
	d.confined()

	w := crash.Workload{Seed: rand.Uint64(), Records: 60_000, Accounts: 2000, RepeatPercent: 5}
	check := crash.NewOrder(w.Accounts)
	reader, err := crash.NewReader(kafka.Addresses(), "bills.unique", partitions, check.Add)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Start(ctx))
	// Until everything was done to it: what it finds after a start is never all that there will be.
	var sent int
	acts, done := make(chan struct{}), make(chan struct{})
	want, loaded := crash.Expectation{}, make(chan error, 1)
	go func() {
		defer close(done)
		var err error
		want, err = crash.Loader{
			Brokers: kafka.Addresses(), Topic: "bills.raw", Rate: 3000, Key: func(b crash.Bill) string { return b.Account },
			Hold: func(n int) bool {
				sent = n
				select {
				case <-acts:
					return false
				default:
					return n > w.Records*9/10
				}
			},
		}.Run(ctx, w)
		loaded <- err
	}()

	d.killed(reader, check)
	d.stopped()
	d.outOfMemory()
	d.limited()
	d.lostVolume()
	close(acts)
	<-done
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	if err := crash.AwaitCommitted(ctx, kafka.Addresses(), "bills-dedup", "bills.raw"); err != nil {
		t.Fatal(err)
	}
	d.stop()
	if err := reader.AwaitEnd(ctx); err != nil {
		t.Fatal(err)
	}
	reader.Locked(func() {
		if err := check.Verify(want); err != nil {
			t.Error(err)
		}
		t.Logf("%d records in (%d before the last act), %d out, %d repeats, %d lives", w.Records, sent, check.Seen(), want.Repeats, d.life)
	})
	d.m.unchanged(t, before)
}

// notReadyBefore starts it while the broker is frozen.
func (d *daemon) notReadyBefore(kafka *kafkaenv.Cluster) {
	d.t.Helper()
	if err := kafka.Pause(0); err != nil {
		d.t.Fatal(err)
	}
	d.start(nil)
	seen := 0
	for begin := time.Now(); time.Since(begin) < patience && seen < 10; time.Sleep(100 * time.Millisecond) {
		switch d.answer("/readyz") {
		case 0: // not yet
		case http.StatusOK:
			d.t.Fatal("ready without a broker that answers")
		default:
			seen++
			if code := d.answer("/livez"); code != http.StatusOK {
				d.t.Errorf("/livez says %d: it would be killed for waiting", code)
			}
		}
	}
	if ok, said := d.healthy(); ok || !strings.Contains(said, "not ready") && !strings.Contains(said, "no pipeline") {
		d.t.Errorf("without a broker that answers the health check says: %s", said)
	}
	if err := kafka.Resume(0); err != nil {
		d.t.Fatal(err)
	}
	if seen < 10 {
		d.t.Fatalf("/readyz answered %d times", seen)
	}
	d.ready()
}

// confined: what the process has is what the two files say.
func (d *daemon) confined() {
	d.t.Helper()
	uid, gid, err := d.m.user()
	if err != nil {
		d.t.Fatal(err)
	}
	f := d.c.facts()
	id := func(n int) string { return strings.TrimSpace(strings.Repeat(fmt.Sprintf("%d ", n), 4)) }
	const none = "0000000000000000"
	for key, want := range map[string]string{
		"Uid": id(uid), "Gid": id(gid), "NoNewPrivs": "1",
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
	} {
		if f[key] != want {
			d.t.Errorf("%s is %q, want %q", key, f[key], want)
		}
	}
	if uid == 0 || gid == 0 {
		d.t.Error("it runs as root")
	}
	if got := d.c.writable(); !slices.Equal(got, d.m.config.Volumes) {
		d.t.Errorf("it can write to %v, want %v", got, d.m.config.Volumes)
	}
	if got, want := d.c.group("memory.limit_in_bytes", "memory.max"), fmt.Sprint(d.s.memory(d.t)); got != want {
		d.t.Errorf("the kernel's limit is %s, want %s", got, want)
	}
}

// killed ends it in the middle of its work; it goes on from its volume.
func (d *daemon) killed(reader *crash.Reader, check *crash.Order) {
	d.t.Helper()
	if err := reader.AwaitCount(d.ctx, check.Seen, 5000); err != nil {
		d.t.Fatal(err)
	}
	d.c.kill("SIGKILL")
	if status, _ := d.c.await(time.Minute); !status.Signaled() || status.Signal() != unix.SIGKILL {
		d.t.Errorf("after SIGKILL it ended with %#x", status)
	}
	d.c.delete()
	d.start(nil)
	if n := fullRestores(d.ready()); n != 0 {
		d.t.Errorf("%v tasks were restored in full: the volume was not used", n)
	}
}

// stop does what an engine does: the image's signal, then at most the grace of compose.
func (d *daemon) stop() {
	d.t.Helper()
	d.c.kill(d.m.config.StopSignal)
	status, took := d.c.await(d.s.grace(d.t))
	if !status.Exited() || status.ExitStatus() != 0 {
		d.t.Errorf("%s ended it with %#x", d.m.config.StopSignal, status)
	}
	d.t.Logf("stopped in %v", took.Round(time.Millisecond))
	d.c.delete()
}

func (d *daemon) stopped() {
	d.t.Helper()
	d.stop()
	d.start(nil)
	if n := fullRestores(d.ready()); n != 0 {
		d.t.Errorf("%v tasks were restored in full after a clean stop", n)
	}
}

// outOfMemory lets the kernel end it.
func (d *daemon) outOfMemory() {
	d.t.Helper()
	d.stop()
	d.start(func(s *settings) { s.memory = 12 << 20 })
	status, _ := d.c.await(patience)
	if !status.Signaled() || status.Signal() != unix.SIGKILL {
		d.t.Errorf("with 12 MiB it ended with %#x", status)
	}
	if events := d.c.group("memory.oom_control", "memory.events"); !strings.Contains(events, "oom_kill ") || strings.Contains(events, "oom_kill 0") {
		d.t.Errorf("the OOM killer did not do it: %q", events)
	}
	d.c.delete()
}

// limited: what the collector is told, of the control group (version 2) or of the environment, which wins.
func (d *daemon) limited() {
	d.t.Helper()
	goal := func() float64 {
		n, _ := d.ready().Sum("go_gc_gomemlimit_bytes", nil)
		return n
	}
	d.start(nil)
	switch got, limit := goal(), float64(d.s.memory(d.t)); {
	case namespace.GroupsV2():
		if got < limit*0.84 || got > limit*0.85 {
			d.t.Errorf("the collector's goal is %.0f, want 85 %% of %.0f", got, limit)
		}
	case got <= limit:
		d.t.Errorf("with control groups of version 1 the collector's goal is %.0f: docs/install.md says that there is none", got)
	default:
		d.t.Log("this machine has control groups of version 1: streamd does not read their limit, GOMEMLIMIT has to be given")
	}
	d.stop()
	d.start(func(s *settings) { s.env["GOMEMLIMIT"] = "200MiB" })
	if got := goal(); got != 200<<20 {
		d.t.Errorf("with GOMEMLIMIT=200MiB the collector's goal is %.0f", got)
	}
}

// lostVolume: with an empty volume it restores everything, and is not ready before. It is what the other starts are compared
// with.
func (d *daemon) lostVolume() {
	d.t.Helper()
	d.c.kill("SIGKILL")
	d.c.await(time.Minute)
	d.c.delete()
	for path := range d.set.volumes {
		d.set.volumes[path] = d.m.newVolume(d.t, path)
	}
	d.start(nil)
	if n := fullRestores(d.ready()); n != partitions {
		d.t.Errorf("with an empty volume %v of %d tasks were restored in full", n, partitions)
	}
}
