// Package rawlog reads what stands in Kafka without any code of the engine: another client library,
// and decoders of its own, written from docs/format.md. A checker that shared the engine's decoders
// would share its mistakes, and see nothing.
//
//	c, err := rawlog.Open(rawlog.Config{Brokers: brokers})
//	bounds, err := c.Bounds(ctx, "bills.raw")
//	err = c.Read(ctx, rawlog.Spans(bounds), func(r rawlog.Record) error { ... })
//	offsets, err := c.Committed(ctx, "bills-dedup")
//
// Reads are bounded and read_committed. They go partition by partition in the order of the offsets; the
// partitions of one call take turns. Markers and aborted records count for the position and are not
// handed out, so that a read ends where it should, also behind a compacted or aborted end.
//
// # Invariants
//
//   - It never writes, joins no group and commits nothing.
//   - What it cannot decode is an error, never skipped.
//
// # What it does not do
//
// It does not judge: package proof does. It imports nothing of this module but the kinds of errors.
package rawlog
