//go:build bubble

package synctest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/kafka/faultnet"
)

var endTxn = faultnet.KeyOf("EndTxn")

// event is one fault.
type event struct {
	at     time.Duration // since the start
	after  int           // if not negative: at, counted from when that event of the schedule has struck
	client int
	what   string // what happens: see apply
	key    string // of frame faults: Kafka's name of the request
	code   int16
	times  int
	wait   time.Duration // how long a pause or a delay is
	txns   int           // of "hold": how many transactions later
}

func (e event) String() string {
	s := fmt.Sprintf("at %v", e.at)
	if e.after >= 0 {
		s += fmt.Sprintf(" after event %d", e.after)
	}
	s += fmt.Sprintf(": client %c: %s", 'a'+e.client, e.what)
	if e.key != "" {
		s += " " + e.key
	}
	if e.code != 0 {
		s += fmt.Sprintf(" code %d x%d", e.code, e.times)
	}
	if e.wait > 0 {
		s += fmt.Sprintf(" for %v", e.wait)
	}
	if e.txns > 0 {
		s += fmt.Sprintf(" by %d transactions", e.txns)
	}
	return s
}

type schedule []event

func (s schedule) String() string {
	var b strings.Builder
	for i, e := range s {
		fmt.Fprintf(&b, "  %d: %s\n", i, e)
	}
	return b.String()
}

// Requests by how they are hit: those of every transaction, and those that something else must bring about.
var (
	txnKeys   = []string{"Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"}
	startKeys = []string{"InitProducerId", "OffsetFetch", "ListOffsets", "FindCoordinator", "Metadata", "JoinGroup", "SyncGroup"}
	otherKeys = []string{"Fetch", "Heartbeat"}
	// ownKeys are requests on connections of our own producer and reader: a pause keeps them back.
	ownKeys = []string{"Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "InitProducerId", "Fetch"}
)

// retriable are codes that a broker may answer to each request and that the client must outlive.
var retriable = map[string][]int16{
	"Produce":            {-1, 2, 3, 5, 6, 7, 19, 20, 45, 47, 48, 49, 51, 56, 59, 120},
	"AddPartitionsToTxn": {-1, 3, 14, 15, 16, 47, 48, 49, 51, 120},
	"AddOffsetsToTxn":    {-1, 14, 15, 16, 47, 48, 49, 51, 120},
	"TxnOffsetCommit":    {-1, 3, 7, 14, 15, 16, 22, 25, 27, 47, 48, 49, 51, 120},
	"EndTxn":             {-1, 7, 14, 15, 16, 47, 48, 49, 51, 120},
	"InitProducerId":     {-1, 14, 15, 16, 51},
	"OffsetFetch":        {14, 15, 16, 88},
	"Fetch":              {-1, 2, 3, 5, 6, 56, 70, 71, 74, 75, 78},
	"JoinGroup":          {14, 15, 16, 25, 27},
	"SyncGroup":          {14, 15, 16, 22, 25, 27},
	"Heartbeat":          {14, 15, 16, 22, 25, 27},
	"ListOffsets":        {5, 6, 56, 74, 75, 78},
	"Metadata":           {5},
	"FindCoordinator":    {14, 15},
}

// pauses are for how long a client is not heard: half, once and twice the transaction and the session timeout.
var pauses = []time.Duration{transactionTimeout / 2, transactionTimeout, 2 * transactionTimeout, sessionTimeout / 2, sessionTimeout, 2 * sessionTimeout}

// newConfig makes the run of a seed.
func newConfig(seed uint64) config {
	r := rand.New(rand.NewPCG(seed, 1))
	c := config{
		seed: seed, clients: 1 + r.IntN(2), workers: 1 + r.IntN(2), bills: 150 + r.IntN(250), accounts: 5 + r.IntN(60),
		gap: 800 * time.Millisecond, interval: []time.Duration{20, 100, 500}[r.IntN(3)] * time.Millisecond, wipe: r.IntN(3) == 0,
		wait: 15 * time.Second,
	}
	n := 0
	switch r.IntN(6) {
	case 0, 1: // one fault only
		n = 1
	case 2:
		n = 2
	default:
		n = r.IntN(13)
	}
	if n > 1 || seed%2 == 0 {
		// By turns, so that few seeds are enough to have everything happen to every request.
		e := event{at: time.Duration(r.Int64N(int64(c.wait))), after: -1, client: r.IntN(c.clients), key: txnKeys[seed/2%uint64(len(txnKeys))]}
		e.what = frameFaults[seed/2/uint64(len(txnKeys))%uint64(len(frameFaults))]
		if n > 0 {
			c.events = append(c.events, detail(r, e))
		}
	}
	for len(c.events) < n {
		c.events = append(c.events, newEvents(r, &c)...)
	}
	return c
}

// newEvents makes one fault, with what brings it about if need be.
func newEvents(r *rand.Rand, c *config) []event {
	e := event{at: time.Duration(r.Int64N(int64(c.wait))), after: -1, client: r.IntN(c.clients)}
	n := len(c.events)
	if n > 0 && r.IntN(2) == 0 { // during the recovery from the last one
		e.after, e.at = n-1, []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond}[r.IntN(4)]
		e.client = c.events[n-1].client
	}
	switch r.IntN(20) {
	case 0, 1, 2, 3, 4, 5, 6, 7:
		return []event{frameFault(r, e, txnKeys[r.IntN(len(txnKeys))])}
	case 8, 9, 10, 11:
		// What a start or a recovery asks. Something must lead to it.
		key := startKeys[r.IntN(len(startKeys))]
		f := frameFault(r, e, key)
		cause := event{at: e.at, after: e.after, client: e.client, what: "restart"}
		switch key {
		case "InitProducerId", "OffsetFetch":
			if r.IntN(2) == 0 {
				cause.what, cause.key = []string{"lose answer", "lose request"}[r.IntN(2)], txnKeys[r.IntN(len(txnKeys))]
			}
		case "Metadata":
			cause.what = []string{"move leaders", "restart"}[r.IntN(2)]
		case "FindCoordinator":
			cause.what = []string{"move coordinators", "restart", "cut"}[r.IntN(3)]
		}
		return []event{f, cause}
	case 12, 13:
		return []event{frameFault(r, e, otherKeys[r.IntN(len(otherKeys))])}
	case 14:
		e.what = "move leaders"
	case 15:
		e.what = "move coordinators"
	case 16:
		e.what = "restart"
	case 17:
		e.what = "crash"
	case 18:
		e.what, e.wait = "pause", pauses[r.IntN(len(pauses))]
	default:
		e.what = "cut"
	}
	return []event{e}
}

