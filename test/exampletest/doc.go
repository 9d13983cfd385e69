// Package exampletest runs the topology of an example on a broker in memory, as its program would: for the tests of
// the examples. It is no test kit for users.
package exampletest
