// Package sinks puts every target of package sink through the conformance suite with its real server. Run
// it with `make sinks-test`, which installs what is missing. The servers are in dbenv.
package sinks
