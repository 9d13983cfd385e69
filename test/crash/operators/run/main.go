package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/streamd/streamd/test/crash/operators"
	"github.com/streamd/streamd/test/crash/program"
	"github.com/streamd/streamd/topology"
)

func main() {
	err := program.Run(os.Args[1:], func(text []byte) (brokers []string, topo *topology.Topology, err error) {
		if err = json.Unmarshal(text, &brokers); err == nil {
			topo, err = operators.Topology()
		}
		return brokers, topo, err
	})
	if err != nil {
		log.Fatal(err)
	}
}
