//go:build kills

package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/txlog"
)

// TestDamagedDirectories damages each kind of file in a state directory in each way, after a kill and after a clean
// stop. The store is set aside or used, never "opened anyway": what comes out is right, and the process lives.
// CRASH 12, 34, 36
func TestDamagedDirectories(t *testing.T) {
	m := newCampaign(t, 8*time.Minute, CampaignConfig{Program: program(t), Seed: seedOf(t)})
	m.Allowed = []string{WarnNotKept, WarnSetAside, WarnLost}
	outcome := map[string][]string{}
	damages := FileDamages()
	for i, d := range damages {
		for _, clean := range []bool{true, false} {
			if !soak() && clean != endsCleanly(d, i) {
				continue
			}
			h := m.Hosts[i%len(m.Hosts)]
			said, err := damageOnce(m, h, d, clean)
			if errors.Is(err, ErrNoFile) {
				said, err = noFile, h.Start()
			}
			if err = errors.Join(err, m.Check()); err != nil {
				t.Fatalf("%s: %v", d, err)
			}
			outcome[said] = append(outcome[said], string(d))
		}
	}
	if err := m.Finish(finishLimit); err != nil {
		t.Fatal(err)
	}
	for _, said := range slices.Sorted(maps.Keys(outcome)) {
		t.Logf("%s: %s", said, strings.Join(outcome[said], ", "))
	}
	for _, said := range []string{"flip txlog/MANIFEST", "flip txlog/*.sst", "truncate txlog/*.sst", "remove txlog/*.sst", "flip STATE", "flip SESSION"} {
		if !slices.Contains(outcome[WarnSetAside], said) {
			t.Errorf("%s was not noticed", said)
		}
	}
	log := false // after a kill; a clean stop, which the large counts try as well, leaves none
	for said, damages := range outcome {
		log = log || said != noFile && slices.Contains(damages, "flip txlog/*.mem")
	}
	if !log {
		t.Error("no write-ahead log was there to be damaged")
	}
}

// noFile is what came of a damage for which there was no file: an empty one, or one that is not there after this end.
const noFile = "there is no such file"

// endsCleanly says how the process ends before a damage: a clean stop leaves tables and no logs, a kill mostly the reverse.
func endsCleanly(d Damage, n int) bool {
	switch {
	case strings.HasSuffix(string(d), ".sst"):
		return true
	case strings.HasSuffix(string(d), ".mem"):
		return false
	}
	return n%2 == 0
}

// damageOnce ends the host's process, damages its directory and starts it again. It returns what the new process
// thought of it.
func damageOnce(m *Campaign, h *Host, d Damage, clean bool) (said string, err error) {
	if err := m.await(h, "running tasks", time.Minute, func() bool { return running(m, h) > 0 }); err != nil {
		return "", err
	}
	if err := m.Check(); err != nil { // with all that the log has of this life
		return "", err
	}
	if clean {
		if code, err := h.Stop(time.Minute); err != nil || code != 0 {
			return "", fmt.Errorf("exit code %d, %w", code, err)
		}
	} else {
		h.Kill()
	}
	if err := m.damage(h, d); err != nil {
		return "", err
	}
	if err := h.Start(); err != nil {
		return "", err
	}
	said = "used as it is"
	return said, m.await(h, "a start", time.Minute, func() bool {
		line, _ := h.Scan(WarnSetAside, WarnNotKept, WarnLost, `"msg":"starting"`)
		for _, w := range []string{WarnSetAside, WarnNotKept, WarnLost} {
			if strings.Contains(line, w) {
				said = w
			}
		}
		return line != ""
	})
}

// await waits for something about a host, as long as it does not end.
func (m *Campaign) await(h *Host, what string, within time.Duration, is func() bool) error {
	ctx, cancel := context.WithTimeout(m.ctx, within)
	defer cancel()
	return poll(ctx, func() (string, error) {
		if is() {
			return "", nil
		}
		return "host " + h.Name + ": no " + what, h.KilledOnly()
	})
}

// running is the number of tasks that a host runs, 0 if it does not say.
func running(m *Campaign, h *Host) float64 { return tasks(m, h, "running") }

// tasks is the number of tasks of a host in a state, 0 if it does not say.
func tasks(m *Campaign, h *Host, state string) float64 {
	s, err := Scrape(m.ctx, h.HTTP)
	if err != nil {
		return 0
	}
	n, _ := s.Sum("streamd_tasks", map[string]string{"state": state})
	return n
}

// end waits until the host's process has ended by itself, and returns its exit code and the end of its log.
func (m *Campaign) end(h *Host, within time.Duration) (code int, log string, err error) {
	select {
	case <-h.Done():
		code, _, _ := h.Ended()
		return code, h.Tail(), nil
	case <-time.After(within):
		return 0, h.Tail(), fmt.Errorf("crash: host %s did not end within %v", h.Name, within)
	case <-m.ctx.Done():
		return 0, "", m.ctx.Err()
	}
}

