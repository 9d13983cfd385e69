// Package web is what a streamd process shows over HTTP: its metrics, its health, its status as JSON,
// and a page for people.
//
//	/                                    the page; ?pipeline= ?step= ?q= ?tasks= choose what it shows
//	/livez  /readyz                      health; ?verbose says what is not ready, and why
//	/metrics                             Prometheus and OpenMetrics
//	/version                             the build
//	/api/v1/pipelines                    a line for each pipeline
//	/api/v1/pipelines/NAME               everything that it says of itself
//	/api/v1/pipelines/NAME/live          its rates, of about the last ten seconds
//	/api/v1/pipelines/NAME/graph|tasks|errors
//	/api/v1/events                       server-sent events: lines and rates of all pipelines, every two seconds
//
// It is read-only and answers GET and HEAD. It shows positions and counts, never keys or values of
// records, since it has no login; of IDs a hash under a key that nobody knows (processor.DuplicateStatus). All links are relative, so that the handler can be mounted below
// any prefix that ends with a slash; all assets are embedded.
//
// The page is HTML from the server, the graph and the small curves (SVG) too: all of it is there without
// JavaScript. With it, the page renews itself: each event makes it fetch its own address again and lay what
// differs over what is there, so that there is one way to render, and focus and selection stay.
//
// Rates and curves come from a history of fixed size. [Handler.Run] takes a sample every two seconds; without it
// the history begins with the first one who looks.
//
// A request reads a snapshot and never waits for a pipeline: the page works while one is stuck. A client that does
// not read loses its connection after ten seconds and holds up nobody.
//
// What it does not do: it asks nobody who he is. [Guard] in front of it does, by a token or a client certificate; TLS is the listener's.
// Without either bind it to an address that only those who may look can reach.
package web
