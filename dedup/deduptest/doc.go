// Package deduptest has a dedup.Log in memory, for tests and simulations: with the atomicity of the
// local log, and with ways to cut a seal short and to damage what was written. It is imported by
// tests only.
package deduptest
