// Package soak is the load of "streamd soak": it shows on the user's own cluster, with the user's own
// settings, that nothing is lost and nothing counts twice while workers are killed.
//
// The parent makes topics with a prefix of its own, sends bills, some of them again, and follows the
// outputs with read_committed. The workers are child processes, "streamd run" on a pipeline file that the
// parent wrote; they are killed with kill -9 at random, a quarter of them starts again with an empty
// state directory. In between and at the end the outcome is compared with what was sent.
//
// # How it can run for days
//
// A bill is the n-th of its account, and its amount is a function of seed, account and n. So the whole
// expectation is one counter for each account, and every output can be judged when it comes: the
// next bill of an account must be n, and its total what n bills come to.
//
// # What is sent
//
// A fifth of the records are sent again: in the same batch, in the next one, and up to 100,000 bills
// later. One in fifty is older than the window of the dedup and must be dropped. Now and then a producer is
// closed in the midst of a batch, so that nobody knows what has arrived, and the batch is sent again by
// another one, as an upstream that restarts would do.
//
// # What it leaves behind
//
// Nothing, unless asked to: topics, consumer group, state and files are removed at the end, also after
// Ctrl-C. Transactional IDs expire by themselves (transactional.id.expiration.ms).
//
// # What it does not do
//
// It does not touch brokers: killing those is up to whoever has them. It says nothing of a topic that is
// not its own.
package soak
