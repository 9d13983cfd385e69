package daemon

import "golang.org/x/sys/windows"

// diskUsage returns the bytes of the volume that holds path: free for this user, and in all.
func diskUsage(path string) (free, size uint64, err error) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, 0, err
	}
	err = windows.GetDiskFreeSpaceEx(p, &free, &size, nil)
	return free, size, err
}

// mayWrite is not known here.
func mayWrite(string) error { return nil }

// notADirectory is whether a path leads through a file: not told apart here.
func notADirectory(error) bool { return false }
