// Compose reads a compose file as docker compose does, and writes it as JSON in its long form:
//
//	compose FILE
//
// What the specification does not know, and what contradicts itself, is an error.
package main
