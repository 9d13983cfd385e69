package sinktest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// Spec is a target to be opened.
type Spec struct {
	Table sink.Table
	Class sink.Class
	// Address is where the server is reached, HOST:PORT; empty: the harness's own.
	Address string
	// User and Password instead of the harness's own.
	User, Password string
}

// Harness is a kind of target and a server of it that the suite may kill.
type Harness interface {
	// Open opens a target, with connections of its own as another process would have.
	Open(s Spec) (sink.Target, error)
	// Address is where the server is reached, empty if it has no network: then faults of it are left out.
	Address() string
	// Commit is a regular expression that the bytes match which make a batch durable, as a COMMIT.
	Commit() string
	// LeftOut names tests that cannot apply to this target, each with the reason.
	LeftOut() map[string]string
	// Exec runs a statement with all rights. Without SQL it has nothing to do.
	Exec(ctx context.Context, statement string) error
	// Type is the database's type for a kind.
	Type(k sink.Kind) string
	// Narrow is the database's type for integers of 16 bits, empty if it has none.
	Narrow() string
	// Rows returns all rows of a table in the order of its first column, each value as text: a timestamp
	// as 2006-01-02T15:04:05.000000Z, a bool as true or false, bytes in hex, NULL as "NULL".
	Rows(ctx context.Context, table sink.Table) ([][]string, error)
	// Kill ends the server with kill -9; Start starts it again and waits until it answers.
	Kill() error
	Start(ctx context.Context) error
	// Reader makes a user with a password that may read but not write the tables.
	Reader(ctx context.Context, user, password string) error
	// Appender makes a user with exactly the rights that a ledger needs to append to a table without a key.
	Appender(ctx context.Context, user, password string, table sink.Table) error
	// Rewind puts the progress of a partition back, as a fail-over does that loses the last commits.
	Rewind(ctx context.Context, p sink.Partition, next record.Offset) error
	// ReadOnly switches the server, or what else is there, between reading only and not. False: there is
	// no such thing here.
	ReadOnly(ctx context.Context, user, password string, on bool) (bool, error)
}

// suite is one run.
type suite struct {
	Harness
	class   sink.Class // of targets whose test does not say
	n       int
	decided map[sink.Partition]*decided
}

// test is one of the suite.
type test struct {
	name   string
	server bool // needs one that can be reached by network and killed
	f      func(*testing.T, *suite)
}

// Run puts the target through all tests.
func Run(t *testing.T, h Harness) {
	run(t, &suite{Harness: h}, []test{
		{"Values", false, values},
		{"LargeBatch", false, largeBatch},
		{"Upsert", false, upsert},
		{"Progress", false, progress},
		{"Fenced", false, fenced},
		{"CommitsLost", false, commitsLost},
		{"TopicMadeAnew", false, topicMadeAnew},
		{"RowRefused", false, rowRefused},
		{"Narrow", false, narrow},
		{"DecimalKeys", false, decimalKeys},
		{"Idempotent", false, idempotent},
		{"Setup", false, setup},
		{"Rights", true, rights},
		{"Appender", true, appender},
		{"CommitLost", true, commitLost},
		{"CommitAnswerLost", true, commitAnswerLost},
		{"Zombie", true, zombie},
		{"ServerKilled", true, serverKilled},
	})
}

// RunTwoPhase puts a target of class two_phase through its tests. What the harness opens without a class is of that one.
func RunTwoPhase(t *testing.T, h Harness) {
	run(t, &suite{Harness: h, class: sink.TwoPhase, decided: map[sink.Partition]*decided{}}, []test{
		{"Values", false, values},
		{"LargeBatch", false, largeBatch},
		{"Upsert", false, upsert},
		{"Fenced", false, fenced},
		{"RowRefused", false, rowRefused},
		{"Narrow", false, narrow},
		{"DecimalKeys", false, decimalKeys},
		{"Setup", false, setup},
		{"Rights", true, rights},
		{"Capabilities", true, capabilities},
		{"Offsets", false, offsets},
		{"OthersAreLeftAlone", false, othersAreLeftAlone},
		{"OffsetSetByHand", false, offsetSetByHand},
		{"Steps", true, steps},
		{"StepsServerKilled", true, stepsServerKilled},
		{"PreparedAfterTheClaim", true, preparedAfterTheClaim},
		{"PreparedAndFenced", true, preparedAndFenced},
		{"DecidedAndPaused", true, decidedAndPaused},
		{"ClaimOvertaken", false, claimOvertaken},
		{"ServerKilled", true, serverKilled},
	})
}

func run(t *testing.T, s *suite, tests []test) {
	h := s.Harness
	for _, c := range tests {
		if c.server && h.Address() == "" || h.LeftOut()[c.name] != "" {
			continue // a file has no network to fail and no server to kill
		}
		t.Run(c.name, func(t *testing.T) { c.f(t, s) })
	}
}

