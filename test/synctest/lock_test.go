//go:build !bubble

package synctest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// waitableLock is the change of sarama that lets it live in a bubble. A goroutine that waits for a mutex
// keeps virtual time from moving on, and sarama holds one per connection from a request until its answer,
// also while JoinGroup waits for the other members: the heartbeats that wait behind it would wait for
// ever. These locks are the same to their users, but who waits for one waits for a condition, which counts.
const waitableLock = `package sarama

import "sync"

// waitableRWLock is a read-write mutex whose waiters wait for a condition.
type waitableRWLock struct {
	mu      sync.Mutex
	free    *sync.Cond
	held    bool
	readers int
}

// waitableLock is a mutex of the same kind.
type waitableLock struct{ waitableRWLock }

func (l *waitableRWLock) wait(busy func() bool) {
	if l.free == nil {
		l.free = sync.NewCond(&l.mu)
	}
	for busy() {
		l.free.Wait()
	}
}

func (l *waitableRWLock) busy() bool    { return l.held || l.readers > 0 }
func (l *waitableRWLock) written() bool { return l.held }

func (l *waitableRWLock) Lock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wait(l.busy)
	l.held = true
}

func (l *waitableRWLock) RLock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wait(l.written)
	l.readers++
}

func (l *waitableRWLock) TryLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy() {
		return false
	}
	l.held = true
	return true
}

func (l *waitableRWLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		panic("unlock of a lock that is free")
	}
	l.held = false
	if l.free != nil {
		l.free.Broadcast()
	}
}

func (l *waitableRWLock) RUnlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readers == 0 {
		panic("unlock of a lock that is free")
	}
	l.readers--
	if l.free != nil {
		l.free.Broadcast()
	}
}
`

// withWaitableLock writes into dir a copy of sarama with that lock, and a go.mod that uses it: Go lets no
// overlay replace a file of its module cache. It returns the argument for go build.
func withWaitableLock(root, dir string) (string, error) {
	const module = "github.com/IBM/sarama"
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("synctest: where is sarama: %w", err)
	}
	from, to := strings.TrimSpace(string(out)), filepath.Join(dir, "sarama")
	files, err := filepath.Glob(filepath.Join(from, "*.go"))
	if err != nil {
		return "", err
	}
	for _, f := range append(files, filepath.Join(from, "go.mod")) {
		err = errors.Join(err, copyFile(f, filepath.Join(to, filepath.Base(f))))
	}
	// sarama has packages of its own below internal.
	err = errors.Join(err, os.CopyFS(filepath.Join(to, "internal"), os.DirFS(filepath.Join(from, "internal"))))
	for _, name := range []string{"go.mod", "go.sum"} {
		err = errors.Join(err, copyFile(filepath.Join(root, name), filepath.Join(dir, name)))
	}
	if err != nil {
		return "", fmt.Errorf("synctest: copy sarama: %w", err)
	}
	if err := os.WriteFile(filepath.Join(to, "waitable_lock.go"), []byte(waitableLock), 0o600); err != nil {
		return "", err
	}
	mod := filepath.Join(dir, "go.mod")
	edit := exec.Command("go", "mod", "edit", "-replace", module+"="+to, mod)
	if out, err := edit.CombinedOutput(); err != nil {
		return "", fmt.Errorf("synctest: %w: %s", err, out)
	}
	return "-modfile=" + mod, nil
}

// copyFile copies a file; in one of Go, mutexes become locks that can be waited for.
func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if filepath.Ext(from) == ".go" {
		was := string(b)
		is := strings.NewReplacer("sync.Mutex", "waitableLock", "sync.RWMutex", "waitableRWLock").Replace(was)
		if is != was {
			is += "\nvar _ sync.Once // the import may have no other use left\n"
		}
		b = []byte(is)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}
