package tracing

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamd/streamd/processor"
)

// maxLinks is how many records' traces a transaction is linked with: the SDK's own default.
const maxLinks = 128

// Tracer makes spans of one pipeline's transactions. Safe for concurrent use.
type Tracer struct {
	pipeline string
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New makes a tracer; nil if tracing is off. It connects to nobody yet. ErrConfig: see there.
func New(ctx context.Context, c Config) (*Tracer, error) {
	on, err := c.enabled()
	if err != nil || !on {
		return nil, err
	}
	var to []otlptracehttp.Option
	if c.Endpoint != "" {
		to = append(to, otlptracehttp.WithEndpointURL(tracesURL(c.Endpoint)))
	}
	exporter, err := otlptracehttp.New(ctx, to...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	// The variables come last: what they say replaces what is ours.
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "streamd"), attribute.String("service.version", c.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	opts := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(about), sdk.WithIDGenerator(spanIDs{})}
	if c.Sample > 0 {
		opts = append(opts, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(c.Sample))))
	}
	p := sdk.NewTracerProvider(opts...)
	return &Tracer{pipeline: c.Pipeline, provider: p, tracer: p.Tracer("github.com/streamd/streamd")}, nil
}

// LogErrors makes what goes wrong in sending spans a warning in the log. OpenTelemetry has one such place for the whole process.
func LogErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("spans were not sent; the pipelines go on", "err", err)
	}))
}

// Close sends what is left, within the time that ctx gives.
func (t *Tracer) Close(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: send the last spans: %w", err)
	}
	return nil
}

// Transaction makes the spans of one transaction. It is what processor.WithTraces wants.
func (t *Tracer) Transaction(x *processor.TransactionTrace) {
	links := make([]trace.Link, 0, min(len(x.Traced), maxLinks))
	seen := map[trace.TraceID]bool{}
	for i := range x.Traced {
		r := &x.Traced[i]
		if len(links) == maxLinks {
			break
		}
		if !seen[r.TraceID] {
			seen[r.TraceID] = true
			links = append(links, trace.Link{SpanContext: spanContext(r, r.Span)})
		}
	}
	_, span := t.tracer.Start(context.Background(), "transaction "+t.pipeline, trace.WithNewRoot(), trace.WithTimestamp(x.Begin), trace.WithLinks(links...),
		trace.WithAttributes(attribute.String("streamd.pipeline", t.pipeline), attribute.Int("streamd.worker", x.Worker),
			attribute.Int("messaging.batch.message_count", x.Records), attribute.Int("streamd.traced_records", len(x.Traced)+x.Untold)))
	if x.Aborted != "" {
		span.SetStatus(codes.Error, "aborted: "+x.Aborted)
	} else {
		for i := range x.Traced {
			t.record(&x.Traced[i], x.End, span.SpanContext())
		}
	}
	span.End(trace.WithTimestamp(x.End))
}

// record makes the span of a record. Names and attributes are those of OpenTelemetry's conventions for messaging, which are not
// stable yet.
func (t *Tracer) record(r *processor.RecordTrace, end time.Time, transaction trace.SpanContext) {
	ctx := trace.ContextWithRemoteSpanContext(context.WithValue(context.Background(), spanIDKey{}, trace.SpanID(r.Span)), parent(r))
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", "kafka"), attribute.String("messaging.operation.type", "process"), attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.destination.name", r.Position.Topic), attribute.String("messaging.destination.partition.id", strconv.Itoa(int(r.Position.Partition))),
		attribute.Int64("messaging.kafka.offset", int64(r.Position.Offset)), attribute.String("messaging.consumer.group.name", t.pipeline),
		attribute.String("streamd.pipeline", t.pipeline), attribute.String("streamd.task", r.Task), attribute.Int("streamd.outputs", r.Outputs),
	}
	if r.ID != "" {
		attributes = append(attributes, attribute.String("messaging.message.id", r.ID))
	}
	_, span := t.tracer.Start(ctx, "process "+r.Position.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(r.Begin),
		trace.WithAttributes(attributes...), trace.WithLinks(trace.Link{SpanContext: transaction}))
	if r.Err != "" {
		span.SetStatus(codes.Error, r.Err)
	}
	span.End(trace.WithTimestamp(end))
}

// parent is the span that wrote the record.
func parent(r *processor.RecordTrace) trace.SpanContext {
	state, err := trace.ParseTraceState(r.State)
	if err != nil {
		state = trace.TraceState{} // as the recommendation says: the rest of the context counts
	}
	return spanContext(r, r.Parent).WithTraceState(state)
}

func spanContext(r *processor.RecordTrace, span [8]byte) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: r.TraceID, SpanID: span, TraceFlags: trace.TraceFlags(r.Flags), Remote: true})
}

// spanIDKey is under what a context holds the ID that the next span has.
type spanIDKey struct{}

// spanIDs gives a record's span the ID that outputs name already, and others one by chance.
type spanIDs struct{}

// NewIDs implements the SDK's IDGenerator.
func (g spanIDs) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements the SDK's IDGenerator.
func (spanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) (span trace.SpanID) {
	if id, ok := ctx.Value(spanIDKey{}).(trace.SpanID); ok {
		return id
	}
	_, _ = rand.Read(span[:])
	return span
}
