package crash

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// rows is the crash table: every fault that exactly-once processing has to live through. A test that holds a row names it:
// "CRASH 5", "CRASH 5, 7" or "CRASH 1-4".
func rows() []string {
	return []string{
		"kill before anything of a transaction is sent",
		"kill while the transaction is open; two processes with one transactional ID",
		"kill between the acknowledgements and the offsets: others wait for the open transaction",
		"kill after the offsets, before EndTxn: the new owner waits",
		"the answer to EndTxn is lost: asked, never sent again",
		"EndTxn is answered with an error: as a lost answer",
		"EndTxn or offsets that come late: a new epoch, and the commit record wins",
		"a request without an answer is never sent again",
		"an answered error that retries do not heal: again from memory",
		"kill between the commit in Kafka and the local store",
		"kill in the write to the local store",
		"power loss without synced writes",
		"kill in a restore",
		"a panic in user code",
		"a rebalance while work is in flight",
		"the generation of a newer session with records of an older one",
		"a commit without a generation",
		"an owner that stands still before it commits offsets",
		"an owner that stands still between offsets and EndTxn",
		"an owner that stands still between EndTxn and its local store",
		"an owner that stands still and is asked for its state",
		"an old epoch of the own transactional ID",
		"leaders and coordinators that move",
		"a group without offsets",
		"offsets that have expired",
		"a transaction timeout while the process is alive and slow",
		"a transactional ID that the broker has forgotten",
		"markers of the changelog that are late",
		"a transaction that hangs",
		"a store that is older than tombstones are kept",
		"a changelog that is truncated",
		"a topic that is deleted and made again",
		"a changelog that is emptied",
		"a disk that is rolled back or cloned",
		"a state directory of another application, cluster or task",
		"a store that is damaged",
		"a disk that is full",
		"a filter that is lost, damaged or of another moment",
		"a duplicate in the same transaction",
		"a transaction that is aborted: its IDs are forgotten",
		"a duplicate that comes after its ID has expired",
		"a producer's clock that is far ahead",
		"a local clock that jumps",
		"one ID in two partitions",
		"partitions that are added to an input",
		"two dedup operators in one process",
		"offsets that a tool has set back",
		"offsets that a tool has set forward, or retention that has overtaken them",
		"a task that moves away and comes back to an old store",
		"a host that never comes back",
		"a transaction or a record that is too large",
	}
}

// Of these rows there is nothing to test.
var notBuilt = map[int]string{}

var (
	named = regexp.MustCompile(`CRASH ([0-9][0-9, -]*)`)
	span  = regexp.MustCompile(`([0-9]+)(?:-([0-9]+))?`)
)

// TestEveryRowHasATest: each row of the crash table is named by a test.
func TestEveryRowHasATest(t *testing.T) {
	all := rows()
	found := map[int]bool{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") || d.Name() == "rows_test.go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range named.FindAllStringSubmatch(string(src), -1) {
			for _, s := range span.FindAllStringSubmatch(m[1], -1) {
				from, _ := strconv.Atoi(s[1])
				to := from
				if s[2] != "" {
					to, _ = strconv.Atoi(s[2])
				}
				if from < 1 || to > len(all) || from > to {
					t.Errorf("%s names the rows %q: there are 1 to %d", path, s[0], len(all))
					continue
				}
				for n := from; n <= to; n++ {
					found[n] = true
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range all {
		switch n := i + 1; {
		case found[n] && notBuilt[n] != "":
			t.Errorf("row %d has a test: take it off the list of what is not built", n)
		case !found[n] && notBuilt[n] == "":
			t.Errorf("no test names row %d: %s", n, row)
		}
	}
}
