package sim

import (
	"fmt"
	"strings"
	"time"
)

// Shrink looks for a smaller run that is red too: without the faults that it does not need, with less input,
// fewer instances and partitions. It spends at most so many steps on it. What it returns is red, if conf is.
func Shrink(conf Config, steps int) Config {
	red := func(c Config) bool {
		if steps <= 0 {
			return false
		}
		r := Run(c)
		steps -= r.Steps
		return len(r.Errors) > 0
	}
	for again := true; again && steps > 0; {
		again = false
		for i := len(conf.Schedule) - 1; i >= 0; i-- {
			c := conf
			c.Schedule = without(conf.Schedule, i)
			if red(c) {
				conf, again = c, true
			}
		}
		for _, smaller := range smaller(conf) {
			if red(smaller) {
				conf, again = smaller, true
				break
			}
		}
	}
	return conf
}

func without(s []Fault, i int) []Fault {
	return append(append([]Fault{}, s[:i]...), s[i+1:]...)
}

// smaller are the next steps down, the largest first.
func smaller(c Config) (all []Config) {
	add := func(ok bool, change func(*Config)) {
		if ok {
			x := c
			x.Schedule = append([]Fault{}, c.Schedule...)
			change(&x)
			all = append(all, x)
		}
	}
	add(c.Bills > 1, func(x *Config) { x.Bills /= 2 })
	add(c.Bills > 5, func(x *Config) { x.Bills -= x.Bills / 4 })
	add(c.Partitions > 1, func(x *Config) { x.Partitions-- })
	add(c.Owners > 1, func(x *Config) { x.Owners-- })
	add(c.Wide, func(x *Config) { x.Wide = false })
	add(c.Linked, func(x *Config) { x.Linked = false })
	add(c.Hops > 0, func(x *Config) { x.Hops-- })
	add(c.Rated, func(x *Config) { x.Rated = false })
	add(c.Twins, func(x *Config) { x.Twins = false })
	add(c.Prefetch, func(x *Config) { x.Prefetch = false })
	for i := range c.Schedule {
		add(c.Schedule[i].Duration > time.Second, func(x *Config) { x.Schedule[i].Duration /= 2 })
		add(c.Schedule[i].Recovering, func(x *Config) { x.Schedule[i].Recovering = false })
	}
	return all
}

// Report says all about a red run: the run as it was, the shortest schedule that was found, what was wrong there,
// and the last steps of it.
func Report(conf Config, shrunk Config) string {
	shrunk.Trace = true
	r := Run(shrunk)
	var b strings.Builder
	fmt.Fprintf(&b, "  %s\n", strings.Join(r.Errors, "\n  "))
	fmt.Fprintf(&b, "the run: %s, %d faults\nmade smaller: %s, %d faults:\n", conf, len(conf.Schedule), shrunk, len(shrunk.Schedule))
	for _, f := range shrunk.Schedule {
		fmt.Fprintf(&b, "    %s\n", f)
	}
	fmt.Fprintf(&b, "its last steps:\n%s\n", strings.Join(r.Trace[max(0, len(r.Trace)-60):], "\n"))
	return b.String()
}
