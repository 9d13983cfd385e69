// Command toparticles keeps the three most viewed articles of each industry for each hour.
//
//	go run ./cmd/streamd dev --topic article-views:4 --topic top-articles:4
//	go run ./examples/toparticles localhost:9092
package main
