package ids

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/record"
)

// errEntry: an ID that cannot be imported as it is. SkipInvalid passes over it.
var errEntry = errors.New("invalid")

// entry is one seen ID. Its bytes are valid until the next one.
type entry struct {
	hash      record.Hash
	id        []byte // nil: only the hash is known
	key       []byte // nil: none
	partition int32  // negative: none
	where     string // for messages: line 17
	err       error  // errEntry: what is wrong with it
}

// named is an entry of an ID.
func named(id, key []byte) entry {
	e := entry{id: id, key: key, partition: -1}
	if e.id == nil {
		e.id = []byte{}
	}
	if err := record.BytesID(id).Check(); err != nil {
		e.err = fmt.Errorf("%w: %w", errEntry, err)
		return e
	}
	e.hash = record.BytesID(id).Hash()
	return e
}

// position says how far a source was read, by names of its own: what the commit records keep.
type position map[string]uint64

// source is where IDs come from. It is read in portions, and goes on behind any of them after a restart.
type source interface {
	// fingerprint differs where a position of one would mean nothing in the other.
	fingerprint() string
	// resume goes on at a position. It is called once, before next; nil: from the start.
	resume(ctx context.Context, at position) error
	// next hands over one portion, of at most portion entries; io.EOF behind the last one.
	next(ctx context.Context, take func(*entry) error) error
	// position is behind the portions that were handed over.
	position() position
	// total is about how many entries there are; 0: not known.
	total() uint64
	close() error
}

// portion is how many entries are handed over at once. Commits fall between portions.
const portion = 2000

// SourceConfig says where IDs come from.
type SourceConfig struct {
	// From is redis://..., rediss://..., csv:FILE, csv:- for standard input, or topic:NAME.
	From string
	// RedisKey is a set, a sorted set or a hash, whose members or fields are the IDs; RedisMatch instead a pattern of keys, as
	// seen:*, whose part behind the text before the * is the ID.
	RedisKey, RedisMatch string
	// IDColumns and KeyColumn of a CSV file are names, of its first line, or numbers from 1 on. Several columns make a composite
	// ID, as the list of the step's id does. Default: column 1.
	IDColumns []string
	KeyColumn string
	// TopicID says where the ID of a record stands: key (default), value, or header:NAME.
	TopicID string
	Stdin   io.Reader
}

// open opens the source.
func (c SourceConfig) open(ctx context.Context, cluster broker.Cluster) (source, error) {
	kind, rest, _ := strings.Cut(c.From, ":")
	if kind != "csv" && (len(c.IDColumns) > 0 || c.KeyColumn != "") {
		return nil, daemon.Usagef("--id-column and --key-column are for --from csv:FILE")
	}
	if kind != "topic" && c.TopicID != "" {
		return nil, daemon.Usagef("--topic-id is for --from topic:NAME")
	}
	if kind != "redis" && kind != "rediss" && (c.RedisKey != "" || c.RedisMatch != "") {
		return nil, daemon.Usagef("--redis-key and --redis-match are for --from redis://HOST")
	}
	switch {
	case kind == "redis" || kind == "rediss":
		return openRedis(ctx, c)
	case kind == "csv" && rest != "":
		return openCSV(rest, c)
	case kind == "topic" && rest != "":
		return openTopic(ctx, cluster, rest, c)
	}
	return nil, daemon.Usagef("--from: want redis://HOST:PORT/DB, csv:FILE or topic:NAME") // without its text, which may hold a password
}

// fingerprintOf is a short name for what makes a source the same. Parts are kept apart by their lengths, as in a composite ID; but one may be
// empty here, where that is empty as a whole.
func fingerprintOf(parts ...string) string {
	var b []byte
	for _, p := range append(parts, "1") {
		b = append(binary.AppendUvarint(b, uint64(len(p))), p...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
