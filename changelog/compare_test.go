package changelog

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

var (
	bills = record.TopicPartition{Topic: "bills", Partition: 2}
	rates = record.TopicPartition{Topic: "rates", Partition: 2}
)

// offset is a committed offset of a commit made an hour before noon.
func offset(tp record.TopicPartition, next record.Offset, seq, incarnation uint64) GroupOffset {
	return GroupOffset{tp, broker.CommittedOffset{Next: next, Metadata: Metadata{seq, incarnation, noon.Add(-time.Hour), "uuid"}.String()}}
}

func foreign(tp record.TopicPartition, next record.Offset) GroupOffset {
	return GroupOffset{tp, broker.CommittedOffset{Next: next}}
}

func point(seq, incarnation uint64, b, r record.Offset) record.CommitPoint {
	return record.CommitPoint{Sequence: seq, Incarnation: incarnation, Inputs: []record.InputPosition{{TopicPartition: bills, Next: b}, {TopicPartition: rates, Next: r}}}
}

func TestCompare(t *testing.T) {
	log := func(start, end record.Offset, retention time.Duration) Log {
		return Log{TopicPartition: idLog, Start: start, End: end, Retention: retention}
	}
	full := log(0, 900, 7*24*time.Hour)
	for _, c := range []struct {
		name  string
		e     Evidence
		want  Verdict
		seq   uint64
		next  record.Offset // of bills, to go on from; -1: none
		words string        // in reason or remedy
	}{
		{"first start", Evidence{IDLog: log(0, 0, -1)}, Fresh, 0, -1, ""},
		{"first start, asked for", Evidence{IDLog: log(0, 0, -1), Group: []GroupOffset{foreign(bills, record.NoOffset)}}, Fresh, 0, -1, ""},
		{"first start after an aborted transaction", Evidence{IDLog: log(0, 7, -1)}, Fresh, 0, -1, ""},
		{"first start at offsets that were set", Evidence{IDLog: log(0, 0, -1), Group: []GroupOffset{foreign(bills, 40)}}, Fresh, 0, 40, "another program"},
		{"first start after a reset", Evidence{IDLog: log(0, 0, -1), Group: []GroupOffset{{bills, broker.CommittedOffset{Next: 40, Metadata: ResetMetadata}}}}, Fresh, 0, 40, "offsets that streamd reset has set"},
		{"the usual", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{offset(bills, 70, 7, 9), offset(rates, 3, 7, 9)}}, Agree, 7, 70, ""},
		{"CRASH 7: one offset moved by a late request", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{offset(bills, 60, 6, 9), offset(rates, 3, 7, 9)}}, UseChangelog, 7, 70, "bills/2 is 60 (commit 6), the commit record says 70"},
		{"the same sequence at another offset", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{offset(bills, 71, 7, 9), offset(rates, 3, 7, 9)}}, UseChangelog, 7, 70, "bills/2 is 71"},
		{"a reset that was cut off", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{{bills, broker.CommittedOffset{Next: 0, Metadata: ResetMetadata}}, foreign(rates, 0)}}, UseChangelog, 7, 70, "streamd reset --execute completes it"},
		{"CRASH 24: no offsets", Evidence{IDLog: full, Point: point(7, 9, 70, 3)}, UseChangelog, 7, 70, "expired or deleted"},
		{"CRASH 25: one offset expired", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{offset(bills, 70, 7, 9), foreign(rates, record.NoOffset)}}, UseChangelog, 7, 70, "no offset of rates/2"},
		{"offsets behind", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{offset(bills, 60, 6, 9), offset(rates, 3, 6, 9)}}, UseChangelog, 7, 70, "commit 6; going on after commit 7"},
		{"CRASH 47: set back by a tool", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{foreign(bills, 0), foreign(rates, 0)}}, UseChangelog, 7, 70, "another application name"},
		{"CRASH 48: set forward by a tool", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{foreign(bills, 5000), foreign(rates, 0)}}, UseChangelog, 7, 70, "ignored"},
		{"one of two set by a tool", Evidence{IDLog: full, Point: point(7, 9, 70, 3), Group: []GroupOffset{foreign(bills, 5000), offset(rates, 3, 7, 9)}}, UseChangelog, 7, 70, "bills/2 is 5000 (commit 0)"},
		{"CRASH 31: changelog behind", Evidence{IDLog: full, Point: point(6, 9, 60, 3), Group: []GroupOffset{offset(bills, 70, 7, 9), offset(rates, 3, 7, 9)}}, DataLost, 0, -1, "committed 7 transactions"},
		{"changelog behind, one offset set by a tool", Evidence{IDLog: full, Point: point(6, 9, 60, 3), Group: []GroupOffset{offset(bills, 70, 7, 9), foreign(rates, 3)}}, DataLost, 0, -1, "committed 7 transactions"},
		{"another incarnation", Evidence{IDLog: full, Point: point(7, 8, 70, 3), Group: []GroupOffset{offset(bills, 70, 7, 9)}}, DataLost, 0, -1, "incarnation 0000000000000008"},
		{"CRASH 32: topic made anew", Evidence{IDLog: log(0, 0, time.Hour), Group: []GroupOffset{offset(bills, 70, 7, 9)}}, DataLost, 0, -1, "made anew or truncated"},
		{"made anew, long ago", Evidence{IDLog: log(0, 0, time.Minute), Group: []GroupOffset{offset(bills, 70, 7, 9)}}, DataLost, 0, -1, "made anew"},
		{"CRASH 33: emptied too early", Evidence{IDLog: log(900, 900, 2*time.Hour), Group: []GroupOffset{offset(bills, 70, 7, 9)}}, DataLost, 0, -1, "1h0m0s old, within the retention of 2h0m0s"},
		{"emptied, no retention", Evidence{IDLog: log(900, 900, -1), Group: []GroupOffset{offset(bills, 70, 7, 9)}}, DataLost, 0, -1, "holds no commit record"},
		{"emptied by its retention", Evidence{IDLog: log(900, 900, time.Hour), Group: []GroupOffset{offset(bills, 70, 7, 9)}}, Agree, 7, 70, "emptied by its retention"},
		{"emptied by its retention, aborted records left", Evidence{IDLog: log(900, 910, time.Hour), Group: []GroupOffset{offset(bills, 70, 7, 9)}}, Agree, 7, 70, ""},
		{"emptied, offsets set as the remedy", Evidence{IDLog: log(900, 900, time.Hour), Group: []GroupOffset{foreign(bills, 70)}}, Fresh, 0, 70, "another program"},
		{"emptied, no offsets", Evidence{IDLog: log(900, 900, time.Hour)}, DataLost, 0, -1, "kafka-consumer-groups.sh"},
		{"all gone but the local store", Evidence{IDLog: log(0, 0, time.Hour), Local: record.LocalPosition{CommitPoint: point(7, 9, 70, 3)}}, DataLost, 0, -1, "remove the state directory"},
	} {
		c.e.Now = noon
		d, err := Compare(c.e)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		next := record.Offset(-1)
		for _, in := range d.Point.Inputs {
			if in.TopicPartition == bills {
				next = in.Next
			}
		}
		if d.Verdict != c.want || d.Point.Sequence != c.seq || next != c.next || !strings.Contains(d.Reason+" "+d.Remedy, c.words) {
			t.Errorf("%s: %v at %d (%d): %q, %q", c.name, d.Verdict, next, d.Point.Sequence, d.Reason, d.Remedy)
		}
		if (d.Verdict == DataLost) != (d.Remedy != "") || (d.Verdict == DataLost || d.Verdict == UseChangelog) && d.Reason == "" {
			t.Errorf("%s: reason %q, remedy %q", c.name, d.Reason, d.Remedy)
		}
	}
	newer := []GroupOffset{{bills, broker.CommittedOffset{Next: 1, Metadata: "streamd/2 something"}}}
	if _, err := Compare(Evidence{Group: newer}); !errors.Is(err, ErrNewerFormat) || !strings.Contains(err.Error(), "bills/2") {
		t.Errorf("a newer version's offsets: %v", err)
	}
}