// TestForeignDirectories: a directory of another application or another cluster is refused, with an exit code after
// which no supervisor tries again, and is not touched. So is one that is in use, but that may be tried again.
// CRASH 2, 35
func TestForeignDirectories(t *testing.T) {
	m := newCampaign(t, 4*time.Minute, CampaignConfig{Program: program(t), Seed: seedOf(t), Hosts: 1})
	for _, c := range []struct {
		name  string
		owner txlog.Options
		code  int
		words []string
	}{
		{"other-app", txlog.Options{App: "payments", Cluster: "kfake"}, 78, []string{`belongs to \"payments\"`, `this is \"bills\"`}},
		{"other-cluster", txlog.Options{App: campaignApp, Cluster: "elsewhere"}, 78, []string{"elsewhere"}},
	} {
		h, err := m.AddHost(c.name)
		if err != nil {
			t.Fatal(err)
		}
		c.owner.Dir = m.StateDir(h)
		log, err := txlog.Open(c.owner)
		if err == nil {
			err = log.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		before := contents(t, c.owner.Dir)
		if err := h.Start(); err != nil {
			t.Fatal(err)
		}
		wantEnd(t, m, h, c.code, c.words...)
		if after := contents(t, c.owner.Dir); !maps.EqualFunc(before, after, bytes.Equal) {
			t.Errorf("%s: the directory was changed", c.name)
		}
		m.Hosts = m.Hosts[:1]
	}
	same, err := m.AddHost("same-directory")
	if err != nil {
		t.Fatal(err)
	}
	m.Hosts = m.Hosts[:1]
	same.Dir, same.Args = m.Hosts[0].Dir, append(same.Args, "--admin", "off")
	if err := same.Start(); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, m, same, 75, "locked by process")
	if err := m.Finish(finishLimit); err != nil {
		t.Fatal(err)
	}
}

func wantEnd(t *testing.T, m *Campaign, h *Host, code int, words ...string) {
	t.Helper()
	got, log, err := m.end(h, time.Minute)
	if err != nil {
		h.Kill()
		t.Fatalf("%v:\n%s", err, log)
	}
	for _, w := range words {
		if w = strings.ReplaceAll(w, `\"`, `"`); !strings.Contains(log, w) {
			t.Errorf("host %s: the log does not say %q", h.Name, w)
		}
	}
	if got != code {
		t.Errorf("host %s ended with %d, want %d", h.Name, got, code)
	}
	if t.Failed() {
		t.Logf("the end of its log:\n%s", log)
	}
}

// contents returns the small files of a directory and the sizes of all others.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		all[path] = fmt.Append(nil, info.Size())
		if info.Size() < 64<<10 {
			all[path], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestClonedDirectory: a machine is cloned, state directory and instance ID included, and both copies start. One of the
// two is fenced and ends, saying why; the other one goes on, and nothing is lost or doubled.
// CRASH 2, 22, 34
func TestClonedDirectory(t *testing.T) {
	m := newCampaign(t, 5*time.Minute, CampaignConfig{Program: program(t), Seed: seedOf(t)})
	original := m.Hosts[0]
	if err := m.await(original, "instance ID on disk", time.Minute, func() bool {
		_, err := os.Stat(filepath.Join(m.StateDir(original), "txlog", "MANIFEST"))
		return err == nil
	}); err != nil {
		t.Fatal(err)
	}
	original.Kill()
	clone, err := m.AddHost("clone")
	if err != nil {
		t.Fatal(err)
	}
	m.Hosts = m.Hosts[:len(m.Hosts)-1] // it is judged apart
	clone.Args = nil                   // the instance ID comes with the directory
	original.Args = nil
	if err := CopyDir(original.Dir, clone.Dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(original.Start(), clone.Start()); err != nil {
		t.Fatal(err)
	}
	loser, winner := original, clone
	select {
	case <-original.Done():
	case <-clone.Done():
		loser, winner = clone, original
	case <-time.After(2 * time.Minute):
		t.Fatalf("two processes with one instance ID live on\n%s\n%s", original.Tail(), clone.Tail())
	}
	code, _, _ := loser.Ended()
	t.Logf("host %s is the one that ended, with %d", loser.Name, code)
	if code == 0 || !strings.Contains(loser.Tail(), "instance") {
		t.Errorf("ended with %d and does not speak of its instance ID:\n%s", code, loser.Tail())
	}
	m.Hosts[0] = winner
	if err := errors.Join(m.AwaitFlow(time.Minute), m.Finish(finishLimit)); err != nil {
		t.Fatal(err)
	}
}

// TestHostNeverComesBack: a host dies with a transaction open, its offsets in it, and is never seen again. The brokers
// end its transaction and its session; the others wait for that, take its tasks over and go on.
// CRASH 3, 4, 29, 50
func TestHostNeverComesBack(t *testing.T) {
	m := newCampaign(t, 4*time.Minute, CampaignConfig{Program: program(t), Seed: seedOf(t)})
	gone := m.Hosts[0]
	if err := m.await(gone, "running tasks", time.Minute, func() bool { return running(m, gone) > 0 }); err != nil {
		t.Fatal(err)
	}
	gone.Table.Arm("offsets.committed", 2, fault.Kill)
	if dead, err := gone.AwaitDeath(m.ctx, time.Minute); err != nil || !dead {
		t.Fatalf("not killed: %v", err)
	}
	m.Hosts = m.Hosts[1:]
	if err := m.Finish(finishLimit); err != nil {
		t.Fatal(err)
	}
}
