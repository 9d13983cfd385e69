package sim

import (
	"slices"
	"testing"

	"github.com/streamd/streamd/test/planted"
)

// bugs are the mistakes that the seeds must find.
func bugs() []planted.Bug {
	const (
		commit  = "processor/commit.go"
		worker  = "processor/worker.go"
		restore = "processor/restore.go"
		task    = "processor/task.go"
	)
	return []planted.Bug{
		bug("restore to the last stable offset", in(restore, "rs.ends, err = w.cluster.HighWatermarks(ctx, tps)", "rs.ends, err = w.cluster.StableOffsets(ctx, tps)")),
		bug("no RequireStable", in("internal/simbroker/client.go", "if c.b.offsets.unstable(k) {", "if false && c.b.offsets.unstable(k) {")),
		bug("commit by group only, without generation", in("internal/simbroker/group.go", "if code := b.groups[meta.Group].check(meta); code != None {", "if code := b.groups[meta.Group].check(meta); code != None && false {")),
		// As if the group's present generation were asked for when the offsets are committed.
		bug("generation of the newest session", in("internal/simbroker/producer.go", "\t\t\treturn p.c.b.commitOffsets(p.c.Protocol, id, pid, epoch, meta, offsets)\n", "\t\t\tmeta = p.c.b.groups[meta.Group].meta(meta.Instance)\n\t\t\treturn p.c.b.commitOffsets(p.c.Protocol, id, pid, epoch, meta, offsets)\n")),
		bug("applied before the commit",
			in(commit, "\tw.point(\"commit.prepared\")\n", "\tfor _, p := range parts {\n\t\tif p.txn.Batch != nil {\n\t\t\tp.txn.Batch.Position.Changelogs = p.run.changelogs\n\t\t\tif err := w.applyBatch(ctx, p.run, p.txn.Batch); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t}\n\tw.point(\"commit.prepared\")\n"),
			in(commit, "\t\t\tif err := w.applyBatch(ctx, p.run, p.txn.Batch); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t\tw.point(\"commit.applied\")", "\t\t}\n\t\tw.point(\"commit.applied\")"),
		),
		bug("applied on an unknown outcome", in(commit, "if outcome != broker.Committed {\n\t\treturn w.commitFailed", "if outcome == broker.NotCommitted {\n\t\treturn w.commitFailed")),
		bug("run again from memory after an unknown outcome", in(commit, "if outcome == broker.Unknown || react(err) != reactReplay", "if react(err) != reactReplay")),
		bug("no new epoch after a doubt", in("internal/simbroker/producer.go", "\tp.ready = false\n\tid := p.conf.TransactionalID\n", "\tp.ready = false\n\tid := p.conf.TransactionalID\n\tif p.pid >= 0 {\n\t\tp.c.request(ctx, EndTxn, id, func() Code { return p.c.b.endTxn(id, p.pid, p.epoch, false) })\n\t\tp.ready = true\n\t\treturn nil\n\t}\n")),
		bug("IDs in a second transaction",
			in(commit, "\t\t\tw.producer.Add(p.txn.Changelog[i])\n", "\t\t\tif p.txn.Changelog[i].Topic != p.run.plan.idLog.Name {\n\t\t\t\tw.producer.Add(p.txn.Changelog[i])\n\t\t\t}\n"),
			in(commit, "\tw.point(\"commit.acked\")\n", "\tfor _, p := range parts {\n\t\tfor i := range p.txn.Changelog {\n\t\t\tif p.txn.Changelog[i].Topic == p.run.plan.idLog.Name {\n\t\t\t\tw.producer.Add(p.txn.Changelog[i])\n\t\t\t}\n\t\t}\n\t}\n\tif n, _ := w.producer.Buffered(); n > 0 {\n\t\tsecond, outcome, err := w.producer.Commit(ctx, broker.GroupMeta{}, nil)\n\t\tif outcome != broker.Committed {\n\t\t\treturn w.commitFailed(ctx, outcome, err)\n\t\t}\n\t\tfor tp, next := range second.Next {\n\t\t\treceipt.Next[tp] = next\n\t\t}\n\t}\n\tw.point(\"commit.acked\")\n"),
		),
		bug("no set of pending IDs", in("dedup/index.go", "if pos := ix.pending.find(k); pos >= 0 {\n\t\treturn ix.found(ix.pending.entry(pos), payload, Answer{Verdict: DuplicatePending", "if pos := ix.pending.find(k); false {\n\t\treturn ix.found(ix.pending.entry(pos), payload, Answer{Verdict: DuplicatePending")),
		bug("no check of delete.retention", in("changelog/keep.go", "age >= limit {", "age >= limit && false {")),
		bug("the target written as the position", in(restore, "\t\tw.point(\"restore.batch\")\n", "\t\tfor i := range step.Position.Changelogs {\n\t\t\tstep.Position.Changelogs[i].Next = r.restore.ends[step.Position.Changelogs[i].TopicPartition]\n\t\t}\n\t\tw.point(\"restore.batch\")\n")),
		bug("the overlay survives an abort", in(task, "\tfor _, s := range t.stores {\n\t\ts.abort()\n\t}\n", "")),
		// Found by seed 352 on the day that the points to die at were added.
		bug("a full disk makes a task run that is not restored", in(commit, "if r.state != was {", "if false {")),
		bug("the commit record does not come last", in(task, "\tto(t.cfg.idLog, k, v) // the last record of the task's transaction\n", "\tto(t.cfg.idLog, k, v)\n\tlast := len(txn.Changelog) - 1\n\ttxn.Changelog = append([]broker.Output{txn.Changelog[last]}, txn.Changelog[:last]...)\n")),
	}
}

