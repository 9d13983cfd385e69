package web

import (
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/processor"
)

// The last duplicates stand in the panel of their step, the newest first, by position.
func TestThePageShowsTheLastDuplicates(t *testing.T) {
	st := counted(50, 2, "bills/0")
	at := time.Unix(1_000_000, 0)
	st.Operators[1].Dedup.Last = []processor.DuplicateStatus{
		{Time: at, Position: "bills.raw/1@91002", Timestamp: at, FirstSeen: at.Add(-178 * time.Minute), Seen: "committed", ID: "4f1a0b22"},
		{Time: at, Position: "<in>/0@7", Timestamp: at, FirstSeen: at.Add(time.Second), Seen: "open_transaction", ID: "00ff00ff"},
		{Time: at, ID: "11ff00ff"},
	}
	h := handlerOf(t, Entry{Name: "bills", Pipeline: fake{st}})
	page := get(h, "/").Body.String()
	for _, want := range []string{ // in this order
		">of a timer<", "<td>–</td>", "&lt;in&gt;/0@7", "the same transaction", "<code>00ff00ff</code>",
		"1970-01-12 13:46:40Z", ">bills.raw/1@91002<", "about 2h 58m", "the log", "<code>4f1a0b22</code>",
	} {
		_, rest, ok := strings.Cut(page, want)
		if !ok {
			t.Fatalf("no %s in %s", want, page)
		}
		page = rest
	}
	if strings.Contains(get(h, "/?step=bills").Body.String(), "last duplicates") {
		t.Error("duplicates of a step that finds none")
	}
}
