// Package record holds the nouns that every other package shares: a record, its
// identity, its position in Kafka. It imports the standard library only.
//
// # Identity
//
// Every record that streamd handles has an [Identity]: the ID that its source gave
// it (the root) and the path that it took through the topology since. A record that
// is only passed on (filter, branch, merge, dedup) keeps its identity. A record that
// an operator makes from another one is its child, and its ID is
//
//	SHA-256(root ID, path)[:16]   path = fold over (operator name, ordinal)
//
// so that a record that is processed twice has the same children, and a downstream
// dedup can drop them. The path is folded with cheap arithmetic at each step and the
// hash is taken once, where an ID is needed: at a dedup operator or at a sink.
//
// # What it does not do
//
// It does not say where an ID comes from (see topology.From), nor how long one is
// remembered (see dedup).
package record
