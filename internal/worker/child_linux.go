package worker

import "syscall"

// childAttributes put the worker into a process group of its own, so that Ctrl-C reaches the parent
// alone, which then stops the worker in order; and let the kernel kill it when the parent dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
