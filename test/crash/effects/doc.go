// Package effects is an application that calls another system for each record and is made to be killed, and that system: a bank over
// HTTP that lives in the test and sees all calls of all lives.
//
// The program in the folder run is the application as a process of its own.
package effects
