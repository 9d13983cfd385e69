// Package namespace runs a test binary again as process 1 of namespaces of its own (Linux, root): with its own mounts and
// processes, if wanted with its own loopback and its own view of the control groups. What such tests mount, start or
// install is gone with them, also when they are killed, and nothing of the machine is changed.
package namespace
