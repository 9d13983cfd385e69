// Command run is the application of package effects as a process, with the arguments of streamd run.
package main
