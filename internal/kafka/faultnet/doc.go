// Package faultnet is a dialer for tests that knows Kafka's frames. It loses a request, loses the
// answer to one that was handled, keeps a request back and delivers it transactions later, or answers
// an error code in the broker's place: on kfake and on real Kafka alike, which can do none of these.
//
// Only plain connections are understood: put it below no TLS.
package faultnet
