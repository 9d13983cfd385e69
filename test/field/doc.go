// Package field holds faults that public trackers know of other systems, where no other package is the
// place to test them, and the test that holds test/FIELD.md, the list of all of them, to the code.
package field
