//go:build unix

package ingress

import (
	"os"
	"syscall"
)

// inode is what a file keeps when it is renamed; links is how many names it has. ok is false if the system does not say.
func inode(info os.FileInfo) (dev, ino uint64, links int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, 1, false
	}
	return uint64(st.Dev), uint64(st.Ino), int(st.Nlink), true
}
