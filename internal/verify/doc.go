// Package verify answers the question of "streamd verify FILE": is what a pipeline left behind in Kafka
// and on this machine's disk what exactly-once processing must leave behind?
//
// The evidence is read and decoded by package rawlog (topics) and package rawstore (local stores), and
// judged by package proof, none of which shares code with the engine.
package verify
