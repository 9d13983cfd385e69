// Package pipeline turns a pipeline file into a topology. The file is YAML; its expressions are CEL.
//
//	p, err := pipeline.LoadFile("pipeline.yaml", pipeline.Options{LookupEnv: os.LookupEnv})
//	if err != nil {
//		return err // every mistake of the file at once, each with its position
//	}
//	topo, err := p.Topology()
//
// # Mistakes
//
// Load finds all of them in one go. Each is a [Diagnostic] that prints as
//
//	pipeline.yaml:18:5: warning: what is wrong [rule]
//	   18 |     dedup:
//	      |     ^
//	      = what to do about it
//
// A warning is silenced in place by a comment "# streamd:ignore RULE" on its line or on the line
// above. What belongs to the file format but is not built yet is an error of its own
// ([RuleNotAvailable]), it is never skipped in silence.
//
// # Expressions
//
// They are type-checked when the file is loaded, against the declared types: value.amout is an error
// before the first record is read. Integers overflow with an error, decimals are exact, there is no
// clock, no random number, no environment and no file in an expression, so that a record that is
// processed again gives the same result. What an expression may cost is limited.
//
// # Values
//
// JSON is read without rounding: an integer stays an int64, a number with a point becomes a decimal,
// and what no expression touches is passed on byte by byte. Objects that are written have their
// fields in the order of the file, computed maps in the order of their keys: the same record always
// gives the same bytes. A decimal is written as a JSON string ("10.10"), since most readers of JSON
// round numbers; a number of an undeclared type stays a number.
//
// # IDs and keys
//
// Both are texts: a string as it stands, an integer or a decimal without zeros at its end (1, 1.0 and "1" are
// one ID), a timestamp in RFC 3339. A list of several is an ID whose parts are kept apart, or a key that is
// written as JSON. A record whose ID cannot be computed, because a field is missing, null or of another
// type, has no ID: on_missing_id says what becomes of it, and it is never equal to another one. A key
// whose type was not declared is a string behind the topic that it goes through.
//
// partition, offset and record_position() need the position of a record, so that a source without an id of
// its own takes the position as the record's identity where one of them is used.
//
// # Aggregates
//
// sum is exact for int (with a check of the overflow) and decimal. avg is a decimal, rounded half to even at 10
// digits after the point. min and max take numbers, strings, bytes and timestamps; first and last go by the order of
// arrival in the task. count: CONDITION counts the records for which it holds. count_distinct is exact up to 1000
// values for one key; one more is an error of the record. A missing or null value is an error, not a zero. The state
// knows the fields it was written by: with other fields under the same name it is refused.
//
// # What it does not do
//
// It does not read the network, does not start anything and knows no flag of the daemon: one file
// loads the same in a service, in a test and in streamd.
package pipeline
