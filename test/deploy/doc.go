// Package deploy checks what stands in deploy/: every file is read, and what it names (flags, variables, paths, ports, files)
// is compared with what is there. It starts nothing.
package deploy
