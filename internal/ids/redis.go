package ids

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamd/streamd/internal/daemon"
)

// redisSource walks over a set, a sorted set, a hash or the keys of a database. The server keeps nothing of a walk: its cursor
// is right as long as the server runs. It finds each member that is there all the while, some of them twice.
type redisSource struct {
	c      *redis.Client
	key    string
	match  string
	prefix string
	kind   string // of the key; empty: keys of the database
	print  string
	cursor uint64
	done   bool
	all    uint64
}

func openRedis(ctx context.Context, c SourceConfig) (*redisSource, error) {
	o, err := redis.ParseURL(c.From)
	if err != nil {
		return nil, daemon.Usagef("--from: want redis://user:password@host:port/db") // the cause would show the password
	}
	if (c.RedisKey == "") == (c.RedisMatch == "") {
		return nil, daemon.Usagef("give --redis-key NAME, of a set, a sorted set or a hash, or --redis-match PATTERN of keys")
	}
	prefix, rest, star := strings.Cut(c.RedisMatch, "*")
	if c.RedisMatch != "" && (!star || rest != "" || strings.ContainsAny(prefix, `?[\`)) {
		return nil, daemon.Usagef("--redis-match %q: want text and one * at its end, which stands for the ID", c.RedisMatch)
	}
	s := &redisSource{c: redis.NewClient(o), key: c.RedisKey, match: c.RedisMatch, prefix: prefix}
	if err := s.look(ctx, o.DB); err != nil {
		return nil, errors.Join(err, s.c.Close())
	}
	return s, nil
}

// look asks what there is.
func (s *redisSource) look(ctx context.Context, db int) error {
	info, err := s.c.Info(ctx, "server").Result()
	if err != nil {
		return fmt.Errorf("redis: %w: %w", daemon.ErrNotReachable, err)
	}
	run := ""
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "run_id:"); ok {
			run = strings.TrimSpace(v)
		}
	}
	s.print = fingerprintOf("redis", "run "+run, fmt.Sprint(db), "key "+s.key, "match "+s.match)
	if s.key == "" {
		return nil // how many keys match is not known
	}
	if s.kind, err = s.c.Type(ctx, s.key).Result(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	var n int64
	switch s.kind {
	case "set":
		n, err = s.c.SCard(ctx, s.key).Result()
	case "zset":
		n, err = s.c.ZCard(ctx, s.key).Result()
	case "hash":
		n, err = s.c.HLen(ctx, s.key).Result()
	case "none":
		err = fmt.Errorf("%w: there is no key %q", daemon.ErrConfig, s.key)
	default:
		err = fmt.Errorf("%w: key %q is a %s, not a set, a sorted set or a hash", daemon.ErrConfig, s.key, s.kind)
	}
	s.all = uint64(n)
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

func (s *redisSource) fingerprint() string { return s.print }

func (s *redisSource) resume(_ context.Context, at position) error {
	s.cursor = at["cursor"]
	return nil
}

func (s *redisSource) next(ctx context.Context, take func(*entry) error) error {
	if s.done {
		return io.EOF
	}
	var page []string
	var cursor uint64
	var err error
	stride := 1
	switch s.kind {
	case "set":
		page, cursor, err = s.c.SScan(ctx, s.key, s.cursor, "", portion).Result()
	case "zset": // member, score, ...
		page, cursor, err = s.c.ZScan(ctx, s.key, s.cursor, "", portion/2).Result()
		stride = 2
	case "hash":
		page, cursor, err = s.c.HScan(ctx, s.key, s.cursor, "", portion/2).Result()
		stride = 2
	default:
		page, cursor, err = s.c.Scan(ctx, s.cursor, s.match, portion).Result()
	}
	if err != nil {
		return fmt.Errorf("redis: walk: %w: %w", daemon.ErrNotReachable, err)
	}
	for i := 0; i < len(page); i += stride {
		e := named([]byte(strings.TrimPrefix(page[i], s.prefix)), nil)
		e.where = fmt.Sprintf("%q", page[i])
		if err := take(&e); err != nil {
			return err
		}
	}
	s.cursor, s.done = cursor, cursor == 0
	return nil
}

func (s *redisSource) position() position { return position{"cursor": s.cursor} }
func (s *redisSource) total() uint64      { return s.all }
func (s *redisSource) close() error       { return s.c.Close() }
