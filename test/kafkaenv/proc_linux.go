package kafkaenv

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the broker when the test process dies, even by kill -9.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
