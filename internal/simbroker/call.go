package simbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
)

// API names a request.
type API string

// The requests. Sleep is none: it is a client's wait, seen by Client.Yield only.
const (
	Metadata           API = "Metadata"
	CreateTopics       API = "CreateTopics"
	DeleteRecords      API = "DeleteRecords"
	ListOffsets        API = "ListOffsets"
	OffsetFetch        API = "OffsetFetch"
	DescribeGroups     API = "DescribeGroups"
	InitProducerID     API = "InitProducerId"
	AddPartitionsToTxn API = "AddPartitionsToTxn"
	AddOffsetsToTxn    API = "AddOffsetsToTxn"
	Produce            API = "Produce"
	TxnOffsetCommit    API = "TxnOffsetCommit"
	EndTxn             API = "EndTxn"
	Fetch              API = "Fetch"
	Sleep              API = "Sleep"
)

// Call is one request on its way.
type Call struct {
	N      int    // running number over the whole cluster, from 1; 0 for Sleep
	Client string // the name given to Broker.Client
	API    API
	Where  string        // topic/partition, group or transactional ID
	Wait   time.Duration // Sleep: for how long
}

// Verdict is what becomes of a request.
type Verdict uint8

// The verdicts.
const (
	Handle         Verdict = iota // as usual
	Refuse                        // answered with Action.Code, not handled
	HandleThenFail                // handled, but answered with Action.Code
	LoseRequest                   // never handled, no answer
	LoseAnswer                    // handled, no answer
	Hold                          // no answer; handled after Action.Requests further requests
	Repeat                        // handled, answered, and handled once more after Action.Requests further requests
	CrashBefore                   // the process ends before the request leaves it
	CrashAfter                    // the request is handled, the process ends without seeing the answer
)

// Action is the answer of a Fault hook. The zero Action handles the request.
type Action struct {
	Verdict  Verdict
	Code     Code          // of Refuse and HandleThenFail
	Requests int           // of Hold and Repeat: after how many further requests it arrives; 0: at Broker.DeliverHeld
	Wait     time.Duration // how long the client waits for the answer that does not come
}

// Fault sees each request before it is handled and decides what becomes of it. It is called without a
// lock: it may use the Broker.
type Fault func(Call) Action

// Crash is the value of the panic by which a simulated process ends.
type Crash struct{ Call Call }

// Error says where the process ended.
func (c Crash) Error() string {
	return fmt.Sprintf("simulated crash of %s at %s %s", c.Call.Client, c.Call.API, c.Call.Where)
}

type heldRequest struct {
	after  int
	handle func() Code
}

// request runs one request through the hooks. handle runs under the broker's lock. noAnswer is
// returned when nothing came back: whether the request was handled is then unknown to the client.
func (c *Client) request(ctx context.Context, api API, where string, handle func() Code) Code {
	if ctx.Err() != nil {
		return noAnswer
	}
	b := c.b
	b.mu.Lock()
	b.calls++
	b.counts[api]++
	call := Call{N: b.calls, Client: c.name, API: api, Where: where}
	fault := b.fault
	b.mu.Unlock()
	if c.Yield != nil {
		c.Yield(call)
	}
	var act Action
	if fault != nil {
		act = fault(call)
	}
	if act.Verdict == CrashBefore {
		panic(Crash{call})
	}
	code := b.handle(act, handle)
	switch act.Verdict {
	case CrashAfter:
		panic(Crash{call})
	case Refuse, HandleThenFail:
		return act.Code
	case LoseRequest, LoseAnswer, Hold:
		c.sleep(act.Wait)
		return noAnswer
	}
	return code
}

// handle delivers what was held long enough, then this request unless its verdict says otherwise.
func (b *Broker) handle(act Action, handle func() Code) Code {
	b.mu.Lock()
	defer b.mu.Unlock()
	var due []heldRequest
	keep := b.held[:0]
	for _, h := range b.held {
		if h.after--; h.after == 0 {
			due = append(due, h)
		} else {
			keep = append(keep, h)
		}
	}
	b.held = keep
	for _, h := range due {
		h.handle()
		b.settle()
	}
	b.settle()
	code := None
	switch act.Verdict {
	case Handle, HandleThenFail, LoseAnswer, CrashAfter, Repeat:
		code = handle()
		b.settle()
	}
	if act.Verdict == Hold || act.Verdict == Repeat {
		b.held = append(b.held, heldRequest{act.Requests, handle})
	}
	return code
}

// sleep lets virtual time pass. The harness may run others meanwhile, and may itself move the clock.
func (c *Client) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	until := c.b.Now().Add(d)
	if c.Yield != nil {
		c.Yield(Call{Client: c.name, API: Sleep, Wait: d})
	}
	if left := until.Sub(c.b.Now()); left > 0 {
		c.b.Advance(left)
	}
}

// backoff is the wait before the n-th repetition of an answered request (KAFKA.md section 3).
func backoff(n int) time.Duration {
	if n < 2 {
		return time.Millisecond
	}
	return min(time.Millisecond<<min(n-1, 10), 20*time.Millisecond)
}

func newError(api API, where string, code Code, kind error) *broker.Error {
	e := &broker.Error{Op: string(api), Where: where, Kind: kind}
	if code == noAnswer {
		e.Cause = errNoAnswer
	} else {
		e.Code = int16(code)
	}
	return e
}
