package files

import (
	"errors"
	"syscall"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// What file servers and file managers leave in the sink's folders, a file whose name begins with a point, is in nobody's way.
func TestStrayFiles(t *testing.T) {
	d := newMemDisk()
	if err := job(t, onDisk(t, d, Config{Size: 1}), 10); err != nil {
		t.Fatal(err)
	}
	w := claimed(t, onDisk(t, d, Config{})) // which dies with an open file
	if err := w.Write(t.Context(), batch(10, 15)); err != nil {
		t.Fatal(err)
	}
	folders := 0
	d.each("/out/"+hidden, func(n *node) {
		n.children[".nfs0001"] = &node{}
		folders++
	})
	if folders < 6 {
		t.Fatalf("%d folders", folders)
	}
	if err := job(t, onDisk(t, d, Config{}), 20); err != nil {
		t.Fatal(err)
	}
	d.each("/out/"+hidden, func(n *node) { delete(n.children, ".nfs0001") })
	exactly(t, d, 20)
}

// each calls fn for a folder and those in it.
func (d *memDisk) each(path string, fn func(*node)) {
	n := d.find(path)
	for name, c := range n.children {
		if c.children != nil {
			d.each(path+"/"+name, fn)
		}
	}
	fn(n)
}

// The directory of an application whose name begins with a point is its own all the same.
func TestDirectoryOfASinkWithAPoint(t *testing.T) {
	d := newMemDisk()
	p := partition()
	p.Sink = ".app/bills"
	if _, err := onDisk(t, d, Config{}).Claim(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := onDisk(t, d, Config{}).Claim(t.Context(), partition()); !errors.As(err, new(*sink.SetupError)) {
		t.Errorf("claimed beside it: %v", err)
	}
}

// bytes is what the files below a node hold.
func (n *node) bytes() int {
	sum := len(n.data)
	for _, c := range n.children {
		sum += c.bytes()
	}
	return sum
}

// A disk that the open file has filled has room for the next claim, which could not begin otherwise.
func TestFullDiskHasRoomForTheNextClaim(t *testing.T) {
	d := newMemDisk()
	x := onDisk(t, d, Config{})
	w := claimed(t, x)
	if err := w.Write(t.Context(), batch(0, 5)); err != nil {
		t.Fatal(err)
	}
	const room = 1000
	d.fail = func(step, _ string) error {
		if (step == "write" || step == "mkdir" || step == "create") && d.root.bytes() > room {
			return syscall.ENOSPC
		}
		return nil
	}
	var err error
	for o := record.Offset(5); err == nil; o += 5 {
		err = w.Write(t.Context(), batch(o, o+5))
	}
	if !full(err) {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := x.Claim(t.Context(), partition())
	if err != nil {
		t.Fatalf("on a disk that its own open file has filled: %v", err)
	}
	if at, known := next.Next(); at != 0 || !known {
		t.Errorf("goes on at %d, %v", at, known)
	}
}

// What a rename may commit yet is whole when it does.
func TestCloseLeavesWhatMayBeCommitted(t *testing.T) {
	d := newMemDisk()
	x := onDisk(t, d, Config{})
	w := claimed(t, x)
	if err := w.Write(t.Context(), batch(0, 5)); err != nil {
		t.Fatal(err)
	}
	g, ok := w.(*writer)
	if !ok {
		t.Fatalf("a %T", w)
	}
	d.fail = func(step, path string) error {
		if step == "rename" && path == g.folder() {
			return syscall.ETIMEDOUT // of a file server that does it later
		}
		return nil
	}
	if err := settle(t, w); err == nil {
		t.Fatal("committed")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d.fail = nil
	if err := d.rename(g.folder(), g.log+"/"+number(g.count+1)); err != nil {
		t.Fatal(err)
	}
	claimed(t, x)
	exactly(t, d, 5)
}