const topic = "bills-totals-sink"

// partition is a partition of a sink that no other test uses.
func partition() sink.Partition {
	return sink.Partition{
		Sink:           "sink-" + rand.Text()[:6],
		TopicPartition: record.TopicPartition{Topic: topic, Partition: 3},
		TopicID:        "6mPYPvVqQ3uPj4a8vG4nKw",
	}
}

// table makes a table. more is what stands behind the columns.
func (s *suite) table(t *testing.T, columns []sink.Column, key []string, more ...string) sink.Table {
	t.Helper()
	s.n++
	table := sink.Table{Name: fmt.Sprintf("t%d_%s", s.n, strings.ToLower(rand.Text()[:4])), Columns: columns, Key: key}
	var lines []string
	for _, c := range columns {
		lines = append(lines, c.Name+" "+s.Type(c.Kind))
	}
	lines = append(lines, more...) // columns stand before constraints in every dialect
	if len(key) > 0 {
		lines = append(lines, "PRIMARY KEY ("+strings.Join(key, ", ")+")")
	}
	s.exec(t, "CREATE TABLE "+table.Name+" ("+strings.Join(lines, ", ")+")")
	return table
}

func (s *suite) exec(t *testing.T, statement string) {
	t.Helper()
	if err := s.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// open opens a target, checks it and closes it with the test.
func (s *suite) open(t *testing.T, spec Spec) sink.Target {
	t.Helper()
	target := s.unchecked(t, spec)
	if err := target.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return target
}

func (s *suite) unchecked(t *testing.T, spec Spec) sink.Target {
	t.Helper()
	if spec.Class == "" {
		spec.Class = s.class
	}
	target, err := s.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.Close() })
	return target
}

func (s *suite) claim(t *testing.T, target sink.Target, p sink.Partition) sink.Writer {
	t.Helper()
	w, err := s.try(t.Context(), target, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// try claims once, in the way of the target's class.
func (s *suite) try(ctx context.Context, target sink.Target, p sink.Partition) (sink.Writer, error) {
	if d, ok := target.(sink.Decided); ok {
		return d.ClaimDecided(ctx, p, s.decisions(p).owner())
	}
	return target.Claim(ctx, p)
}

// claimAnyway claims until it works, as the owner of a partition does.
func (s *suite) claimAnyway(t *testing.T, target sink.Target, p sink.Partition) sink.Writer {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		w, err := s.try(t.Context(), target, p)
		if err == nil {
			t.Cleanup(func() { _ = w.Close() })
			return w
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // between two tries
	}
}

func write(t *testing.T, w sink.Writer, b sink.Batch) {
	t.Helper()
	if err := w.Write(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if g, ok := w.(sink.Gatherer); ok {
		for _, now := range []time.Time{time.Unix(0, 0), time.Unix(1<<32, 0)} { // so much later that anything is due
			if err := g.Settle(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// next fails unless the writer stands at the offset.
func next(t *testing.T, w sink.Writer, want record.Offset) {
	t.Helper()
	if got, ok := w.Next(); !ok || got != want {
		t.Fatalf("next offset %d, %v; want %d", got, ok, want)
	}
}

// counted are the columns of most tests: a number that says which record it was, and a text.
func counted() []sink.Column {
	return []sink.Column{{Name: "n", Kind: sink.Integer}, {Name: "v", Kind: sink.Text}}
}

// batch has one row (offset, text) for each offset in [first, next).
func batch(first, next record.Offset, text string) sink.Batch {
	b := sink.Batch{First: first, Next: next}
	for o := first; o < next; o++ {
		b.Rows = append(b.Rows, sink.Row{Offset: o, ID: record.StringID(fmt.Sprint(o)), Values: []any{int64(o), text}})
	}
	return b
}

// look reads a table. Who looks has a pool of connections too, to a server that may have been killed meanwhile: it tries again.
func (s *suite) look(ctx context.Context, table sink.Table) (rows [][]string, err error) {
	for deadline := time.Now().Add(time.Minute); ; {
		if rows, err = s.Rows(ctx, table); err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return rows, err
		}
		time.Sleep(50 * time.Millisecond) // between two tries
	}
}

// holds fails unless the table has exactly the rows (n, text of n) for 0 <= n < count.
func (s *suite) holds(t *testing.T, table sink.Table, count int, text func(n int) string) {
	t.Helper()
	rows, err := s.look(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	for i := range max(len(rows), count) {
		var got, want []string
		if i < len(rows) {
			got = rows[i]
		}
		if i < count {
			want = []string{fmt.Sprint(i), text(i)}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("row %d of %d is %q, want %q", i, len(rows), got, want)
		}
	}
}

func always(text string) func(int) string { return func(int) string { return text } }
