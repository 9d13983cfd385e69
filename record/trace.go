package record

// TraceHeader is the header of W3C Trace Context that names a record's trace and the span that wrote it, as OpenTelemetry writes it.
const TraceHeader = "traceparent"
