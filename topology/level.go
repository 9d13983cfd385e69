package topology

import "slices"

// Level says what may happen to the effects of one record, from its source to where they are stored.
type Level string

// The levels. They are not in one order: of at_least_once and at_most_once neither is the better one.
const (
	ExactlyOnce Level = "exactly_once"  // neither lost nor repeated
	AtLeastOnce Level = "at_least_once" // never lost, may be repeated
	AtMostOnce  Level = "at_most_once"  // never repeated, may be lost
	NoGuarantee Level = "none"          // may be lost, and may be repeated
)

// Levels are all of them.
func Levels() []Level { return []Level{ExactlyOnce, AtLeastOnce, AtMostOnce, NoGuarantee} }

// Meets says whether a level gives all that another one promises.
func (l Level) Meets(want Level) bool { return l.risks()&^want.risks() == 0 }

// risks is what may happen to an effect. Levels are sets of risks, so that the level of a whole is the union of its
// parts': nothing makes up for a loss, and only a dedup operator makes up for a repeat.
type risks uint8

const (
	mayLose risks = 1 << iota
	mayRepeat
)

func (l Level) risks() risks {
	switch l {
	case ExactlyOnce:
		return 0
	case AtLeastOnce:
		return mayRepeat
	case AtMostOnce:
		return mayLose
	}
	return mayLose | mayRepeat
}

func (r risks) level() Level {
	return [...]Level{0: ExactlyOnce, mayLose: AtMostOnce, mayRepeat: AtLeastOnce, mayLose | mayRepeat: NoGuarantee}[r]
}

// sourceClass is what the analysis knows of an input: of the whole way, from the sender to the topic that is read.
type sourceClass string

const (
	sourceKafka       sourceClass = "kafka"       // the offset is part of the transaction
	sourceClaimed     sourceClass = "claimed"     // kafka, whose offset is committed before what follows from the records
	sourceRepartition sourceClass = "repartition" // kafka, written by the same application in transactions
	sourceFile        sourceClass = "file"        // can be read again from a position that is committed
	sourceTable       sourceClass = "table"       // as a file; under the bounds that its reader names
	sourceHTTP        sourceClass = "http"        // the client sends again until it has an answer
	sourceLines       sourceClass = "lines"       // a socket whose sender waits for the acknowledgement, and sends again
	sourceSocket      sourceClass = "socket"      // what is not durable at a crash is gone
)

// idClass says what an ID survives.
type idClass string

const (
	idProducer idClass = "producer" // given by whoever made the record: the same when it is sent again
	idPosition idClass = "position" // where it stands: the same when it is read again, not when it is sent again
	idNone     idClass = "none"     // another one each time, or none
)

// operatorClass is what the analysis knows of an operator, in MillWheel's words.
type operatorClass string

const (
	operatorPure   operatorClass = "pure"   // its outputs follow from the record alone
	operatorStrong operatorClass = "strong" // what it keeps and what it hands on are committed together
	operatorDedup  operatorClass = "dedup"  // strong, and drops repeats
	operatorWeak   operatorClass = "weak"   // hands on before what it did is durable
	// operatorLookup hands on what follows from the record and from a table outside of the cut: when it is done again before it
	// was committed, something else may follow. What is committed is neither lost nor repeated by that.
	operatorLookup operatorClass = "lookup"
)

// sinkClass is what the analysis knows of an output.
type sinkClass string

const (
	sinkTopic      sinkClass = "topic"      // a Kafka topic, in the transaction
	sinkAhead      sinkClass = "ahead"      // a Kafka topic, written before the transaction
	sinkLedger     sinkClass = "ledger"     // rows and progress in one transaction of the database
	sinkIdempotent sinkClass = "idempotent" // writes again what it may have written, under the same ID
	sinkWAL        sinkClass = "wal"        // writes what a log of its own says, after the commit
	sinkTwoPhase   sinkClass = "two_phase"  // prepares its rows, commits them when the group's offset names them
	sinkPlain      sinkClass = "plain"      // writes and hopes
	sinkCall       sinkClass = "call"       // an Effect: what calledBy says
)

// cause is a part that adds a risk.
type cause struct {
	risk   risks
	part   string // the operator's name
	why    string
	remedy string
}

// flow is what may have happened to the records on an edge.
type flow struct {
	risk   risks
	id     idClass
	causes []cause
}

