// Package check runs the checks C1-C12 on any cluster: in a test of the harness, or by hand with
//
//	go run ./test/cmd/check --brokers HOST:PORT --app NAME --input TOPIC --output TOPIC --id-field bill_id
//
// What is given decides what is checked: a [Target] without an output has no C1, one without a state
// directory no C5. A check that was not made says so in the table; it never counts as equal.
//
// The checks themselves are package proof, which shares no code with the engine; this package reads
// the topics in the right order, hands them to the checks and prints what came of it.
//
// A test uses it like this, when the last fault is over and everything should have settled:
//
//	report, err := check.Run(ctx, check.Target{Brokers: brokers, App: "bills-dedup", Input: "bills.raw", ...})
//	if err == nil {
//		err = report.Err()
//	}
//
// C7 needs a reader that runs during the faults: start [proof.NewWatch] before them and hand it over as
// Target.Watch.
package check
