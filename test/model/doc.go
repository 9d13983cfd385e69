// Package model holds the protocol as Promela models that spin checks in every interleaving of a small
// case, each with its broken variants that must fail:
//
//   - restore.pml: the hand-over of a task. Only RequireStable, the high watermark as the target and the
//     generation in the commit together are safe, of all eight combinations.
//   - endtxn.pml: an EndTxn that is repeated or arrives late, under transaction protocols V1 and V2.
//   - late.pml: Produce, TxnOffsetCommit and EndTxn that arrive late, with and without a new epoch.
//   - local.pml: the local store beside the changelog: when it may be written, and what is read again.
//   - fence.pml: rebalances, zombies and the generation that a commit carries.
//   - claim.pml: the claim of a database sink: fence and next offset in one database transaction.
//
// The tests need spin and a C compiler, so they stand behind the build tag models:
//
//	go test -tags models ./test/model
package model
