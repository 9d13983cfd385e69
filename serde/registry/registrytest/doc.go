// Package registrytest is a schema registry in the process of a test: the part of Confluent's API that streamd uses, on
// 127.0.0.1. It checks no compatibility by itself: a test says what it is to answer.
package registrytest
