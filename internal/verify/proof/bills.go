package proof

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

// Bill is what the checks need to know of an input record.
type Bill struct {
	ID, Account, Region string
	Cents               int64
}

// Scheme says where a record holds it. Values are JSON objects.
type Scheme struct {
	IDHeader string // header with the ID; empty: it is a field
	ID       string // names of the fields; an empty one is not read
	Account  string
	Region   string
	Cents    string
}

// errField: a field is missing or of another type.
var errField = errors.New("proof: field")

// Bill takes a record apart.
func (s Scheme) Bill(r *rawlog.Record) (b Bill, err error) {
	f, err := fieldsOf(r.Value)
	if s.IDHeader != "" {
		id, ok := r.Header(s.IDHeader)
		if !ok {
			return b, fmt.Errorf("%w: no header %q", errField, s.IDHeader)
		}
		b.ID = string(id)
		if s.Account == "" && s.Region == "" && s.Cents == "" {
			return b, nil // the value may be anything
		}
	}
	if err != nil {
		return b, err
	}
	if s.IDHeader == "" {
		b.ID, err = f.text(s.ID)
	}
	for _, x := range []struct {
		name string
		into *string
	}{{s.Account, &b.Account}, {s.Region, &b.Region}} {
		if err == nil && x.name != "" {
			*x.into, err = f.text(x.name)
		}
	}
	if err == nil && s.Cents != "" {
		b.Cents, err = f.number(s.Cents)
	}
	return b, err
}

// fields is a JSON object, undecoded below the first level.
type fields map[string]json.RawMessage

func fieldsOf(value []byte) (fields, error) {
	var f fields
	if err := json.Unmarshal(value, &f); err != nil {
		return nil, fmt.Errorf("%w: %s is no JSON object", errField, show(value))
	}
	return f, nil
}

func (f fields) text(name string) (string, error) {
	raw, ok := f[name]
	if !ok {
		return "", fmt.Errorf("%w %q is missing", errField, name)
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		s = string(raw) // a number is an ID, too
	}
	return s, nil
}

// number reads a whole number, also one that is written as a string.
func (f fields) number(name string) (int64, error) {
	s, err := f.text(name)
	if err != nil {
		return 0, err
	}
	var n int64
	if err := json.Unmarshal([]byte(strings.TrimSuffix(s, ".00")), &n); err != nil {
		return 0, fmt.Errorf("%w %q: %q is no whole number", errField, name, s)
	}
	return n, nil
}

// id stands for an ID in memory.
type id [16]byte

func idOf(s string) id {
	h := sha256.Sum256([]byte(s))
	return id(h[:16])
}

// scoped is an ID in an input partition: what a dedup of scope "partition" tells apart.
type scoped struct {
	id
	partition int32
}

// accepted is the first record of an ID in a partition.
type accepted struct {
	id
	account, region int32
	cents           int64
	partition       int32
	place           int32 // among the accepted ones of its partition, from 1
	maybe           bool  // too late to be judged: it may have passed or not
	totals, regions bool  // seen in the totals, in the regions
}

// Oracle computes, from the input alone, what must come out. It keeps about 100 bytes for each ID.
type Oracle struct {
	// Scheme says how to read the records.
	Scheme Scheme
	// Window is how long an ID is remembered, 0 for ever. A record that is older than the stream time of
	// its partition minus the window may be dropped as too late.
	Window time.Duration
	// Stream is the scope: copies of an ID in two partitions are copies, too.
	Stream bool

	records  int64
	late     int64
	first    map[scoped]int32 // index into list
	byID     map[id][]int32
	list     []accepted
	names    []string // of accounts and regions
	numbers  map[string]int32
	accounts map[int32][]int32 // accepted bills of an account in the order of their partition
	spread   map[int32]bool    // accounts with bills in several partitions
	places   map[int32]int32
	time     map[int32]time.Time
}

// Add takes the next record of the input. Each partition must come in the order of its offsets.
func (o *Oracle) Add(r rawlog.Record) error {
	if o.first == nil {
		o.first, o.byID, o.numbers = map[scoped]int32{}, map[id][]int32{}, map[string]int32{}
		o.accounts, o.spread, o.places, o.time = map[int32][]int32{}, map[int32]bool{}, map[int32]int32{}, map[int32]time.Time{}
	}
	b, err := o.Scheme.Bill(&r)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Where(), err)
	}
	o.records++
	p := r.Number
	now := o.time[p]
	if r.Time.After(now) {
		now = r.Time
		o.time[p] = now
	}
	late := o.Window > 0 && r.Time.Before(now.Add(-o.Window))
	k := scoped{idOf(b.ID), p}
	if o.Stream {
		k.partition = 0
	}
	if _, again := o.first[k]; again {
		return nil
	}
	if late {
		o.late++
	}
	i := int32(len(o.list))
	o.first[k] = i
	o.byID[k.id] = append(o.byID[k.id], i)
	o.places[p]++
	x := accepted{id: k.id, account: o.number(b.Account), region: o.number(b.Region), cents: b.Cents, partition: p, place: o.places[p], maybe: late}
	o.list = append(o.list, x)
	if of := o.accounts[x.account]; len(of) > 0 && o.list[of[0]].partition != p {
		o.spread[x.account] = true
	}
	o.accounts[x.account] = append(o.accounts[x.account], i)
	return nil
}

