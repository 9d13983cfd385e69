// Package window is the arithmetic of windows on event time: which windows a record belongs to, what a
// session becomes when a record joins it, and when a window is closed. It holds no state, reads no clock and
// imports nothing of the runtime.
//
//	per := window.Tumbling(time.Minute).Grace(10 * time.Second)
//
// # Time
//
// The resolution is Kafka's, a millisecond: finer parts of a timestamp do not count. Windows are half-open,
// [Start, End), so that neighbours share no record. Tumbling and hopping windows are aligned to
// 1970-01-01 UTC, as those of Kafka Streams and Flink are: an hour begins at the full hour, a day at midnight UTC.
//
// # Closing
//
// A window is closed once the watermark has reached its end and the grace:
//
//	closed = End + grace <= watermark
//
// Until then late records still count. Afterwards nothing changes it.
//
// # What it does not do
//
// It keeps no aggregate (see topology.WindowedBy), and knows neither calendars nor time zones.
package window
