// Package serde turns keys and values into the bytes that stand in Kafka and in state stores, and
// back.
//
// A [Serde] is a value without state: one is shared by all tasks, so that it must be safe for
// concurrent use. [String], [Bytes], [Int64], [Float64] and [JSON] are here; any type with the two
// methods is one too.
//
// # Null
//
// Kafka tells "no key" and "no value" (a tombstone) from empty ones, and so does a Serde: Append
// returns nil for null, Decode is asked with nil. A type that cannot express null answers with
// [ErrNull], so that a tombstone is never taken for a zero value by accident. [Optional] gives any
// type a null.
//
// # Bytes
//
// Records are immutable from the fetch on. String and Bytes use that: what they decode shares the
// memory of its input. [Aliases] tells whether a Serde does.
//
// # What it does not do
//
// It knows no schema registry (its package registry does), and does not check that two programs mean the same by the same
// bytes.
package serde
