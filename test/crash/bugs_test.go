package crash

import (
	"testing"

	"github.com/streamd/streamd/test/planted"
)

// Bugs are the mistakes that this layer must find: those that need a real process, or a real disk.
func Bugs() []planted.Bug {
	const (
		commit  = "processor/commit.go"
		restore = "processor/restore.go"
	)
	return []planted.Bug{
		// Two places look at a filter's bytes: each of them alone finds an empty one.
		{Layer: "L3", Name: "filter trusted from disk", Changes: []planted.Change{
			{
				File: "dedup/filter.go",
				Old:  "if crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != sum {",
				New:  "if false && crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != sum {",
			},
			{
				File: "txlog/operator.go",
				Old:  "if crc32.Checksum(filter, castagnoli) != s.filterCRC {",
				New:  "if false && crc32.Checksum(filter, castagnoli) != s.filterCRC {",
			},
		}},
		{Layer: "L3", Name: "applied before the commit", Changes: []planted.Change{
			{File: commit, Old: "\tw.point(\"commit.prepared\")\n", New: "\tfor _, p := range parts {\n\t\tif p.txn.Batch != nil {\n\t\t\tp.txn.Batch.Position.Changelogs = p.run.changelogs\n\t\t\tif err := w.applyBatch(ctx, p.run, p.txn.Batch); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t}\n\tw.point(\"commit.prepared\")\n"},
			{File: commit, Old: "\t\t\tif err := w.applyBatch(ctx, p.run, p.txn.Batch); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t\tw.point(\"commit.applied\")", New: "\t\t}\n\t\tw.point(\"commit.applied\")"},
		}},
		{Layer: "L3", Name: "the target written as the position", Changes: []planted.Change{{
			File: restore, Old: "\t\tw.point(\"restore.batch\")\n",
			New: "\t\tfor i := range step.Position.Changelogs {\n\t\t\tstep.Position.Changelogs[i].Next = r.restore.ends[step.Position.Changelogs[i].TopicPartition]\n\t\t}\n\t\tw.point(\"restore.batch\")\n",
		}}},
	}
}

// TestPlantedBugsFit: a change of the engine must take the bugs along.
func TestPlantedBugsFit(t *testing.T) { planted.Check(t, Bugs()) }
