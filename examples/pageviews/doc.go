// Command pageviews joins page views with the table of user profiles, and counts them per region in hopping windows.
//
//	go run ./cmd/streamd dev --topic pageviews:4 --topic user-profiles:4 --topic pageviews-by-region:4
//	go run ./examples/pageviews localhost:9092
package main
