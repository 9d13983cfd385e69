package invariant

import "fmt"

// Check panics with the message unless cond holds. The message starts with the invariant's number.
func Check(cond bool, format string, args ...any) {
	if !cond {
		panic(Violation(fmt.Sprintf(format, args...)))
	}
}

// Violation is the value of such a panic.
type Violation string

// Error makes a recovered violation loggable.
func (v Violation) Error() string { return "invariant broken: " + string(v) }
