package dedup

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
)

// Defaults of [Config].
const (
	DefaultExpectedIDs       = 1 << 20
	DefaultFalsePositiveRate = 0.001
)

const (
	// shares is how many generations cover the retention: an ID may live 1/shares longer than asked for.
	shares = 8
	// minGenerationIDs keeps small operators from rotating every few records: 32k entries are 700 KB.
	minGenerationIDs = 32 << 10
	// openShare bounds the exact share: the open generation is at most 1/openShare of the others together.
	// f*22 + (1-f)*1.8 bytes an ID stay below 6 up to f = 1/5.
	openShare = 4
	// payloadBytes is the size of a payload's hash behind an ID's hash.
	payloadBytes = 8
	// maxBlockBytes keeps a block far below Kafka's max.message.bytes (1 MiB) and below the size from
	// which the local log would put it aside.
	maxBlockBytes = 512 << 10
	// minFalsePositiveRate needs 30 hash functions.
	minFalsePositiveRate = 1e-9
	maxFalsePositiveRate = 0.5
)

// Config says what one operator remembers.
type Config struct {
	// Retention is how long an ID is remembered, in stream time: at least that, at most 9/8 of it.
	// From 1 s up; no default.
	Retention time.Duration
	// ExpectedIDs is how many distinct IDs one task sees within the retention. More are no error: only
	// memory and speed depend on it. Default 1,048,576.
	ExpectedIDs int
	// FalsePositiveRate is the share of new IDs for which the filter of one generation says "maybe" and a
	// read from the log follows. The filters of all generations together say it up to about ten times as often.
	// Default 0.001 (1.8 bytes an ID); from 1e-9 to 0.5.
	FalsePositiveRate float64
	// Payload keeps 8 bytes of payload hash with each ID, so that the same ID with another payload is
	// found (Conflict). It costs 8 bytes an ID on disk and in the changelog.
	Payload bool
}

// Validate returns every problem of the configuration, joined. Zero values stand for the defaults.
func (c Config) Validate() error {
	var errs []error
	if c.Retention < time.Second {
		errs = append(errs, fmt.Errorf("dedup: retention %v is too short, at least 1s", c.Retention))
	}
	if c.ExpectedIDs < 0 {
		errs = append(errs, fmt.Errorf("dedup: expected IDs %d is negative", c.ExpectedIDs))
	}
	// The negated form catches NaN too.
	if r := c.FalsePositiveRate; r != 0 && !(r >= minFalsePositiveRate && r <= maxFalsePositiveRate) {
		errs = append(errs, fmt.Errorf("dedup: false positive rate %v is not between %v and %v", r, minFalsePositiveRate, maxFalsePositiveRate))
	}
	return errors.Join(errs...)
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	if c.ExpectedIDs == 0 {
		c.ExpectedIDs = DefaultExpectedIDs
	}
	if c.FalsePositiveRate == 0 {
		c.FalsePositiveRate = DefaultFalsePositiveRate
	}
	return c
}

// entryBytes is the size of one entry under this configuration.
func (c Config) entryBytes() int {
	if c.Payload {
		return record.HashBytes + payloadBytes
	}
	return record.HashBytes
}

// generationIDs is the least number of IDs that ends a generation before its time.
func (c Config) generationIDs() int { return max(c.ExpectedIDs/shares, minGenerationIDs) }
