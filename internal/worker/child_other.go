//go:build unix && !linux

package worker

import "syscall"

// childAttributes put the worker into a process group of its own, so that Ctrl-C reaches the parent
// alone, which then stops the worker in order. It ends with its standard input.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
