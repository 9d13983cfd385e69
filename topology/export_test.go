package topology

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RunExample sends records ("key=value", "key=value#id", "key=value@seconds") into the first source, lets the host's clock come to a time ("@seconds"), sends rows ("TABLE:key=value") into a global table, and prints what comes out of the topology, sub-topology
// by sub-topology: records in repartition topics go on as they would with a broker.
func RunExample(b *Builder, records ...string) {
	topo, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	t := &testing.T{}
	byTopic := map[string]*driver{}
	var drivers []*driver
	for i, s := range topo.Subtopologies() {
		d := driveSub(t, topo, i)
		drivers = append(drivers, d)
		byTopic[topo.SourceTopic(s.Sources[0])] = d
	}
	for _, r := range records {
		if table, row, ok := strings.Cut(r, ":"); ok {
			for _, d := range drivers {
				d.put(table, text(row))
			}
			continue
		}
		r, seconds, timed := strings.Cut(r, "@")
		in := text(r)
		if timed {
			s, err := strconv.Atoi(seconds)
			if err != nil {
				fmt.Println(err)
			}
			if r == "" {
				drivers[0].passWall(time.Unix(int64(s), 0))
				continue
			}
			in.Timestamp = time.Unix(int64(s), 0)
			if err := drivers[0].pass(in.Timestamp, false); err != nil {
				fmt.Println(err)
			}
		}
		if err := drivers[0].send(in); err != nil {
			fmt.Println(err)
		}
	}
	for _, d := range drivers {
		if err := d.call(); err != nil {
			fmt.Println(err)
		}
		for _, o := range d.rt.out {
			sink := d.sub.Sinks[o.sink]
			fmt.Printf("%s: %s=%s\n", topo.SinkTopic(sink), shown(o.Key), shown(o.Value))
			if next := byTopic[topo.SinkTopic(sink)]; next != nil {
				in := text("")
				in.Key, in.Value, in.Headers, in.Timestamp = o.Key, o.Value, o.Headers, o.Timestamp
				if err := next.send(in); err != nil {
					fmt.Println(err)
				}
			}
		}
	}
}
