// Package tlsfile makes the TLS configuration of a client of the PEM files that a user names. Every client of the project uses it, so
// that the same options mean the same everywhere.
//
//	conf, err := (&tlsfile.Files{CA: "ca.pem"}).Config("kafka-1")
//
// The files are read with each call. A client that calls it for each connection uses renewed certificates without a restart.
package tlsfile
