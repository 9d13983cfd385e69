// Package tracing makes spans of OpenTelemetry of what a processor tells of its transactions (processor.WithTraces), and sends them by
// OTLP over HTTP.
//
// Each transaction with records is a span, a root of its own. Each record that came with a sampled traceparent is a span in its own trace, below the
// span that wrote it, from its turn until the end of its transaction; the two are linked. Its ID is the one that the outputs
// name: the processor has made it, see processor.WithTraces. Records of a transaction that was not committed have no span: they run again.
//
// Spans are handed over when a transaction has ended and wait in a bounded queue; what does not fit is dropped by the SDK. Nothing
// waits for the receiver, and a receiver that is gone costs a log line.
//
// The environment variables are OpenTelemetry's own. Nothing is made, and no record looked at, unless an endpoint is given.
package tracing
