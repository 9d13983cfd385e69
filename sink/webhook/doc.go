// Package webhook is a target of package sink: rows are sent to an HTTP address, one to a request or many, as JSON.
//
// Each row has a key that never changes: sink, ID of the sink's topic, partition and offset. A request whose answer is lost is sent again with
// it, and so are, after a crash, rows that had been confirmed already. If the receiver does nothing for a key that it has seen, the class is
// idempotent; else it is plain, at least once.
//
//	one row to a request    Idempotency-Key: "KEY" and the row as an object
//	many                    [{"idempotency_key": "KEY", "row": {...}}, ...]; the key of the whole is in the header. It is another one when the
//	                        rows are grouped anew after a crash: the receiver goes by the rows' keys.
//
// What is tried again: a broken connection, 408, 409 (the same key is being worked on), 425, 429, and 5xx, with growing pauses, and not before what
// Retry-After asks for. What is not: 401, 403, 404, 405, 407 and redirects, which are errors of the setup; any other answer is the row's fault and
// goes by its policy. Rows that were confirmed are not sent again by the same process when a later one of their batch fails.
//
// It does not follow redirects and uses no proxy. Credentials, headers, and path and query of the address stand in no error.
package webhook
