package main

import (
	"log"
	"os"

	"github.com/streamd/streamd/test/crash/effects"
	"github.com/streamd/streamd/test/crash/program"
)

func main() {
	if err := program.Run(os.Args[1:], effects.Build); err != nil {
		log.Fatal(err)
	}
}