// moreBugs are of the mechanisms around: IDs, errors, positions.
func moreBugs() []planted.Bug {
	const (
		commit  = "processor/commit.go"
		worker  = "processor/worker.go"
		restore = "processor/restore.go"
		task    = "processor/task.go"
		sweep   = "processor/task_time.go"
		filter  = "dedup/filter.go"
		seal    = "dedup/seal.go"
	)
	return []planted.Bug{
		bug("expiry by wall clock", in(sweep, "\tif at.After(t.streamTime) {\n\t\tt.streamTime = at\n", "\tif at = now; at.After(t.streamTime) {\n\t\tt.streamTime = at\n")),
		bug("a filter is trusted without its checksum", in(filter, "crc32.MakeTable(crc32.Castagnoli)) != sum {", "crc32.MakeTable(crc32.Castagnoli)) != sum && false {")),
		bug("a filter is not complete before the task runs",
			in(seal, "\tfor slot := range g.Slots {\n\t\trun, err := ix.log.Run", "\tfor slot := range g.Slots / 2 {\n\t\trun, err := ix.log.Run"),
			in(seal, "if f.n != g.IDs {", "if false {"),
		),
		bug("pending IDs survive an abort", in(task, "\tfor _, l := range t.ids {\n\t\tl.abort()\n\t}\n", "")),
		bug("counters survive an abort", in(task, "\tt.counters.abort()\n", "")),
		bug("records of an old position are taken", in(worker, "r.tag != b.Tag || ", "")),
		bug("a missed generation is not noticed", in("processor/assign.go", "if len(a.tasks) > 0 && a.missed(meta) {", "if false {")),
		bug("the generation is that of the commit, not of the records",
			in("processor/assign.go", "if len(a.tasks) > 0 && a.missed(meta) {", "if false {"),
			in(worker, "\tif w.open && w.txnMeta != c.meta {\n\t\tw.dropTxn()\n\t}\n", ""),
			in(commit, "w.producer.Commit(ctx, w.txnMeta, offsets)", "w.producer.Commit(ctx, w.meta, offsets)"),
		),
		bug("what was fetched is committed as processed", in(task, "broker.OffsetCommit{TopicPartition: in.tp, Next: in.next, ", "broker.OffsetCommit{TopicPartition: in.tp, Next: max(in.next, in.stable), ")),
		bug("a delete does not reach the changelog", in(task, "\t\t\tto(topic, c.Key, c.Value)\n", "\t\t\tif c.Value != nil {\n\t\t\t\tto(topic, c.Key, c.Value)\n\t\t\t}\n")),
		bug("a failed record leaves its outputs", in(task, "t.out, t.outBytes, t.tooLarge = t.out[:t.undoOut.outputs], t.undoOut.bytes, nil", "t.tooLarge = nil")),
		bug("a failed record leaves its ID", in(task, "\t\tl.index.Rollback(l.mark)\n", "\t\t_ = l.mark\n")),
		bug("a full restore does not begin empty", in(restore, "if err := r.local.Reset(); err != nil {", "if err := error(nil); err != nil {")),
		bug("a range does not see what its transaction changed", in("processor/task_store.go", "rangeOver(committed, from, to, o.changes, fn)", "rangeOver(committed, from, to, func(dst []change, _, _ []byte, _ int) []change { return dst }, fn)")),
		bug("a range does not see what was committed since it was read", in("processor/task_store.go", "\t\to.committed.apply(o.changes)\n", "\t\t_ = o.committed\n")),
		bug("dead letters in a second transaction",
			in(commit, "\t\t\tw.producer.Add(p.txn.Outputs[i])\n", "\t\t\tif p.txn.Outputs[i].Topic != p.run.plan.deadLetter.topic {\n\t\t\t\tw.producer.Add(p.txn.Outputs[i])\n\t\t\t}\n"),
			in(commit, "\tw.point(\"commit.acked\")\n", "\tfor _, p := range parts {\n\t\tfor i := range p.txn.Outputs {\n\t\t\tif p.txn.Outputs[i].Topic == p.run.plan.deadLetter.topic {\n\t\t\t\tw.producer.Add(p.txn.Outputs[i])\n\t\t\t}\n\t\t}\n\t}\n\tif n, _ := w.producer.Buffered(); n > 0 {\n\t\tif _, outcome, err := w.producer.Commit(ctx, broker.GroupMeta{}, nil); outcome != broker.Committed {\n\t\t\treturn w.commitFailed(ctx, outcome, err)\n\t\t}\n\t}\n\tw.point(\"commit.acked\")\n"),
		),
	}
}

