// Package ordered has a map of bytes whose keys can be walked in their order: what a model of a disk needs, where
// the real one is a sorted log. It is for tests, simulations and the test kit; the engine's own store is txlog.
//
//	var m ordered.Map
//	m.Put("b", value)
//	m.Range([]byte("a"), nil, func(key string, value []byte) bool { return true })
//
// It does not copy: keys and values stay the caller's, who does not change them. It is not safe for concurrent use.
package ordered
