package kafka

import "syscall"

// tcpUserTimeout is TCP_USER_TIMEOUT of <linux/tcp.h>, which package syscall lacks.
const tcpUserTimeout = 0x12

// controlSocket makes a connection fail when the other side has acknowledged nothing for a while. By
// default that takes minutes, in which a heartbeat to a machine that lost power would hang.
func controlSocket(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(deadPeer.Milliseconds()))
	}); cerr != nil {
		return cerr
	}
	return err
}
