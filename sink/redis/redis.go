package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// DefaultTimeout bounds a check, a claim, a batch.
const DefaultTimeout = time.Minute

// Config says where and what to write.
type Config struct {
	// URL as redis://user:password@host:6379/0, rediss:// with TLS.
	URL string
	// Table: with a key each row is a hash named TABLE:KEY1:KEY2 whose fields are the columns; a null is a
	// field that is not there, and colons and percent signs in a key are percent-encoded. Without a key each
	// row is an entry of the stream TABLE.
	Table sink.Table
	// Progress is the prefix of the keys that hold the offsets. Default: streamd_progress.
	Progress string
	// Timeout bounds each check, claim and batch. Default: DefaultTimeout.
	Timeout time.Duration
}

// Open makes a target. It does not connect.
func Open(c Config) (sink.Target, error) {
	o, err := redis.ParseURL(c.URL)
	if err != nil {
		return nil, errors.New("redis: the URL: want redis://user:password@host:port/db") // the cause would show the password
	}
	if err := c.Table.Validate(); err != nil {
		return nil, err
	}
	if c.Progress == "" {
		c.Progress = "streamd_progress"
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	// A command whose answer is missing must not be sent again behind our back.
	o.MaxRetries = -1
	// Timeout is the bound, and not the client's own of a few seconds.
	o.ContextTimeoutEnabled = true
	if o.ReadTimeout == 0 {
		o.ReadTimeout = -1
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = -1
	}
	return &target{c: redis.NewClient(o), cfg: c, keyAt: c.Table.KeyColumns()}, nil
}

type target struct {
	c     *redis.Client
	cfg   Config
	keyAt []int
}

func (t *target) Class() sink.Class { return sink.Ledger }
func (t *target) Close() error      { return t.c.Close() }

// Check looks for what would break the promise: a cluster, where the keys of one script lie on several nodes,
// a replica, a key of another kind, and a right that is missing.
func (t *target) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	info, err := t.c.Info(ctx).Result()
	if err != nil {
		return t.setup("ask the server", err)
	}
	fields := parse(info)
	if fields["cluster_enabled"] == "1" {
		return &sink.SetupError{Err: errors.New("redis: this is a cluster: a batch and its offset would lie on several nodes"), Remedy: "use a server that holds all keys, or a plain sink"}
	}
	if fields["role"] == "slave" {
		return &sink.SetupError{Err: errors.New("redis: this server is a replica"), Remedy: "connect to the primary"}
	}
	if policy := fields["maxmemory_policy"]; fields["maxmemory"] != "0" && strings.HasPrefix(policy, "allkeys-") {
		return &sink.SetupError{
			Err:    fmt.Errorf("redis: with maxmemory-policy %s this server forgets rows, and how far they go, when its memory is full", policy),
			Remedy: "set it to noeviction",
		}
	}
	if len(t.keyAt) == 0 {
		kind, err := t.c.Type(ctx, t.cfg.Table.Name).Result()
		if err != nil {
			return t.setup("look at the stream", err)
		}
		if kind != "none" && kind != "stream" {
			return &sink.SetupError{Err: fmt.Errorf("redis: key %q is a %s, not a stream", t.cfg.Table.Name, kind), Remedy: "name another table"}
		}
	}
	// The script on nothing: it is refused where scripts or the keys are.
	probe := t.cfg.Progress + ":check"
	if err := t.c.Eval(ctx, "redis.call('HSET', KEYS[1], 'probe', '1'); return redis.call('DEL', KEYS[1])", []string{probe}).Err(); err != nil {
		return t.setup("try the rights", err)
	}
	return nil
}

// parse reads the answer of INFO.
func parse(info string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[k] = v
		}
	}
	return fields
}

// setup says what an error means that is no row's.
func (t *target) setup(what string, err error) error {
	wrapped := fmt.Errorf("redis: %s: %w", what, err)
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) {
		return wrapped
	}
	text := err.Error()
	has := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(text, p) || strings.Contains(text, " "+p) })
	}
	switch {
	case has("NOPERM", "NOAUTH", "WRONGPASS"):
		return &sink.SetupError{Err: wrapped, Rights: true, Remedy: "the user needs EVAL, HGET, HSET, DEL, XADD, TYPE and INFO on " + t.cfg.Table.Name + "* and " + t.cfg.Progress + "*"}
	case has("READONLY"):
		return &sink.SetupError{Err: wrapped, Remedy: "this server only reads: connect to the primary"}
	case has("WRONGTYPE"):
		return &sink.SetupError{Err: wrapped, Remedy: "a key of the table is used for something else"}
	}
	return wrapped // LOADING, OOM, MISCONF, a lost connection: may heal
}

// claimScript bumps the fence and returns topic, next offset and fence.
const claimScript = `
local p = KEYS[1]
if redis.call('EXISTS', p) == 0 then redis.call('HSET', p, 'topic', ARGV[1], 'next', '-1', 'fence', '0') end
local f = redis.call('HINCRBY', p, 'fence', 1)
return {redis.call('HGET', p, 'topic'), redis.call('HGET', p, 'next'), tostring(f)}`