// timeBugs are of the marks that carry event time through repartition topics, and of global tables.
func timeBugs() []planted.Bug {
	const (
		marks  = "processor/task_marks.go"
		global = "processor/global.go"
	)
	return []planted.Bug{
		// A mark says that nothing comes before its time any more. Alone, what it rests on may never be committed; and without
		// offsets no generation guards it, so that a zombie goes on telling.
		bug("marks in a transaction before that of their records", in("processor/commit.go",
			"\tfor _, p := range parts {\n\t\tfor i := range p.txn.Outputs {\n\t\t\tw.producer.Add(p.txn.Outputs[i])\n\t\t}\n",
			"\tfor _, p := range parts {\n\t\tfor _, o := range p.txn.Outputs {\n\t\t\tif record.IsMark(o.Key, o.Value, o.Headers) {\n\t\t\t\tw.producer.Add(o)\n\t\t\t}\n\t\t}\n\t}\n"+
				"\tif n, _ := w.producer.Buffered(); n > 0 && w.ready {\n\t\tif _, outcome, _ := w.producer.Commit(context.Background(), broker.GroupMeta{}, nil); outcome != broker.Committed {\n\t\t\tw.producer.Reset()\n\t\t\tw.ready = false\n\t\t}\n\t}\n"+
				"\tfor _, p := range parts {\n\t\tfor i := range p.txn.Outputs {\n\t\t\tif o := p.txn.Outputs[i]; !record.IsMark(o.Key, o.Value, o.Headers) {\n\t\t\t\tw.producer.Add(o)\n\t\t\t}\n\t\t}\n")),
		bug("marks before the records of their transaction",
			in(marks, "\t\"strconv\"\n", "\t\"slices\"\n\t\"strconv\"\n"),
			in(marks, "\t\t\tt.out = append(t.out, broker.Output{\n", "\t\t\tt.out = slices.Insert(t.out, 0, broker.Output{\n")),
		// Also those of a task of an older generation, whose transaction was refused.
		bug("marks of aborted transactions are taken",
			in("internal/simbroker/log.go", "b.txn.status != Committed)\n\t\tif !hidden {", "b.txn.status != Committed)\n\t\tif hidden && !b.control {\n\t\t\tfor k := range b.records {\n\t\t\t\tif r := b.records[k]; r.Offset >= from && record.IsMark(r.Key, r.Value, r.Headers) {\n\t\t\t\t\tout = append(out, r)\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t\tif !hidden {")),
		bug("a task that was not heard of is not waited for", in(marks, "*c&idleBit == 0 {\n\t\t\tu.active", "*c != 0 && *c&idleBit == 0 {\n\t\t\tu.active")),
		bug("a task does not wait for its global tables", in("processor/restore.go", "why := w.globals.lacks(names, r.restore.globals)\n", "why := w.globals.lacks(names, nil)\n")),
		bug("rows of a global table of aborted transactions", in(global, "Isolation: broker.ReadCommitted", "Isolation: broker.ReadUncommitted")),
		bug("a global table is not read anew after a silence", in(global, "if g.outlived(t, p, b) {", "if g.outlived(t, p, b) && false {")),
	}
}

func allBugs() []planted.Bug { return slices.Concat(bugs(), moreBugs(), timeBugs()) }

// bug is one of this layer.
func bug(name string, changes ...planted.Change) planted.Bug {
	return planted.Bug{Layer: "L1", Name: name, Changes: changes}
}

func in(file, old, with string) planted.Change {
	return planted.Change{File: file, Old: old, New: with}
}

// Every planted bug still fits its place in the source. Whoever changes the place moves the bug with it.
func TestPlantedBugsFit(t *testing.T) { planted.Check(t, allBugs()) }
