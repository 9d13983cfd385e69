// Package systemd runs the unit of deploy/systemd under a systemd of its own: a process 1 in namespaces, on a copy-on-write
// view of this machine's files, so that nothing of the machine is changed. It needs root, Linux, and systemd, unshare and nsenter
// (Debian: systemd, util-linux). Run it with `make systemd-test`; it is no part of `make test`, since many containers
// and machines do not allow such namespaces.
package systemd
