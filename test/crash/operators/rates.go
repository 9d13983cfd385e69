package operators

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// rates is how many rows the global table has, and rateEvery how many records come between two new versions of rows.
const rates, rateEvery = 3, 40

func rateKey(rate int) string { return fmt.Sprintf("rate-%d", rate) }

// rateOf is the row that a purchase is joined with. All partitions have purchases of each row.
func rateOf(p Event) string { return rateKey(int(p.After % rates)) }

// rateRow is a version of a row. They rise.
func rateRow(rate int, version int64, at time.Time) Input {
	return Input{Topic: Rates, Partition: int32(rate % Partitions), Key: rateKey(rate), At: at, Value: Event{ID: strconv.FormatInt(version, 10)}}
}

// rated joins purchases with the global table. Which version a purchase meets is open: each process reads at its own pace.
func rated(b *topology.Builder, s *topology.Stream[string, Event]) {
	table := topology.GlobalTable(b, Rates, serde.String(), serde.JSON[Event]())
	by := func(_ string, p Event) (string, error) { return rateOf(p), nil }
	fold(topology.LeftJoinGlobal(s, table, "with-rate", by, func(_ string, p Event, row *Event) (string, error) {
		version := "-1"
		if row != nil {
			version = row.ID
		}
		return p.ID + " " + rateOf(p) + " " + version, nil
	}), Rated, "rate")
}

// sight takes the version off a record of Rated, and holds it to what is promised of a global table: a key never meets an older row than
// before, nor none where there was one, wherever its task went meanwhile. newest is by key and row.
func sight(value []byte, newest map[string]int64) (string, error) {
	var l Line
	if err := json.Unmarshal(value, &l); err != nil {
		return "", err
	}
	words := strings.Fields(l.Value)
	if len(words) != 3 {
		return string(value), nil // of no version: the oracle's own
	}
	version, err := strconv.ParseInt(words[2], 10, 64)
	if err != nil {
		return "", err
	}
	seen := l.Key + " " + words[1]
	if before, ok := newest[seen]; ok && version < before {
		err = fmt.Errorf("purchase %s met version %d of %s, after one of its key had met %d", words[0], version, words[1], before)
	}
	newest[seen] = max(version, newest[seen])
	l.Value = words[0] + " " + words[1]
	return lines([]Line{l})[0], err
}
