package tracing

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/streamd/streamd/pipeline"
)

// ErrConfig: the settings ask for what is not there.
var ErrConfig = errors.New("tracing")

// Config says where the spans of a pipeline go.
type Config struct {
	// Pipeline is its name; its spans carry it.
	Pipeline string
	// Version is the program's.
	Version string
	// Endpoint is the address of a receiver as the pipeline file has it; empty: OTEL_EXPORTER_OTLP_ENDPOINT, or no tracing.
	Endpoint string
	// Sample is which part of the transactions become spans, above 0 to 1; 0: what OTEL_TRACES_SAMPLER says, all by default. Spans of records
	// go by their own trace.
	Sample float64
	// LookupEnv is os.LookupEnv.
	LookupEnv func(string) (string, bool)
}

// enabled says whether there is anywhere to send to.
func (c Config) enabled() (bool, error) {
	get := func(name string) string {
		v, _ := c.LookupEnv(name)
		return strings.TrimSpace(v)
	}
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch v := get("OTEL_TRACES_EXPORTER"); v {
	case "", "otlp":
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("%w: OTEL_TRACES_EXPORTER is %q; there is otlp, and none", ErrConfig, v)
	}
	if c.Endpoint == "" && get("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if v := get(name); v != "" && v != "http/protobuf" {
			return false, fmt.Errorf("%w: %s is %q; there is http/protobuf only (port 4318)", ErrConfig, name, v)
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if v := get(name); v != "" && c.Endpoint == "" {
			if err := pipeline.CheckEndpoint(v); err != nil {
				return false, fmt.Errorf("%w: %s: %w", ErrConfig, name, err)
			}
		}
	}
	return true, nil
}

// tracesURL is where spans are sent: an address without a path is a base, as OTEL_EXPORTER_OTLP_ENDPOINT is.
func tracesURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Path != "" && u.Path != "/" {
		return endpoint
	}
	return u.JoinPath("v1", "traces").String()
}
