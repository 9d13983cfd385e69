//go:build race && !bubble

package synctest

const raceDetector = true
