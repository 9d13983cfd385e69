// Package ids moves sets of seen IDs into and out of the dedup operators of a pipeline: what an older system has seen is
// then known from the first record on.
//
// An import writes what a task that had processed the IDs would have written: blocks of IDs and a commit record into the ID
// log, and the input positions as the group's offsets, all in one Kafka transaction. So a restore brings the IDs in, and
// nothing in the engine knows of imports. Generations are cut by dedup itself, with the operator's own configuration.
//
//	group     the import is a member of the application's group, and the only one: a process that starts meanwhile
//	          makes a newer generation, and what the import commits after that is refused
//	progress  each transaction carries in its commit records, as counters, how far the source was read: an import that was
//	          killed goes on there
//	memory    the open generation of each task is held exactly, as in the engine, the others as filters
//
// An export reads the ID log. It gives hashes: IDs themselves are not kept.
package ids
