package changelog

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MaxMetadataBytes is the longest offset metadata that String makes: far below the broker's default limit
// (offset.metadata.max.bytes, 4096), since it is kept in memory there for each partition.
const MaxMetadataBytes = 200

const (
	metadataName   = "streamd/"
	metadataFormat = 1
	maxTopicID     = 64
)

// Metadata is what is committed with an input offset: of which commit it is. Kafka's tools show it as
// text, so text it is:
//
//	streamd/1 seq=184 inc=9f3c01d2aa00417e at=2026-03-01T12:00:00.123Z topic=Zk3x...
type Metadata struct {
	Sequence    uint64
	Incarnation uint64
	CommitTime  time.Time // by the clock of the host, to the millisecond
	TopicID     string    // of the input topic; empty: not known
}

// String encodes the metadata: printable ASCII, at most MaxMetadataBytes. A topic ID that is not
// one short word is left out.
func (m Metadata) String() string {
	b := make([]byte, 0, MaxMetadataBytes)
	b = append(b, metadataName...)
	b = strconv.AppendInt(b, metadataFormat, 10)
	b = append(b, " seq="...)
	b = strconv.AppendUint(b, m.Sequence, 10)
	b = fmt.Appendf(b, " inc=%016x at=", m.Incarnation)
	b = m.CommitTime.UTC().AppendFormat(b, metadataTime)
	if isWord(m.TopicID) {
		b = append(b, " topic="...)
		b = append(b, m.TopicID...)
	}
	return string(b)
}

const metadataTime = "2006-01-02T15:04:05.000Z"

func isWord(s string) bool {
	if s == "" || len(s) > maxTopicID {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// ParseMetadata is the reverse. ErrForeign for what another program committed (mostly the empty
// string), ErrNewerFormat, or ErrCorrupt.
func ParseMetadata(s string) (Metadata, error) {
	rest, ok := strings.CutPrefix(s, metadataName)
	if !ok {
		return Metadata{}, fmt.Errorf("%w: offset metadata %q", ErrForeign, s[:min(len(s), MaxMetadataBytes)])
	}
	corrupt := func() (Metadata, error) {
		return Metadata{}, fmt.Errorf("%w: offset metadata %q", ErrCorrupt, s[:min(len(s), MaxMetadataBytes)])
	}
	version, rest, _ := strings.Cut(rest, " ")
	switch v, err := strconv.ParseUint(version, 10, 32); {
	case err != nil || v == 0:
		return corrupt()
	case v > metadataFormat:
		return Metadata{}, fmt.Errorf("%w: offset metadata in format %d, this version knows %d", ErrNewerFormat, v, metadataFormat)
	}
	var m Metadata
	fields := strings.Split(rest, " ")
	if len(s) > MaxMetadataBytes || len(fields) < 3 || len(fields) > 4 {
		return corrupt()
	}
	values := make([]string, 4)
	for i, name := range []string{"seq=", "inc=", "at=", "topic="}[:len(fields)] {
		if values[i], ok = strings.CutPrefix(fields[i], name); !ok {
			return corrupt()
		}
	}
	var errs [3]error
	m.Sequence, errs[0] = strconv.ParseUint(values[0], 10, 64)
	m.Incarnation, errs[1] = strconv.ParseUint(values[1], 16, 64)
	m.CommitTime, errs[2] = time.Parse(metadataTime, values[2])
	m.TopicID = values[3]
	if errs != [3]error{} || m.Sequence == 0 || len(fields) == 4 && !isWord(m.TopicID) {
		return corrupt()
	}
	return m, nil
}
