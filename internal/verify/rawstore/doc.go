// Package rawstore reads the local store of a stopped process without any code of the engine: it opens
// the Badger files itself and decodes what docs/format.md says of them.
//
//	s, err := rawstore.Open(dir) // rawlog-style: refuses with ErrInUse while a process uses the directory
//	for _, t := range s.Tasks() {
//		err = t.State("totals", func(key, value []byte) error { ... })
//	}
//	err = s.Close()
//
// # Invariants
//
//   - Nothing in the state directory is written, moved or truncated: its tables are opened read-only
//     through links in a temporary directory, and its write-ahead logs are copied there. What a clean
//     open would have set aside or cut off stays for whoever looks next.
//   - The directory is locked (shared) as long as the store is open, so that no process starts on it.
//
// # What it does not do
//
// It judges nothing, and it keeps nothing in memory but names and positions: content is streamed.
package rawstore
