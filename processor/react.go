package processor

import (
	"context"
	"errors"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
)

// reaction is what is done about an error of a commit or of a restore.
type reaction uint8

const (
	// reactReplay: run the transaction again from memory, under a new epoch.
	reactReplay reaction = iota
	// reactRecover: drop the overlays, a new epoch, read the committed state, go on.
	reactRecover
	// reactStop: going on cannot help; the application ends with the error.
	reactStop
)

// react decides by the kind of the error. The kinds are made from Kafka's codes in internal/kafka,
// where a table test covers every code.
func react(err error) reaction {
	var ie initError
	if errors.As(err, &ie) {
		return reactStop
	}
	for _, kind := range []error{
		broker.ErrAuthentication, broker.ErrAuthorization, broker.ErrUnsupported,
		broker.ErrConfig, broker.ErrRecordTooLarge, broker.ErrLeftOpen, context.Canceled,
	} {
		if errors.Is(err, kind) {
			return reactStop
		}
	}
	for _, kind := range []error{broker.ErrIllegalGeneration, broker.ErrUnknownMember, broker.ErrFenced} {
		if errors.Is(err, kind) {
			return reactRecover
		}
	}
	return reactReplay
}

// abortReason names the cause for the metric.
func abortReason(o broker.Outcome, err error) metric.AbortReason {
	switch {
	case errors.Is(err, context.Canceled):
		return metric.AbortShutdown
	case o == broker.Unknown:
		return metric.AbortUnknown
	case errors.Is(err, broker.ErrFenced):
		return metric.AbortFenced
	case errors.Is(err, broker.ErrIllegalGeneration), errors.Is(err, broker.ErrUnknownMember):
		return metric.AbortRebalance
	case errors.Is(err, context.DeadlineExceeded):
		return metric.AbortTimeout
	}
	return metric.AbortProduce
}
