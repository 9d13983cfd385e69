//go:build bubble

package synctest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// client is one process: an App that its supervisor starts again, and the dialer in front of it.
type client struct {
	w    *world
	name string
	dir  string
	net  *faultnet.Net
	topo *topology.Topology

	done chan struct{} // closed when the supervisor has ended

	// endOutcome is what became of the transaction whose EndTxn met the last fault: a string.
	endOutcome atomic.Value

	mu      sync.Mutex // guards the rest
	app     *processor.App
	cancel  context.CancelFunc // ends the App that runs now
	ended   chan struct{}      // closed when it has ended
	stopped bool
	held    []held
	ends    int // EndTxn requests so far
}

// held is a request that was kept back, or will be.
type held struct {
	h     *faultnet.Held
	after int // EndTxn requests of the client before it is delivered
	at    int // how many there had been when it was caught, -1 before
	since time.Time
	what  string
}

func newClient(w *world, i int) *client {
	topo, err := billsTopology()
	if err != nil {
		panic(err)
	}
	name := string(rune('a' + i))
	c := &client{w: w, name: name, dir: filepath.Join(w.dir, name), net: faultnet.New(w.net.DialContext), topo: topo}
	c.endOutcome.Store("by something else")
	return c
}

// start runs the supervisor.
func (c *client) start() {
	c.mu.Lock()
	c.stopped = false
	c.done = make(chan struct{})
	c.mu.Unlock()
	go func() {
		defer close(c.done)
		for c.life() {
			time.Sleep(500 * time.Millisecond)
		}
	}()
}

// life runs one App. False: it is not to be started again.
func (c *client) life() bool {
	a, err := processor.New(c.topo,
		processor.WithBrokers(c.w.addrs()...), processor.WithKafka(processor.KafkaConfig{Dial: c.net.Dial}), processor.WithStateDir(c.dir),
		processor.WithInstanceID(c.name), processor.WithWorkers(c.w.conf.workers), processor.WithCommitInterval(c.w.conf.interval),
		processor.WithShutdownTimeout(2*time.Second), processor.WithMinFreeDisk(1<<20), processor.WithLogger(newLogger(c)),
	)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(c.w.ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return false
	}
	c.app, c.cancel, c.ended = a, cancel, ended
	c.mu.Unlock()
	if err := a.Run(ctx); err != nil {
		c.w.stopped(c, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.stopped
}

func (c *client) status() processor.Status {
	c.mu.Lock()
	a := c.app
	c.mu.Unlock()
	if a == nil {
		return processor.Status{}
	}
	return a.Status()
}

// stop ends the client for good.
func (c *client) stop() {
	c.mu.Lock()
	c.stopped = true
	if c.cancel != nil {
		c.cancel()
	}
	c.mu.Unlock()
	<-c.done
}

// restart ends the App, in order; its supervisor starts it again.
func (c *client) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// crash ends the App without letting it say anything more to a broker.
func (c *client) crash() {
	c.net.Pause()
	c.mu.Lock()
	cancel, ended := c.cancel, c.ended
	c.mu.Unlock()
	if cancel == nil {
		c.net.Resume()
		return
	}
	cancel()
	<-ended
	c.net.Resume()
}

// wiped stops the client, empties its directory and starts it again.
func (c *client) wiped() {
	c.stop()
	if err := os.RemoveAll(c.dir); err != nil {
		c.w.fail("wipe: %v", err)
	}
	c.start()
}

// deliver hands over what was held back and is due; all of it at the end.
func (c *client) deliver(all bool) {
	for _, k := range c.net.Seen() {
		if k == endTxn {
			c.ends++
		}
	}
	kept := c.held[:0]
	for _, h := range c.held {
		select {
		case <-h.h.Caught():
			if h.at < 0 {
				h.at, h.since = c.ends, time.Now()
			}
		default:
		}
		switch {
		case h.at >= 0 && (all || c.ends >= h.at+h.after || time.Since(h.since) > 30*time.Second):
			err := h.h.Deliver()
			c.w.trace("%s: late request delivered: %s (%v)", c.name, h.what, err)
			c.w.hit("late " + h.what)
		case !all:
			kept = append(kept, h)
		}
	}
	c.held = kept
}