func (o *Oracle) number(name string) int32 {
	n, ok := o.numbers[name]
	if !ok {
		n = int32(len(o.names))
		o.numbers[name] = n
		o.names = append(o.names, name)
	}
	return n
}

// Records is how many records were added, Distinct how many of them must come out once, Late how many
// may be too late.
func (o *Oracle) Records() int64 { return o.records }

// Distinct is the number of accepted records, the late ones included.
func (o *Oracle) Distinct() int64 { return int64(len(o.list)) }

// Late is how many of the distinct ones may have been dropped as too late.
func (o *Oracle) Late() int64 { return o.late }

// Echo checks the output of a dedup: C1 and C3.
type Echo struct {
	o      *Oracle
	scheme Scheme
	seen   []int32             // of each accepted record, how often
	last   map[[2]int32]int32  // place of the last record of an input partition in an output partition
	lastAt map[[2]int32]string // and where it stood
	once   *Result
	order  *Result
}

// NewEcho makes a checker. The scheme says where the output's records hold their ID.
func (o *Oracle) NewEcho(s Scheme) *Echo {
	return &Echo{
		o: o, scheme: s, seen: make([]int32, len(o.list)), last: map[[2]int32]int32{}, lastAt: map[[2]int32]string{},
		once: NewResult("C1", "every accepted ID comes out once"), order: NewResult("C3", "the order of a partition is kept"),
	}
}

// Add takes the next record of the output; each partition in the order of its offsets.
func (e *Echo) Add(r rawlog.Record) error {
	b, err := e.scheme.Bill(&r)
	if err != nil {
		e.once.Differ(r.Where(), "%v", err)
		return nil
	}
	e.once.Compared++
	of := e.o.byID[idOf(b.ID)]
	if len(of) == 0 {
		e.once.Differ(r.Where(), "ID %q is not in the input", b.ID)
		return nil
	}
	// Which of its copies in several partitions this one is cannot be told: the next one that has not come.
	i := of[0]
	for _, j := range of {
		if e.seen[j] == 0 {
			i = j
			break
		}
	}
	if e.seen[i]++; e.seen[i] > 1 {
		e.once.Differ(r.Where(), "ID %q came out again", b.ID)
		return nil
	}
	if len(of) > 1 {
		return nil
	}
	x := &e.o.list[i]
	way := [2]int32{x.partition, r.Number}
	e.order.Compared++
	if x.place < e.last[way] {
		e.order.Differ(r.Where(), "ID %q of input partition %d stands behind a later one of it, at %s", b.ID, x.partition, e.lastAt[way])
		return nil
	}
	e.last[way], e.lastAt[way] = x.place, r.Where()
	return nil
}

// Results ends the check. Names of missing IDs are known by where they were first sent.
func (e *Echo) Results() []*Result {
	for i, n := range e.seen {
		if x := &e.o.list[i]; n == 0 && !x.maybe {
			e.once.Differ(fmt.Sprintf("input partition %d, accepted record %d", x.partition, x.place), "an ID of account %q never came out", e.o.names[x.account])
		}
	}
	return []*Result{e.once, e.order}
}

// CountedDuplicates is C10: what was counted as dropped against what was sent again.
func (o *Oracle) CountedDuplicates(t *Tasks, operator string) *Result {
	r := NewResult("C10", "counted duplicates = sent duplicates")
	of := ":" + operator
	dropped := t.Counter("dedup/dup_committed"+of) + t.Counter("dedup/dup_open"+of)
	late, checked := t.Counter("dedup/too_late"+of), t.Counter("dedup/checked"+of)
	r.Compared = 2
	if int64(checked) != o.records {
		r.Differ("operator "+operator, "%d IDs were checked, %d records were sent", checked, o.records)
	}
	// A late copy of a known ID may count as either.
	if sent := o.records - o.Distinct(); int64(dropped+late) < sent || int64(dropped+late) > sent+o.late {
		r.Differ("operator "+operator, "%d duplicates and %d too late were counted, sent were %d duplicates and %d late ones", dropped, late, sent, o.late)
	}
	return r
}
