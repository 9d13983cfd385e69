// Command check runs the checks C1-C12 on a cluster, without any code of the engine:
//
//	go run ./test/cmd/check --brokers localhost:9092 --app bills-dedup \
//		--input bills.raw --id-field bill_id --output bills.unique --dedup unique --state-dir .streamd/bills-dedup
//
// It prints a table and ends with 0 if nothing differs, 1 with the first differences, 2 if it was called
// wrongly, 75 if a broker cannot be read. What is not given is not checked, and the table says so.
package main
