//go:build !race

package txlog

// randomDamages is how many TestRandomDamage tries.
const randomDamages = 60
