//go:build sinks

package sinks

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/redis"
	"github.com/streamd/streamd/sink/sinktest"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

// redisHarness is sinktest's view of a Redis server.
type redisHarness struct {
	server *dbenv.Server
	client *goredis.Client
}

func (h *redisHarness) Open(s sinktest.Spec) (sink.Target, error) {
	u, err := url.Parse(h.server.As(s.Address, "", "", ""))
	if err != nil {
		return nil, err
	}
	if s.User != "" {
		u.User = url.UserPassword(s.User, s.Password)
	}
	return redis.Open(redis.Config{URL: u.String(), Table: s.Table})
}

func (h *redisHarness) Address() string { return h.server.Address }

// Commit matches the script that writes, and no other one.
func (h *redisHarness) Commit() string { return `return 'moved'` }

func (h *redisHarness) LeftOut() map[string]string {
	return map[string]string{
		"RowRefused":  "Redis has no constraints",
		"Setup":       "Redis has no tables that could not fit",
		"Narrow":      "Redis has no types",
		"DecimalKeys": "keys are text there",
		"Appender":    "rights are of commands, not of tables",
		"Idempotent":  "the ledger needs no transaction here: the script is one",
	}
}

func (h *redisHarness) Exec(context.Context, string) error                         { return nil }
func (h *redisHarness) Type(sink.Kind) string                                      { return "" }
func (h *redisHarness) Narrow() string                                             { return "" }
func (h *redisHarness) Appender(context.Context, string, string, sink.Table) error { return nil }
func (h *redisHarness) Rewind(ctx context.Context, p sink.Partition, next record.Offset) error {
	return h.client.HSet(ctx, fmt.Sprintf("streamd_progress:%s:%d", p.Sink, p.Partition), "next", int64(next)).Err()
}
func (h *redisHarness) Kill() error { return h.server.Kill() }

func (h *redisHarness) Start(ctx context.Context) error { return h.server.Start(ctx) }

func (h *redisHarness) Reader(ctx context.Context, user, password string) error {
	return h.client.Do(ctx, "ACL", "SETUSER", user, "on", ">"+password, "~*", "+@read", "+info").Err()
}

func (h *redisHarness) ReadOnly(context.Context, string, string, bool) (bool, error) {
	return false, nil
}

func (h *redisHarness) Rows(ctx context.Context, table sink.Table) ([][]string, error) {
	var found []map[string]string
	if len(table.Key) == 0 {
		entries, err := h.client.XRange(ctx, table.Name, "-", "+").Result()
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			fields := map[string]string{}
			for k, v := range e.Values {
				fields[k], _ = v.(string)
			}
			found = append(found, fields)
		}
	} else {
		keys, err := h.client.Keys(ctx, table.Name+":*").Result()
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			fields, err := h.client.HGetAll(ctx, k).Result()
			if err != nil {
				return nil, err
			}
			found = append(found, fields)
		}
	}
	var rows [][]string
	for _, fields := range found {
		var row []string
		for _, c := range table.Columns {
			v, ok := fields[c.Name]
			if !ok {
				v = "NULL"
			} else if c.Kind == sink.Bytes {
				b, err := base64.StdEncoding.DecodeString(v)
				if err != nil {
					return nil, err
				}
				v = hex.EncodeToString(b)
			}
			row = append(row, v)
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b []string) int {
		x, errX := strconv.ParseInt(a[0], 10, 64)
		y, errY := strconv.ParseInt(b[0], 10, 64)
		if errX != nil || errY != nil {
			return cmp.Compare(a[0], b[0])
		}
		return cmp.Compare(x, y)
	})
	return rows, nil
}

// startedRedis starts a server, and removes it with the test.
func startedRedis(t *testing.T) *dbenv.Server {
	t.Helper()
	s, err := dbenv.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRedis(t *testing.T) {
	s := startedRedis(t)
	client := goredis.NewClient(&goredis.Options{Addr: s.Address})
	t.Cleanup(func() { _ = client.Close() })
	sinktest.Run(t, &redisHarness{server: s, client: client})
}