func (f flow) add(c cause) flow {
	f.risk |= c.risk
	f.causes = append(slices.Clone(f.causes), c)
	return f
}

// join is the flow of records that come by two ways.
func (f flow) join(g flow) flow {
	f.risk |= g.risk
	if g.id != f.id { // some have the one, some the other: only the weaker one can be relied on
		f.id = weakerID(f.id, g.id)
	}
	f.causes = slices.Clone(f.causes)
	for _, c := range g.causes {
		if !slices.Contains(f.causes, c) {
			f.causes = append(f.causes, c)
		}
	}
	return f
}

func weakerID(a, b idClass) idClass {
	for _, weak := range []idClass{idNone, idPosition} {
		if a == weak || b == weak {
			return weak
		}
	}
	return idProducer
}

// replayable says whether a source can be read again from a place that was committed.
func (s sourceClass) replayable() bool {
	return s == sourceKafka || s == sourceClaimed || s == sourceRepartition || s == sourceFile || s == sourceTable
}

// from is the flow out of a source.
func (s sourceClass) from(name string, id idClass) flow {
	f := flow{id: id}
	switch {
	case s == sourceClaimed:
		return f.add(cause{mayLose, name, "its positions are committed before what follows from its records: what is under way at a crash is not read again", "use the guarantee exactly_once"})
	case s.replayable():
		return f // position and effects are committed together
	case s == sourceHTTP, s == sourceLines:
		if f.id == idPosition {
			f.id = idNone // what is sent again gets another place
		}
		if s == sourceLines {
			return f.add(cause{mayRepeat, name, "its sender sends lines again whose acknowledgement is lost", "let each line have an ID of its own, and put a Dedup behind it"})
		}
		return f.add(cause{mayRepeat, name, "its client sends a request again when the answer is lost", "let the client give each request an ID, and put a Dedup behind it"})
	default:
		f.id = idNone
		return f.add(cause{mayLose, name, "it cannot be read again, and nobody waits for an answer: what is not durable at a crash is gone", "put a Kafka topic in front of it"})
	}
}

// through is the flow behind an operator. id is what the IDs survive by which a dedup operator goes.
func (o operatorClass) through(name string, f flow, id idClass) flow {
	switch o {
	case operatorWeak:
		return f.add(cause{mayRepeat, name, "it hands records on before what it did is durable: after a crash it hands them on again", "put a Dedup behind it"})
	case operatorDedup:
		if f.risk&mayRepeat == 0 || id != idProducer {
			return f // nothing to drop, or no ID by which a repeat could be told
		}
		f.risk &^= mayRepeat
		f.causes = slices.DeleteFunc(slices.Clone(f.causes), func(c cause) bool { return c.risk == mayRepeat })
	}
	return f
}

// into is what has happened when a record's effect stands in a sink.
func (s sinkClass) into(name string, f flow) flow {
	switch s {
	case sinkTopic, sinkLedger, sinkTwoPhase:
		return f
	case sinkAhead:
		return f.add(cause{mayRepeat, name, "its records are written before the transaction that remembers them: after a crash in between they come again", "use the guarantee exactly_once, or drop the repeats by their IDs behind it: a Dedup does"})
	case sinkIdempotent:
		if f.id != idNone {
			return f // what is written again is the same row
		}
		return f.add(cause{mayRepeat, name, "it tells a repeat by the record's ID, and the records have none that stays", "give the records IDs at their source"})
	case sinkWAL:
		return f.add(cause{mayRepeat, name, "it may end between a write and the note of it: then it writes again", "use a sink that keeps its progress in the same transaction"})
	default:
		return f.add(cause{mayRepeat, name, "a write whose answer is lost is made again", "use a sink that keeps its progress in the same transaction, or that is idempotent"})
	}
}

// calledBy is what the other system of an Effect gets, beside what has happened to the record before.
func (e EffectSpec) calledBy(f flow) flow {
	if !e.Idempotent && (e.Uncertain == Retry || e.Retries != 0) {
		f = f.add(cause{mayRepeat, e.Name, "its calls are made at least once: again after a crash, a rebalance or an attempt that failed, under the same idempotency key", "let the other system do a call once for each IdempotencyKey, and say so with Idempotent"})
	}
	if e.Uncertain == Fail {
		f = f.add(cause{mayLose, e.Name, "a call that may have been made before a crash is not made again: it goes to the error policy, made or not", "leave OnUncertain out, and let the other system do a call once for each IdempotencyKey"})
	}
	return f
}
