//go:build race

package txlog

// randomDamages is how many TestRandomDamage tries: nothing in it runs at the same time as something else, and the race detector makes
// each try ten times as long.
const randomDamages = 15
