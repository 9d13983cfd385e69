// Package packages makes the deb and the rpm of deploy/package as `make packages` does, and installs, upgrades, removes and
// purges them with dpkg and rpm on a copy-on-write view of this machine's files, so that nothing of the machine is changed.
// It needs root, Linux, dpkg and rpm (Debian: rpm). Run it with `make packages-test`.
package packages
