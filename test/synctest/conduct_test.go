//go:build bubble

package synctest

import (
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/kafka/faultnet"
)

// conduct carries out the schedule, until all of it has struck or had its time, and the load is over.
// Then nothing is held back any more.
func (w *world) conduct(load <-chan struct{}) {
	events := w.conf.events
	done := make([]bool, len(events))        // carried out or armed
	struck := make([]time.Time, len(events)) // when it did, zero: not yet
	hits := make(chan int, 64)
	limit := w.start.Add(w.conf.wait + 10*time.Second)
	over := false
	for !over {
		for empty := false; !empty; {
			select {
			case i := <-hits:
				if struck[i].IsZero() {
					struck[i] = time.Now()
				}
			default:
				empty = true
			}
		}
		for i, e := range events {
			from := w.start
			if e.after >= 0 {
				if from = struck[e.after]; from.IsZero() {
					continue
				}
			}
			if !done[i] && time.Since(from) >= e.at {
				done[i] = true
				w.apply(e, func() {
					select {
					case hits <- i:
					default:
					}
				})
			}
		}
		for _, c := range w.clients {
			c.deliver(false)
		}
		select {
		case <-load:
			over = time.Now().After(limit)
		default:
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, c := range w.clients {
		for c.net.Paused() { // a long pause has its time
			time.Sleep(100 * time.Millisecond)
		}
		c.net.Clear()
		c.deliver(true)
	}
}

// apply carries out one event; struck is called when it has taken effect.
func (w *world) apply(e event, struck func()) {
	c := w.clients[e.client]
	w.trace("do: %s", e)
	now := func(what string) {
		w.hit(what)
		struck()
	}
	switch e.what {
	case "restart":
		now(e.what)
		c.restart()
	case "crash":
		now(e.what)
		go c.crash()
	case "cut":
		now(e.what)
		c.net.Cut()
	case "move leaders":
		w.k.ShufflePartitionLeaders()
		now(e.what)
	case "move coordinators":
		w.k.RehashCoordinators()
		now(e.what)
	case "pause":
		now(e.what)
		c.net.Pause(keysOf(ownKeys...)...)
		time.AfterFunc(e.wait, c.net.Resume)
	default:
		w.arm(c, e, now)
	}
}

// arm prepares a fault of the next request of a kind.
func (w *world) arm(c *client, e event, now func(string)) {
	name := e.what + " " + e.key
	f := faultnet.Fault{Code: e.code, Wait: e.wait, Hit: func() {
		if e.key == "EndTxn" {
			c.endOutcome.Store(map[bool]string{true: "committed", false: "aborted"}[e.what == "lose answer" || e.what == "handle, then refuse"])
		}
		now(name)
	}}
	switch e.key {
	case "OffsetFetch": // not those of sarama's group, whose answers nobody uses
		f.Match = func(r kmsg.Request) bool { return r.(*kmsg.OffsetFetchRequest).RequireStable }
	case "Metadata": // not those that are about the brokers only
		f.Match = func(r kmsg.Request) bool {
			topics := r.(*kmsg.MetadataRequest).Topics
			return len(topics) > 0 && !strings.HasPrefix(*topics[0].Topic, "__")
		}
	}
	switch e.what {
	case "lose request":
		f.Do = faultnet.LoseRequest
	case "lose answer":
		f.Do = faultnet.LoseAnswer
	case "hold":
		f.Do = faultnet.Hold
	case "slow":
		f.Do = faultnet.Slow
	case "refuse":
		f.Do = faultnet.Refuse
	case "handle, then refuse":
		f.Do = faultnet.HandleThenRefuse
	default:
		panic("synctest: no such fault: " + e.what)
	}
	for range max(1, e.times) {
		if h := c.net.Next(faultnet.KeyOf(e.key), f); h != nil {
			c.held = append(c.held, held{h: h, after: e.txns, at: -1, what: e.key})
		}
	}
}
