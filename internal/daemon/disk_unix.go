//go:build unix

package daemon

import "golang.org/x/sys/unix"

// diskUsage returns the bytes of the file system that holds path: free for this user, and in all.
func diskUsage(path string) (free, size uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), nil
}
