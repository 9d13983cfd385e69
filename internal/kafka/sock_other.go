//go:build !linux

package kafka

import "syscall"

// controlSocket leaves the system's defaults.
func controlSocket(_, _ string, _ syscall.RawConn) error { return nil }
