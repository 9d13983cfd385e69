// Package redis is the Redis target of a sink: hashes, or the entries of a stream, that are written exactly
// once. A script compares the fence, moves the offset and writes the rows; the server runs it as a whole, and
// its append-only file holds it as a whole.
//
// Offset and rows are in one data set, so that a fail-over that loses the last writes loses both: the
// owner finds the older offset and writes them again. What Redis was not told to keep (no append-only file)
// is lost with the process, offset and all, and written again from the topic.
package redis
