package daemon

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/txlog"
)

// The exit codes of streamd: those of sysexits.h where there is one, so that a supervisor can tell
// whether to start it again (systemd: RestartPreventExitStatus=78).
const (
	ExitOK          = 0
	ExitFailed      = 1   // a pipeline stopped on an error, a check failed: look
	ExitUsage       = 2   // fix the command
	ExitTemporary   = 75  // something is not reachable, or in use: starting again helps
	ExitNotAllowed  = 77  // credentials or rights
	ExitConfig      = 78  // the file, a topic or the state directory does not fit: starting again cannot help
	ExitInterrupted = 130 // the second Ctrl-C
)

// UsageError is a command that was called wrongly.
type UsageError struct{ Err error }

// Error returns the cause's text.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// The errors of this package that have an exit code of their own.
var (
	// ErrConfig: what the user configured does not fit.
	ErrConfig = errors.New("configuration")
	// ErrNotReachable: no streamd answers.
	ErrNotReachable = errors.New("not reachable")
	// ErrNoAnswer: a process took the connection and says nothing.
	ErrNoAnswer = errors.New("no answer")
	// ErrLevel: a pipeline guarantees less than was required. What it guarantees has been printed.
	ErrLevel = errors.New("the guarantee is less than required")
	// ErrShutdownTimeout: the last commit did not end in time. What was not committed is processed again.
	ErrShutdownTimeout = errors.New("the last commit did not end within the shutdown timeout; what was not committed is processed again by the next start")
)

// ExitCode tells what an error means to whoever started the process.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	var usage *UsageError
	var file *pipeline.Error
	if errors.As(err, &usage) {
		return ExitUsage
	}
	if errors.As(err, &file) {
		return ExitConfig
	}
	var setup *sink.SetupError
	if errors.As(err, &setup) {
		if setup.Rights {
			return ExitNotAllowed
		}
		return ExitConfig
	}
	var source *ingress.SetupError
	if errors.As(err, &source) {
		if source.Rights {
			return ExitNotAllowed
		}
		return ExitConfig
	}
	// The order matters where an error has several kinds: wrong credentials also make a broker
	// unreachable, and only the first of the two says what to do.
	for _, c := range []struct {
		code  int
		kinds []error
	}{
		{ExitNotAllowed, []error{broker.ErrAuthentication, broker.ErrAuthorization, ErrDenied}},
		{ExitTemporary, []error{ErrNotReachable, ErrNoAnswer}}, // also of a socket that does not exist
		{ExitConfig, []error{
			ErrConfig, broker.ErrConfig, broker.ErrUnsupported, processor.ErrTopics, processor.ErrGlobalTable, processor.ErrOffsets, processor.ErrOrphaned,
			txlog.ErrOtherApp, txlog.ErrOtherCluster, txlog.ErrNewerFormat, txlog.ErrKey, pipeline.ErrUnset, fs.ErrNotExist,
		}},
		{ExitTemporary, []error{broker.ErrUnreachable, processor.ErrTarget, ErrDatabase, txlog.ErrLocked, txlog.ErrDiskFull, ErrInUse}},
	} {
		for _, kind := range c.kinds {
			if errors.Is(err, kind) {
				return c.code
			}
		}
	}
	return ExitFailed
}
