// Package operators is an application of windows, joins, tables, aggregations, timers, ticks and a dedup that is made to be killed, its input, and an oracle that
// says what must come of it.
//
//	topo, err := operators.Topology()
//	input := operators.Generate(seed, events)
//	want := operators.Oracle(input) // by topic, the lines that must be committed
//
// What comes out depends on the input alone: not on batches, commits, kills, lost disks, nor on who runs which task. That
// needs an input that is read in one way only. So records name their partitions, no input goes idle, disorder stays within
// the grace of the windows, and the last record of each partition is far behind all others, so that it closes everything.
//
// What goes by the host's clock is not known before. Each task tells all that it does with it, in order, and that history is held to
// what is promised.
//
// The oracle shares no code with the engine: it goes by the definitions in package window and topology.
//
// The program in the folder run is the application as a process of its own.
package operators
