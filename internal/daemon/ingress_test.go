package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/pipeline"
)

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

// lines collects a log, and lets one wait for a line of it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await returns a field of the first line with this message.
func (l *lines) await(t *testing.T, message, field string) string {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(l.String()) {
			var entry map[string]any
			if json.Unmarshal([]byte(line), &entry) == nil && entry["msg"] == message {
				return fmt.Sprint(entry[field])
			}
		}
	}
	t.Fatalf("no %q in\n%s", message, l)
	return ""
}

// ran is a process of one pipeline file.
type ran struct {
	log  *lines
	wait func() error // until it ends by itself
	stop func() error
}

func runFile(t *testing.T, file, dir string) *ran {
	t.Helper()
	ps, err := Load([]string{file}, LoadConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r := &ran{log: &lines{}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	cfg := RunConfig{
		Pipelines: []*pipeline.Pipeline{ps[0]}, DataDir: dir, HTTP: Off, Admin: Off, Startup: patience, Shutdown: patience,
		Log: slog.New(slog.NewJSONHandler(r.log, nil)),
	}
	go func() { ended <- Run(ctx, cfg) }()
	r.stop = func() error {
		cancel()
		return r.wait()
	}
	r.wait = sync.OnceValue(func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(2 * patience):
			return fmt.Errorf("it does not end:\n%s", r.log)
		}
	})
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// outputs reads n records of a topic, committed ones, and fails if there are others behind them.
func outputs(t *testing.T, address, topic string, n int) (values []string) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(values) < n && ctx.Err() == nil {
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

func broker1(t *testing.T, topics ...string) string {
	t.Helper()
	var all []embedded.Topic
	for _, name := range topics {
		all = append(all, embedded.Topic{Name: name, Partitions: 2})
	}
	b, err := embedded.Start(embedded.Config{Topics: all})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b.Address()
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// From a request to the output of a pipeline: the topic is made, the token is asked for, and a request that is sent again counts once.
func TestHTTPSource(t *testing.T) {
	address := broker1(t, "out")
	dir := t.TempDir()
	token := writeFile(t, filepath.Join(dir, "token"), strings.Repeat("t", 32))
	file := writeFile(t, filepath.Join(dir, "p.yaml"), fmt.Sprintf(`version: 1
name: posted
kafka: {brokers: [%q]}
sources:
  bills: {topic: bills.in, http: {address: "127.0.0.1:0", path: /bills, token_file: %q}}
steps:
  - {name: unique, dedup: {id: 'headers["record-id"]', retention: 1d, scope: partition}}
  - {name: publish, to: {topic: out}}
`, address, token))
	p := runFile(t, file, filepath.Join(dir, "data"))
	url := p.log.await(t, "source listening", "address")
	post := func(body, key, token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	if code := post(`[1]`, "a", "wrong"); code != http.StatusUnauthorized {
		t.Errorf("without the token: %d", code)
	}
	secret := strings.Repeat("t", 32)
	for _, r := range [][2]string{{`[1,2]`, "a"}, {`[1,2]`, "a"}, {`3`, "b"}, {`[1,2]`, "a"}} {
		if code := post(r[0], r[1], secret); code != http.StatusOK {
			t.Fatalf("%v: %d", r, code)
		}
	}
	got := map[string]int{}
	for _, v := range outputs(t, address, "out", 3) {
		got[v]++
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got["1"] != 1 || got["2"] != 1 || got["3"] != 1 {
		t.Errorf("%v", got)
	}
	// The last commit is through: whatever came twice would be there now.
	if all := outputs(t, address, "out", 3); len(all) != 3 {
		t.Errorf("%v", all)
	}
}

// What is wrong with a source ends the start, with what to mend.
func TestSourceRefused(t *testing.T) {
	address := broker1(t, "out")
	dir := t.TempDir()
	short := writeFile(t, filepath.Join(dir, "token"), "short")
	for _, c := range []struct{ fields, want string }{
		{`address: "127.0.0.1:0", token_file: ` + short, `source "bills": token_file`},
		{`address: "127.0.0.1:0", token_file: ` + filepath.Join(dir, "none"), `source "bills": token_file`},
		{`address: "127.0.0.1:0", cert_file: none, key_file: none`, `source "bills": cert_file, key_file`},
		{`address: "192.0.2.1:9", token_file: ` + short, "token_file"},
		{`address: "192.0.2.1:9"`, "192.0.2.1:9"},
	} {
		file := writeFile(t, filepath.Join(dir, "p.yaml"), fmt.Sprintf("version: 1\nname: posted\nkafka: {brokers: [%q]}\nsources:\n  bills: {topic: in, http: {%s}}\n"+
			"steps:\n  - {name: publish, to: {topic: out}}\n", address, c.fields))
		p := runFile(t, file, filepath.Join(dir, "data"))
		if err := p.wait(); err == nil || !strings.Contains(err.Error(), c.want) || ExitCode(err) != ExitConfig {
			t.Errorf("%s: %v (%d)", c.fields, err, ExitCode(err))
		}
	}
}

// A topic that takes only the shortest records would have every line of a source be too long.
func TestSourceOfATinyTopic(t *testing.T) {
	for _, kind := range []string{`http: {address: "127.0.0.1:0"}`, `tcp: {address: "127.0.0.1:0"}`, `file: {paths: ["none*"], on_long_line: skip}`} {
		address := broker1(t, "out")
		c, err := kgo.NewClient(kgo.SeedBrokers(address))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		req, topic := kmsg.NewPtrCreateTopicsRequest(), kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "in", 1, 1
		topic.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "max.message.bytes", Value: kmsg.StringPtr("4096")}}
		req.Topics = append(req.Topics, topic)
		if _, err := req.RequestWith(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		file := writeFile(t, filepath.Join(dir, "p.yaml"), fmt.Sprintf("version: 1\nname: posted\nkafka: {brokers: [%q]}\nsources:\n  bills: {topic: in, %s}\n"+
			"steps:\n  - {name: publish, to: {topic: out}}\n", address, kind))
		if err := runFile(t, file, filepath.Join(dir, "data")).wait(); err == nil || !strings.Contains(err.Error(), "max.message.bytes") || ExitCode(err) != ExitConfig {
			t.Errorf("%s: %v (%d)", kind, err, ExitCode(err))
		}
	}
}
