// Package smalldisk gives tests a file system that fills up.
package smalldisk
