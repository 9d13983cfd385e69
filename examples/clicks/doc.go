// Command clicks joins the impressions of advertisements with the clicks on them: each impression comes out with
// each click on it, or, when none came in time, without.
//
//	go run ./cmd/streamd dev --topic impressions:4 --topic clicks:4 --topic ads-seen:4
//	go run ./examples/clicks localhost:9092
package main
