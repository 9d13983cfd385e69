package sim

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// owner is one instance: its disk, and its process if one lives. A process is a coroutine that stops at
// each of its steps until the scheduler lets it go on.
type owner struct {
	w        *world
	instance string
	disk     *disk
	life     int

	// The process. resume is nil while none lives.
	resume  func() (string, bool)
	end     func()
	yield   func(string) bool
	dying   bool
	stepper *processor.Stepper
	joined  bool   // it has told the group of itself
	heard   int32  // the newest generation that it knows
	where   string // its last stop
	stepped bool   // a step of its worker has ended since the world is calm

	wake    time.Time     // it waits until then by itself
	paused  time.Time     // it is stopped from outside until then
	restart time.Time     // of a dead one
	wanted  bool          // a process is to be here
	skew    time.Duration // of its clock
	deaf    time.Time     // until then it hears nothing of the global table

	revoke []record.TopicPartition // to be given back; nil: nothing
	news   []notice                // of the group, on their way, in order
}

// notice is what the group tells a member, at its time: partitions to give back, all lost, or else an
// assignment.
type notice struct {
	at     time.Time
	revoke []record.TopicPartition
	lost   []record.TopicPartition
	meta   broker.GroupMeta
	owned  []record.TopicPartition
}

// start makes a process. It runs from the scheduler's next choice on.
func (o *owner) start() {
	o.life++
	o.w.recovering = true
	o.dying, o.stepper, o.joined, o.revoke, o.news = false, nil, false, nil, nil
	o.wake, o.paused, o.heard = time.Time{}, time.Time{}, -1
	life := o.life
	o.resume, o.end = iter.Pull(func(yield func(string) bool) {
		defer o.over(life)
		o.yield = yield
		o.w.exited(o, o.main())
	})
}

// over runs when the process ends, in whatever way.
func (o *owner) over(life int) {
	switch r := recover().(type) {
	case nil:
	case simbroker.Crash:
		o.w.note("dies %s at %s", o.instance, r.Call.API)
	default:
		o.w.fail("%s, life %d: panic: %v\n%s", o.instance, life, r, debug.Stack())
	}
	o.resume = nil
	o.w.died(o)
}

// kill ends the process where it stands.
func (o *owner) kill() {
	if o.resume == nil {
		return
	}
	o.dying = true
	end := o.end
	o.resume = nil
	end()
}

// stop is a place where the process may be interrupted for ever.
func (o *owner) stop(where string) {
	o.w.spring(o, where)
	if o.dying || !o.yield(where) {
		o.dying = true
		panic(simbroker.Crash{Call: simbroker.Call{Client: o.instance, API: simbroker.API(where)}})
	}
}

// halfDeaf is the cluster as a process sees it that may hear nothing of the global table.
type halfDeaf struct {
	*simbroker.Client
	o *owner
}

// NewReader implements broker.Cluster.
func (h halfDeaf) NewReader(c broker.ReaderConfig) broker.Reader {
	return &deafReader{Reader: h.Client.NewReader(c), o: h.o}
}

type deafReader struct {
	broker.Reader
	o     *owner
	rates bool // it reads the global table
}

// Seek implements broker.Reader.
func (r *deafReader) Seek(tp record.TopicPartition, next record.Offset, tag uint64) {
	r.rates = r.rates || tp.Topic == ratesTopic
	r.Reader.Seek(tp, next, tag)
}

// Poll implements broker.Reader.
func (r *deafReader) Poll(ctx context.Context, wait time.Duration) []broker.Batch {
	if r.rates && r.o.w.now().Before(r.o.deaf) {
		return nil
	}
	return r.Reader.Poll(ctx, wait)
}

// metrics are of all processes together: nobody looks at them, and to make them takes long.
var metrics = sync.OnceValue(func() *metric.Set {
	m, err := metric.New(nil, app)
	if err != nil {
		panic(err)
	}
	return m
})

// main is the process: what an App does, with the group's calls between two steps of its worker.
func (o *owner) main() error {
	ctx := context.Background()
	c := o.w.b.Client(fmt.Sprintf("%s.%d", o.instance, o.life))
	c.Prefetch, c.MaxFetch, c.Protocol = o.w.conf.Prefetch, o.w.conf.MaxFetch, o.w.conf.Protocol
	c.Yield = func(call simbroker.Call) {
		if call.API == simbroker.Sleep {
			o.wake = o.w.now().Add(call.Wait)
		}
		o.stop(string(call.API))
	}
	s, err := processor.NewStepper(ctx, o.w.topo, processor.Env{
		Cluster: halfDeaf{c, o}, Local: diskView{o.disk, o}, Instance: o.instance, Now: func() time.Time { return o.w.now().Add(o.skew) },
		Sleep: func(ctx context.Context, d time.Duration) error {
			o.wake = o.w.now().Add(d)
			o.stop("sleep")
			return ctx.Err()
		},
		Incarnation: func() uint64 { o.w.incarnations++; return o.w.incarnations },
		Metrics:     metrics(),
		Point:       func(name string) { o.w.point(name); o.stop("point " + name) },
	}, append([]processor.Option{
		processor.WithTransactionLimits(0, 0, transactionTimeout),
		processor.WithErrorPolicy(topology.PolicyDeadLetter, deadTopic),
	}, o.w.conf.Options...)...)
	if err != nil {
		return err
	}
	if err := s.Start(ctx, 0); err != nil {
		return err
	}
	o.stepper, o.joined = s, true
	o.w.group.join(o)
	for {
		if gone := o.revoke; gone != nil {
			o.stop("revoke.start")
			s.Revoked(ctx, gone)
			o.stop("revoke.done")
			o.revoke = nil
		}
		if err := s.Step(ctx, 0); err != nil {
			return err
		}
		o.stop("step")
	}
}

// transactionalID is that of its worker.
func (o *owner) transactionalID() string { return app + "-" + o.instance + "-0" }

// runnable says whether the scheduler may let the process go on.
func (o *owner) runnable(now time.Time) bool {
	return o.resume != nil && !now.Before(o.wake) && !now.Before(o.paused)
}

// deliver hands over the group's news, if it is time and the process is not stopped. The membership
// of a real process runs beside its worker: so the worker may stand anywhere, and the next news waits
// until a revoke is done.
func (o *owner) deliver(now time.Time) {
	for len(o.news) > 0 && o.revoke == nil && o.resume != nil && o.stepper != nil && !now.Before(o.paused) {
		n := o.news[0]
		if now.Before(n.at) {
			return
		}
		o.news = o.news[1:]
		switch {
		case n.revoke != nil:
			o.revoke = n.revoke
		case n.lost != nil:
			o.stepper.Lost(n.lost)
			o.joined = false
			o.w.group.join(o) // back again, as a new member
		default:
			o.heard = n.meta.Generation
			o.stepper.Assigned(n.meta, n.owned)
		}
		if now.Before(o.wake) {
			o.wake = now // the reader is woken
		}
	}
}

// mayExit says whether a process may end with this error; it is started again.
func (w *world) mayExit(o *owner, err error) bool {
	switch {
	case errors.Is(err, broker.ErrFenced):
		// A late InitProducerId of the process itself looks like another owner's (crash table, row 22).
		return w.heldInit
	case errors.Is(err, processor.ErrOffsets):
		// A zombie that was stopped in the middle of a restore reads what its successor wrote after it had
		// asked for the end of the input. It has lost its tasks and does not know it yet.
		return o.heard != w.group.g.Meta(o.instance).Generation
	}
	return errors.Is(err, broker.ErrUnreachable)
}
