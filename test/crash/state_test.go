package crash

import (
	"maps"
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// TestCompareCanFail: a store that has lost, kept or changed a key is told from the changelog's fold.
func TestCompareCanFail(t *testing.T) {
	log, err := txlog.Open(txlog.Options{Dir: t.TempDir(), App: "a", Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	task, err := log.Task("t/0")
	if err != nil {
		t.Fatal(err)
	}
	err = task.Apply(&record.Batch{
		State: []record.StateChange{
			{Store: "s", Key: []byte("ann"), Value: []byte("5")},
			{Store: "s", Key: []byte("bob"), Value: []byte("7")},
		},
		Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: 1, Incarnation: 1}, Complete: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	right := map[string][]byte{"ann": []byte("5"), "bob": []byte("7")}
	for _, c := range []struct {
		fold map[string][]byte
		want string // a piece of the error; empty: none
	}{
		{right, ""},
		{map[string][]byte{"ann": []byte("5")}, `"bob" is there`},
		{map[string][]byte{"ann": []byte("6"), "bob": []byte("7")}, `"ann" is "5"`},
		{map[string][]byte{"ann": []byte("5"), "bob": []byte("7"), "cid": nil}, `"cid" of the changelog is missing`},
	} {
		err := compare(task, "s", maps.Clone(c.fold))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.fold, err, c.want)
		}
	}
}
