// Package rig runs a small pipeline of bills in this process against a broker in memory, so that a check
// has something to look at, and plants differences in what it leaves behind.
package rig
