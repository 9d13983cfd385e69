// Package invariant is the only place from which streamd panics by itself. A broken invariant
// means that going on can only corrupt data, so the process stops; the next start repairs from
// the changelog. The numbers (INV-1 to INV-9) are listed in ARCHITECTURE.md.
package invariant
