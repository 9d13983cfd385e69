package main

import (
	"io"
	"time"

	"github.com/streamd/streamd/internal/daemon"
)

// withProgress runs something and shows how far it is, if that takes longer than a second. line is asked from another goroutine than run's.
func withProgress[T any](c *cli, line func(took time.Duration) string, run func() (T, error)) (T, error) {
	if c.quiet || c.noProgress {
		return run()
	}
	type outcome struct {
		result T
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := run()
		done <- outcome{result, err}
	}()
	every := 10 * time.Second
	terminal := daemon.IsTerminal(c.stderr)
	if terminal {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case o := <-done:
			if terminal && time.Since(began) > every {
				_, _ = io.WriteString(c.stderr, "\r\x1b[K") // the result matters, not the line above it
			}
			return o.result, o.err
		case <-tick.C:
			text := line(time.Since(began))
			if terminal {
				text = "\r\x1b[K" + text
			} else {
				text += "\n"
			}
			_, _ = io.WriteString(c.stderr, text)
		}
	}
}
