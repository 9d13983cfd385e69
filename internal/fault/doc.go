// Package fault names the places at which a process is made to die or to stand still, for tests that
// run real streamd processes.
//
//	if err := t.log.kv.commitAll(p.body, p.tail); err != nil { ... }
//	fault.Point("badger.after")
//
// # Off, unless built in
//
// [Point] is an empty function, which the compiler removes, unless the program is built with the tag
// faultpoints (make kills does so). A release binary therefore holds no point, no counter and no
// environment variable that could be set on it by mistake or by malice: a door that is not there needs no
// lock. The cost of the other choice would have been one atomic load for each record.
//
// With the tag, and with the variable [Variable] naming a file, the process maps that file (see [Table]) and
// counts every hit in it. The map is shared: the counts survive kill -9, and whoever holds the file can
// arm a point of a running process. With the tag but without the variable a point costs one atomic load.
//
// # The points
//
// [Names] lists them in the order of one commit. What is not here: EndTxn that was sent and not answered
// is a matter of the broker's side, which alone knows whether the request was handled.
//
// # What it does not do
//
// It injects no errors and no lost answers: those have layers of their own, where they can be replayed.
package fault
