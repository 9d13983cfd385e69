package worker

import "syscall"

// childAttributes put the worker into a process group of its own. It ends with its standard input.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
