package crash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Fault is one fault and what follows it. A schedule is data, so that it can be printed and compared; the timing of
// real processes is not part of it.
type Fault struct {
	Host int
	// How the process dies, or stands still: at the N-th hit of a Point, or, without one, After a while from outside.
	// EndTxn: when its request to end a transaction has reached the broker, which handles it, or not.
	Point   string
	N       uint64
	After   time.Duration
	EndTxn  bool
	Handled bool
	// Pause: it is not killed but stopped, for so long.
	Pause time.Duration
	// Dir is what becomes of the state directory before the next life.
	Dir Damage
	// Away is how long the host stays away before its next life.
	Away time.Duration
	// Again is a point at which it dies once more, in the recovery; on the host Witness, if that is another one.
	Again   string
	AgainN  uint64
	Witness int
}

// String is a line of a schedule.
func (f Fault) String() string {
	s := fmt.Sprintf("host %c: ", 'a'+f.Host)
	switch {
	case f.EndTxn:
		s += fmt.Sprintf("kill at EndTxn, handled %v", f.Handled)
	case f.Pause > 0 && f.Point != "":
		s += fmt.Sprintf("stop for %v at %s #%d", f.Pause, f.Point, f.N)
	case f.Pause > 0:
		s += fmt.Sprintf("stop for %v", f.Pause)
	case f.Point != "":
		s += fmt.Sprintf("kill at %s #%d", f.Point, f.N)
	default:
		s += fmt.Sprintf("kill after %v", f.After)
	}
	if f.Dir != "" {
		s += ", directory " + string(f.Dir)
	}
	if f.Away > 0 {
		s += fmt.Sprintf(", away for %v", f.Away)
	}
	if f.Again != "" {
		s += fmt.Sprintf(", then host %c at %s #%d", 'a'+f.Witness, f.Again, f.AgainN)
	}
	return s
}

// recordPoints are hit for each record, all others a few times for a transaction.
var recordPoints = []string{"dedup.checked", "user.done"}

// runningPoints are those that a running process reaches by itself.
func runningPoints() []string {
	return []string{
		"read.batch", "dedup.checked", "user.done", "commit.prepared", "partitions.added", "offsets.added", "produce",
		"flush.done", "offsets.committed", "endtxn.acked", "commit.acked", "badger.before", "badger.mid", "badger.after",
		"commit.applied", "filter.added", "seal.mid",
	}
}

// startPoints are those of a process that comes back.
func startPoints() []string { return []string{"store.opening", "restore.batch", "restore.done"} }

// rebalancePoints are those of a process that has to give tasks up, or whose commit is refused.
func rebalancePoints() []string { return []string{"revoke.start", "revoke.done", "recover.start"} }

// Kills draws the n-th kill of a schedule. Points take their turn, so that each is hit; everything else is random.
func Kills(random *rand.Rand, n, hosts int) Fault {
	f := Fault{Host: random.IntN(hosts)}
	f.Witness = f.Host
	switch points := runningPoints(); {
	case n%10 < 6: // at a named point
		f.Point = points[(n/10*6+n%10)%len(points)]
		switch {
		case slices.Contains(recordPoints, f.Point):
			f.N = 1 + uint64(random.IntN(400))
		case f.Point != "seal.mid":
			f.N = 1 + uint64(random.IntN(4))
		}
	case n%10 == 6, n%10 == 8:
		f.EndTxn, f.Handled = true, n%10 == 6
	default:
		f.After = time.Duration(random.Int64N(int64(400 * time.Millisecond)))
	}
	switch random.IntN(10) {
	case 0, 1:
		f.Dir = Wiped
	case 2:
		f.Dir = RolledBack
	case 3:
		f.Dir = FilterLost
	}
	// A fault during the recovery from the last one.
	switch n % 10 {
	case 1, 3, 7:
		again := startPoints()
		f.Again, f.AgainN = again[(n/10+n%10/2)%len(again)], 1
		if f.Again == "restore.batch" {
			f.AgainN += uint64(random.IntN(4))
		}
	case 9:
		again := rebalancePoints()
		f.Again, f.AgainN = again[n/10%len(again)], 1
		if f.Again == "recover.start" {
			// Asleep in a transaction until that has timed out and the others have taken over: its commit is refused.
			return Fault{Host: f.Host, Witness: f.Host, Point: "flush.done", N: 1, Pause: 2 * SessionTimeout, Again: f.Again, AgainN: 1}
		}
		// Away until the others have taken over: at its return they have to let go again.
		f.Away = SessionTimeout + time.Second
		f.Witness = (f.Host + 1 + random.IntN(hosts-1)) % hosts
	case 4:
		f.Again, f.AgainN = "partitions.added", 1
	}
	return f
}

// Pauses draws the n-th SIGSTOP of a schedule: of half, one and two times the session and the transaction timeout, at
// the places where a zombie is most dangerous, or anywhere.
func Pauses(random *rand.Rand, n, hosts int) Fault {
	lengths := []time.Duration{
		TransactionTimeout / 2, TransactionTimeout, 2 * TransactionTimeout,
		SessionTimeout / 2, SessionTimeout, 2 * SessionTimeout,
	}
	points := []string{"offsets.committed", "flush.done", "badger.before", "", "commit.prepared", "endtxn.acked", "restore.done"}
	f := Fault{Host: random.IntN(hosts), Pause: lengths[n%len(lengths)], Point: points[n%len(points)], N: 1 + uint64(random.IntN(3))}
	f.Witness = f.Host
	if f.Point == "restore.done" {
		f.N = 1
	}
	if n%4 == 1 { // it wakes up, is refused, and dies of it
		f.Again, f.AgainN = "recover.start", 1
	}
	return f
}
