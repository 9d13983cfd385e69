// Package program runs a topology as a process of its own that is made to be killed. It takes the arguments of streamd run.
package program
