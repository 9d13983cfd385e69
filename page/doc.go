// Package page shows pipelines that run in a Go program of one's own, as the daemon does: the page for people, health,
// metrics and the API of docs/page.md.
//
//	h, err := page.New(page.Config{Pipelines: []page.Pipeline{{App: app, Topology: topo}}})
//	go h.Run(ctx) // keeps the curves going while nobody looks; may be left out
//	mux.Handle("/streamd/", http.StripPrefix("/streamd", h))
//
// The handler is read-only and shows positions and counts, no keys or values. It has no login. All its links are
// relative: it can be mounted below any prefix that ends with a slash.
package page
