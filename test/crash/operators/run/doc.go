// Command run is the application of package operators as a process that is to be killed. It takes those arguments of streamd that
// package crash gives to its daemons; the file holds the addresses of the brokers as a JSON list.
//
//	run run FILE --data-dir DIR --instance-id NAME --stop-on-eof
package main