// frameFaults are what can become of a request.
var frameFaults = []string{"lose request", "lose answer", "hold", "slow", "refuse", "handle, then refuse"}

// frameFault chooses what becomes of a request: those that a network does come more often.
func frameFault(r *rand.Rand, e event, key string) event {
	e.key = key
	e.what = slices.Concat(frameFaults, frameFaults[:2])[r.IntN(len(frameFaults)+2)]
	return detail(r, e)
}

// detail completes a frame fault.
func detail(r *rand.Rand, e event) event {
	switch {
	case e.what == "hold" && (e.key == "Fetch" || e.key == "Heartbeat"):
		e.what = "lose answer" // a late one does nothing
	case e.what == "hold":
		e.txns = 1 + r.IntN(3)
	case e.what == "slow":
		e.wait = []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second, 12 * time.Second}[r.IntN(4)]
	case e.what == "handle, then refuse" && e.key == "Metadata":
		e.what = "refuse"
	}
	switch e.what {
	case "refuse":
		codes := retriable[e.key]
		e.code, e.times = codes[r.IntN(len(codes))], 1+2*r.IntN(2)
		if e.key == "Fetch" && e.code == 2 {
			e.times = 1 // what is corrupt three times in a row is taken for the disk's fault
		}
	case "handle, then refuse":
		e.code, e.times = failedAfter(r, e.key, retriable[e.key]), 1
	}
	return e
}

// failedAfter is a code that a broker may answer though it has done what it was asked.
func failedAfter(r *rand.Rand, key string, codes []int16) int16 {
	switch key {
	case "Produce":
		return []int16{7, 20, -1}[r.IntN(3)]
	case "TxnOffsetCommit", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn":
		return []int16{-1, 15, 16}[r.IntN(3)]
	}
	return codes[r.IntN(len(codes))]
}
