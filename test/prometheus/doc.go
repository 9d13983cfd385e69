// Package prometheus holds what streamd exposes against the real server: the rules and their tests with
// promtool, and a scrape of a process at work that is killed in the middle. Run it with
// `make prometheus-test`, which installs what is missing.
package prometheus
