package proof

import (
	"context"
	"fmt"
	"time"
)

// pause waits a moment before a question is asked again.
func pause(ctx context.Context) error {
	t := time.NewTimer(50 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("proof: %w", ctx.Err())
	}
}
