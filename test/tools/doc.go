// Package tools is a module of its own for programs that packages and tests need and that whoever imports streamd should not
// get: nfpm, and in the folders below it readers of a Dockerfile and of a compose file with the libraries of those who made
// the formats. `make go-tools` builds them into build/tools.
package tools
