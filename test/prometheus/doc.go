// Package prometheus holds what streamd exposes against the real server: the rules and their tests with
// promtool, an hour of normal load in which no rule may alert, faults that are driven through real processes
// until their alerts fire, and a scrape of a process at work that is killed in the middle. Run it with
// `make prometheus-test`, which installs what is missing.
package prometheus
