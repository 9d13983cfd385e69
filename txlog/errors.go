package txlog

import "errors"

// What [Open] refuses with. In each case nothing in the directory was changed.
var (
	// ErrLocked: another live process uses the directory; the text names it. Wait, or stop it.
	ErrLocked = errors.New("state directory is in use")
	// ErrOtherApp: the directory belongs to another application ID. Choose another directory.
	ErrOtherApp = errors.New("state directory belongs to another application")
	// ErrOtherCluster: the directory was filled from another Kafka cluster.
	ErrOtherCluster = errors.New("state directory belongs to another cluster")
	// ErrNewerFormat: a newer streamd wrote the directory. Use that one, or another directory.
	ErrNewerFormat = errors.New("state directory has a newer format")
	// ErrKey: the store is encrypted under another key, or it is encrypted and no key is given, or the
	// other way round. Give the key that it was made with, or remove the directory: everything is restored.
	ErrKey = errors.New("the key does not open the state directory")
)

// What the methods of a log and its tasks answer.
var (
	// ErrDiskFull: less than the floor is free. Nothing was written; the same call can be made
	// again when space is back. (Badger dies by SIGBUS on a full disk, so it must not come to that.)
	ErrDiskFull = errors.New("state disk is full")
	// ErrTooLarge: a key, value, name or position is larger than the format allows. Whoever makes the
	// value must check it before the Kafka transaction: [MaxKeyBytes], [MaxValueBytes].
	ErrTooLarge = errors.New("too large for the store")
	// ErrSealed: a block came for a generation that is sealed or being sealed. It is a mistake of
	// the caller: a generation that is no longer open gets no IDs.
	ErrSealed = errors.New("generation is sealed")
	// ErrUnknownGeneration: the operator has no such generation, or it is not sealed.
	ErrUnknownGeneration = errors.New("no such generation")
	// ErrDamaged: what was read cannot be right. Close the log and open it again: the next open
	// finds the damage and sets the store aside. For a filter: build it again from the runs.
	ErrDamaged = errors.New("store is damaged")
	// ErrFailed: Badger could not finish an earlier write, so the store takes no more. Close the log
	// and open it again.
	ErrFailed = errors.New("store failed")
	// ErrClosed: the log was closed, or the task forgotten.
	ErrClosed = errors.New("closed")
)
