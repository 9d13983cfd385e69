package operators

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// rates is how many rows the global table has from the beginning, and rateEvery how many records come between two new versions of rows. Two more
// are looked for: lateRate, which comes in the middle of the input, and one that never comes.
const rates, lateRate, ratesLookedFor, rateEvery = 3, 3, 5, 40

func rateKey(rate int) string { return fmt.Sprintf("rate-%d", rate) }

// rateOf is the row that a purchase is joined with. All partitions have purchases of each row.
func rateOf(p Event) string { return rateKey(int(p.After % ratesLookedFor)) }

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
	// By partition and row: what one task has met, another may not lose, whatever the key.
	met := topology.Map(topology.JoinGlobal(s, table, "only-with-rate", by, func(key string, p, row Event) (Line, error) {
		return line(partitionOf(key), rateOf(p), p.ID+" "+rateOf(p)+" "+row.ID), nil
	}), func(r record.Record[string, Line]) (string, Line, error) { return partitionOf(r.Key), r.Value, nil }, topology.Name("looked-lines"))
	topology.To(met, Looked, serde.String(), serde.JSON[Line]())
}

// looked adds what must come of the purchases that find a row: all of those whose row is there before a task is, none of those whose
// row never comes. Of those with the row that comes late it is all from some moment on.
func looked(out map[string][]string, input []Input) {
	for _, in := range input {
		if in.Topic != Purchases || in.Value.ID == "end" || rateOf(in.Value) == rateKey(ratesLookedFor-1) {
			continue
		}
		l := line(partitionOf(in.Key), rateOf(in.Value), in.Value.ID+" "+rateOf(in.Value))
		out[l.Key] = append(out[l.Key], lines([]Line{l})...)
	}
}

// sight takes the version off a record of Rated or Looked, and holds it to what is promised of a global table: a row that stood there before the
// task began is found, and a key, or in Looked a partition, never meets an older row than before, nor none where there was one, wherever its
// task went meanwhile. newest is by key and row.
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
	if there := words[1] < rateKey(rates); there && version < 0 {
		return "", fmt.Errorf("purchase %s met no %s, which was there before its task", words[0], words[1])
	}
	seen := l.Key + " " + words[1]
	before, met := newest[seen]
	if met && version < before {
		err = fmt.Errorf("purchase %s met version %d of %s, after one of its key had met %d", words[0], version, words[1], before)
	}
	if !met || version > before {
		newest[seen] = version
	}
	l.Value = words[0] + " " + words[1]
	return lines([]Line{l})[0], err
}
