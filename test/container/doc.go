// Package container starts the image of deploy/docker without a builder and without an engine: it does what the Dockerfile says,
// line by line as BuildKit's parser reads it, and gives the outcome to crun, with the settings that deploy/compose.yaml has for
// streamd as compose's own library reads them. A line of either file that this package does not know is an error, so that
// nothing in them is passed over.
//
// The base images are not fetched: for golang stands a copy-on-write view of this machine with its Go, for distroless a folder
// with what streamd could look for in it. Kafka and containers share a network of their own that has nothing but a loopback.
//
// It needs root, Linux, crun and a Kafka. Run it with `make container-test`.
package container