// writeScript: ARGV = fence, expected next, new next, then for each row: operation, number of arguments, the
// arguments. The rows' keys are made here, as a server without cluster mode allows.
const writeScript = `
local p = KEYS[1]
if redis.call('HGET', p, 'fence') ~= ARGV[1] then return 'fenced' end
if redis.call('HGET', p, 'next') ~= ARGV[2] then return 'moved' end
local i = 4
while i <= #ARGV do
  local op, n = ARGV[i], tonumber(ARGV[i+1])
  local key = ARGV[i+2]
  if op == 'put' then
    redis.call('DEL', key)
    redis.call('HSET', key, unpack(ARGV, i+3, i+1+n))
  elseif op == 'del' then
    redis.call('DEL', key)
  else
    redis.call('XADD', key, '*', unpack(ARGV, i+3, i+1+n))
  end
  i = i + 2 + n
end
redis.call('HSET', p, 'next', ARGV[3])
return 'ok'`

// Claim bumps the fence of the partition and reads where its rows end.
func (t *target) Claim(ctx context.Context, p sink.Partition) (sink.Writer, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	w := &writer{t: t, p: p, key: t.cfg.Progress + ":" + escape(p.Sink) + ":" + strconv.Itoa(int(p.Partition))}
	answer, err := t.c.Eval(ctx, claimScript, []string{w.key}, p.TopicID).StringSlice()
	if err != nil {
		return nil, t.setup("claim", err)
	}
	if len(answer) != 3 {
		return nil, fmt.Errorf("redis: claim: %d values in the answer", len(answer))
	}
	next, err := strconv.ParseInt(answer[1], 10, 64)
	if err != nil {
		return nil, &sink.SetupError{Err: fmt.Errorf("redis: the offset in %q is %q", w.key, answer[1]), Remedy: "somebody else wrote to this key"}
	}
	if answer[0] != p.TopicID {
		return nil, &sink.SetupError{
			Err: fmt.Errorf("redis: the progress of sink %q, partition %d, is offset %d of topic %s with ID %s; the topic now has ID %s: it was deleted and made anew",
				p.Sink, p.Partition, next, p.Topic, answer[0], p.TopicID),
			Remedy: "if the rows of the old topic may stay, delete the key " + w.key,
		}
	}
	w.next, w.known, w.fence = record.Offset(next), next >= 0, answer[2]
	return w, nil
}

type writer struct {
	t     *target
	p     sink.Partition
	key   string
	fence string
	next  record.Offset
	known bool
	done  bool // failed: what the server has is not known
}

func (w *writer) Next() (record.Offset, bool) { return w.next, w.known }
func (w *writer) Close() error                { return nil } // the pool's connections are the target's

func (w *writer) Write(ctx context.Context, b sink.Batch) error {
	t := w.t
	if w.done {
		return errors.New("redis: the writer has failed before: claim the partition again")
	}
	for i, r := range b.Rows {
		if err := t.cfg.Table.Check(r); err != nil {
			return &sink.RowError{Index: i, Err: err}
		}
	}
	if w.known && b.First < w.next {
		return fmt.Errorf("redis: a batch from offset %d, the target has all up to %d", b.First, w.next)
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	if err := w.script(ctx, b.Rows, b.Next); err != nil {
		w.done = true
		return err
	}
	return nil
}

// script writes the batch in one script, so that no reader sees a part of it. The server serves nobody else
// meanwhile, about a millisecond for a thousand rows.
func (w *writer) script(ctx context.Context, rows []sink.Row, next record.Offset) error {
	t := w.t
	before := int64(-1)
	if w.known {
		before = int64(w.next)
	}
	args := []any{w.fence, before, int64(next)}
	for _, r := range rows {
		args = t.append(args, r)
	}
	answer, err := t.c.Eval(ctx, writeScript, []string{w.key}, args...).Text()
	if err != nil {
		return t.setup("write rows", err)
	}
	switch answer {
	case "ok":
		w.next, w.known = next, true
		return nil
	case "fenced":
		return fmt.Errorf("redis: sink %q, partition %d: %w", w.p.Sink, w.p.Partition, sink.ErrFenced)
	}
	return fmt.Errorf("redis: sink %q, partition %d: the offset in the server is not %d", w.p.Sink, w.p.Partition, before)
}

// append adds a row as the script reads it.
func (t *target) append(args []any, r sink.Row) []any {
	if r.Delete {
		return append(args, "del", 1, t.rowKey(r))
	}
	op, key := "put", t.cfg.Table.Name
	if len(t.keyAt) > 0 {
		key = t.rowKey(r)
	} else {
		op = "add"
	}
	at := len(args) + 1
	args = append(args, op, 0, key)
	for i, c := range t.cfg.Table.Columns {
		if v := r.Values[i]; v != nil {
			args = append(args, c.Name, sink.ValueText(v))
		}
	}
	if len(args) == at+2 { // a stream's entry has a field at least
		args = append(args, t.cfg.Table.Columns[0].Name, "")
	}
	args[at] = len(args) - at - 1
	return args
}

// rowKey is TABLE:KEY1:KEY2.
func (t *target) rowKey(r sink.Row) string {
	parts := []string{t.cfg.Table.Name}
	for _, i := range t.keyAt {
		parts = append(parts, escape(sink.ValueText(r.Values[i])))
	}
	return strings.Join(parts, ":")
}

func escape(s string) string { return strings.NewReplacer("%", "%25", ":", "%3A").Replace(s) }