// After the retention emptied the log, the local store still knows the stream time and the counters.
func TestCompareTakesOverFromLocal(t *testing.T) {
	local := record.LocalPosition{CommitPoint: point(7, 9, 70, 3)}
	local.StreamTime, local.Counters = noon, []record.Counter{{Name: "a", Value: 1}}
	e := Evidence{IDLog: Log{TopicPartition: idLog, Start: 5, End: 5, Retention: time.Hour}, Group: []GroupOffset{offset(bills, 70, 7, 9)}, Local: local, Now: noon}
	if d, err := Compare(e); err != nil || !d.Point.StreamTime.Equal(noon) || len(d.Point.Counters) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	e.Local.Sequence = 6
	if d, err := Compare(e); err != nil || !d.Point.StreamTime.IsZero() || d.Point.Sequence != 7 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestKeepLocal(t *testing.T) {
	usual := func() LocalEvidence {
		return LocalEvidence{
			Found: true, Now: noon,
			Local: record.LocalPosition{
				CommitPoint: point(7, 9, 70, 3), Complete: true, AppliedAt: noon.Add(-time.Hour),
				Changelogs: []record.ChangelogPosition{{TopicPartition: idLog, TopicID: "i", Next: 100}, {TopicPartition: totals, TopicID: "t", Next: 200}},
			},
			Logs: []Log{
				{TopicPartition: idLog, TopicID: "i", Start: 10, End: 120},
				{TopicPartition: totals, TopicID: "t", Store: "totals", Start: 20, End: 220, DeleteRetention: 24 * time.Hour},
			},
			Group: []GroupOffset{offset(bills, 80, 8, 9), offset(rates, 3, 8, 9)},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*LocalEvidence)
		want   Keeping
		words  string
	}{
		{"the usual", func(*LocalEvidence) {}, KeepTail, ""},
		{"CRASH 13: half a restore", func(e *LocalEvidence) { e.Local.Complete, e.Local.CommitPoint = false, record.CommitPoint{} }, KeepTail, ""},
		{"up to date", func(e *LocalEvidence) { e.Group = []GroupOffset{offset(bills, 70, 7, 9)} }, KeepTail, ""},
		{"the group has nothing", func(e *LocalEvidence) { e.Group = nil }, KeepTail, ""},
		{"foreign offsets", func(e *LocalEvidence) { e.Group = []GroupOffset{foreign(bills, 0)} }, KeepTail, ""},
		{"at both starts", func(e *LocalEvidence) { e.Logs[0].Start, e.Logs[1].Start = 100, 200 }, KeepTail, ""},
		{"at both ends", func(e *LocalEvidence) { e.Logs[0].End, e.Logs[1].End = 100, 200 }, KeepTail, ""},
		{"none", func(e *LocalEvidence) { e.Found = false }, RestoreFull, "no local store"},
		{"CRASH 35: of another task", func(e *LocalEvidence) { e.Local.Changelogs[0].Partition = 3 }, Refuse, "does not belong"},
		{"CRASH 32: ID log made anew", func(e *LocalEvidence) { e.Logs[0].TopicID = "j" }, RestoreFull, "made anew (j, was i)"},
		{"CRASH 32: store topic made anew", func(e *LocalEvidence) { e.Logs[1].TopicID = "u" }, Lost, "was made anew (topic ID u, was t)"},
		{"a new store", func(e *LocalEvidence) { e.Local.Changelogs = e.Local.Changelogs[:1] }, RestoreFull, "does not know app-totals-changelog/2"},
		{"a store less", func(e *LocalEvidence) { e.Logs = e.Logs[:1] }, RestoreFull, "no longer has"},
		{"CRASH 31: ahead of the ID log", func(e *LocalEvidence) { e.Logs[0].End = 99 }, RestoreFull, "at 100 of app-sub-ids-changelog/2, which ends at 99"},
		{"CRASH 31: ahead of the store topic", func(e *LocalEvidence) { e.Logs[1].End = 199 }, Lost, "ends at 199, it had reached 200"},
		{"CRASH 31: ahead of the group", func(e *LocalEvidence) { e.Group = []GroupOffset{offset(bills, 60, 6, 9)} }, RestoreFull, "commit 7, the group's offsets are of 6"},
		{"FIELD B9: one before the start", func(e *LocalEvidence) { e.Logs[0].Start = 101 }, RestoreFull, "begins at 101"},
		{"the ID log was emptied by retention, nothing was committed since", func(e *LocalEvidence) {
			e.Logs[0].Start, e.Logs[0].End = 101, 101
			e.Group = []GroupOffset{offset(bills, 70, 7, 9)}
		}, KeepTail, ""},
		{"store topic begins later", func(e *LocalEvidence) { e.Logs[1].Start = 201 }, RestoreFull, "begins at 201"},
		{"another incarnation", func(e *LocalEvidence) { e.Group = []GroupOffset{offset(bills, 80, 8, 10)} }, RestoreFull, "was reset"},
		{"CRASH 30: tombstones may be gone", func(e *LocalEvidence) { e.Local.AppliedAt = noon.Add(-22 * time.Hour) }, RestoreFull, "22h0m0s old"},
		{"just young enough", func(e *LocalEvidence) { e.Local.AppliedAt = noon.Add(-21 * time.Hour) }, KeepTail, ""},
		{"old, but the store topic is at its end", func(e *LocalEvidence) { e.Local.AppliedAt, e.Logs[1].End = noon.Add(-99*time.Hour), 200 }, KeepTail, ""},
		{"old, but nothing was committed since", func(e *LocalEvidence) {
			e.Local.AppliedAt, e.Logs[0].End, e.Logs[1].End = noon.Add(-99*time.Hour), 101, 201
			e.Group = []GroupOffset{offset(bills, 70, 7, 9)}
		}, KeepTail, ""},
		{"old, the group agrees, the ID log goes on", func(e *LocalEvidence) {
			e.Local.AppliedAt = noon.Add(-99 * time.Hour)
			e.Group = []GroupOffset{offset(bills, 70, 7, 9)}
		}, RestoreFull, "99h0m0s old"},
		{"a newer version's offsets", func(e *LocalEvidence) { e.Group[0].Metadata = "streamd/2" }, Refuse, "newer format"},
	} {
		e := usual()
		c.change(&e)
		got, reason := KeepLocal(e)
		if got != c.want || !strings.Contains(reason, c.words) || (got == KeepTail) != (reason == "") {
			t.Errorf("%s: %v, %q", c.name, got, reason)
		}
	}
}
