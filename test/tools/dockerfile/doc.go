// Dockerfile reads a Dockerfile with the parser of BuildKit, and writes as JSON its stages, variables replaced, and the files
// of the working directory that a builder gets:
//
//	dockerfile FILE [ARG=VALUE]...
//
// It knows what streamd's own file uses; another instruction is an error, so that nothing in the file is passed over.
package main
