//go:build !race

package processor

// stride is how many requests the fault test steps over; each fault takes another part of them.
const stride = 3
