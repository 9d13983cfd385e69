//go:build race

package processor

// stride is how many requests the fault test steps over: the race detector takes most of the time.
const stride = 11
