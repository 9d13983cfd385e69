package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/serde/registry"
)

// schemaPause is how long a start waits before it asks a schema registry again. The client itself asks less often the longer
// nobody answers.
const schemaPause = 250 * time.Millisecond

// awaitSchemas finds the schemas that a pipeline writes by, before its first record. A registry that does not answer is asked again for
// as long as a broker would be.
func awaitSchemas(ctx context.Context, p *pipeline.Pipeline, patience time.Duration, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := time.NewTicker(schemaPause)
	defer pause.Stop()
	for told := false; ; {
		err := p.ResolveSchemas(ctx)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, serde.ErrUnavailable):
			return fmt.Errorf("%w: %w", ErrConfig, err)
		case errors.Is(err, registry.ErrDenied):
			return fmt.Errorf("%w: %w", ErrDenied, err)
		case !told:
			told = true
			log.Warn("waiting for the schema registry", "pipeline", p.Name, "err", err)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("%w within %v: %w", ErrNotReachable, patience, err)
		}
	}
}
