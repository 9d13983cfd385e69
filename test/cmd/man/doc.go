// Man writes the man pages and the completions of shells for packages, from what a streamd binary says of itself:
//
//	go run ./test/cmd/man BINARY FOLDER
//
// It makes FOLDER/man/streamd.1, a page for each command, and FOLDER/completions/streamd.{bash,zsh,fish}. It runs nothing but
// BINARY's help, so that the pages cannot say anything else than the help does.
package main
