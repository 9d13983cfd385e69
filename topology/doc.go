// Package topology says what to compute: typed operators over a builder, and the planner that cuts
// the graph into sub-topologies. It does no I/O.
package topology
