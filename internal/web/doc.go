// Package web is what a streamd process shows over HTTP: its metrics, its health, its status as JSON,
// and a page for people.
//
//	/                                    the page
//	/livez  /readyz                      health; ?verbose says what is not ready, and why
//	/metrics                             Prometheus and OpenMetrics
//	/version                             the build
//	/api/v1/pipelines                    a line for each pipeline
//	/api/v1/pipelines/NAME               everything that it says of itself
//	/api/v1/pipelines/NAME/graph|tasks|errors
//
// It is read-only and answers GET and HEAD. It shows positions and counts, never keys or values of
// records, since it has no login. All links are relative, so that the handler can be mounted below
// any prefix; all assets are embedded, and the page runs no script.
//
// A request reads a snapshot and never waits for a pipeline: the page works while one is stuck.
//
// What it does not do: it has no TLS and no authentication. Bind it to an address that only those
// who may look can reach, or put a proxy in front.
package web
