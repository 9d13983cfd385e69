// Package archtest holds the rules of the house as tests: which package may import which, where
// goroutines and clocks may be used, how long a file may be, and what every package and every
// exported name must carry. It reads source text only: build tags do not hide a file from it.
//
// A rule is a function from a [Repo] to [Finding]s, so every rule is itself tested on small made-up
// trees, a good one and a bad one: a rule that cannot fail is no rule.
//
// To add a package: give it a level in the table of levels.go. To add a rule: write it, add it to
// [Rules], and add a red and a green tree to the table of rules_test.go.
//
// What it does not do: it has no types. A channel made through a named channel type, or a clock
// reached through a function of another package, passes unseen; review and the race detector are
// there for those.
package archtest
