// Package metric is what streamd tells Prometheus: the catalogue of its metrics, and the [Set] of one
// pipeline that exposes them.
//
// Two kinds of numbers meet here:
//
//   - What was done to records (operators, topics, dedup) is counted by the tasks and is part of their
//     committed state. A Set only reads it, once per scrape, from a [Snapshot]; so a transaction that is
//     aborted leaves no trace, and a restart does not begin at zero (INV-9).
//   - What the process does (transactions, phases of a commit, restores, rebalances) is counted by the
//     Set itself and begins at zero with the process.
//
// A persistent counter belongs to its task and moves with it: the sum over all processes of an
// application is exact, while the value of one process goes down when it gives a task away. Ask for
// sum by (pipeline) over all instances, and take rates of what does not move.
//
// Names, labels and buckets are part of the product: dashboards and alerts hang on them. Every
// metric is in [Catalogue]; docs/metrics.md is generated from it.
//
// What it does not do: it never touches the default registry, and it starts nothing.
package metric
