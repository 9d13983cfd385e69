package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
)

// Limits of a tap.
const (
	tapPath    = "/api/v1/pipelines/{name}/tap"
	tapTimeout = 10 * time.Second // for a client to take one record
	maxTapLine = 1 << 20          // more than a record with its cut payload takes
	// tapQuiet is how long nothing may pass before an empty line says that the process is still there.
	tapQuiet = 5 * time.Second
)

// TapQuery is what a client asks a tap for.
type TapQuery struct {
	Pipeline string // empty: the only one
	processor.TapConfig
	HasKey bool
}

func (q TapQuery) values() url.Values {
	v := url.Values{"step": {q.Step}, "result": q.Results}
	if q.HasKey {
		v.Set("key", string(q.Key))
	}
	if q.ID != "" {
		v.Set("id", string(q.ID))
	}
	for name, n := range map[string]int{"rate": q.Rate, "every": q.Every} {
		if n != 0 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	return v
}

// tapConfig reads the query of a request.
func tapConfig(v url.Values) (processor.TapConfig, error) {
	c := processor.TapConfig{Step: v.Get("step"), Results: v["result"], ID: record.ID(v.Get("id"))}
	if v.Has("key") {
		c.Key = []byte(v.Get("key"))
	}
	for name, n := range map[string]*int{"rate": &c.Rate, "every": &c.Every} {
		text := v.Get(name)
		if text == "" {
			continue
		}
		var err error
		if *n, err = strconv.Atoi(text); err != nil || *n < 1 {
			return c, fmt.Errorf("%s %q is not a number above zero", name, text)
		}
	}
	return c, nil
}

// tapHandler answers with a line of JSON for each record, until the client goes away.
func tapHandler(members []member) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		app := (*processor.App)(nil)
		for _, m := range members {
			if m.p.Name == r.PathValue("name") {
				app = m.app
			}
		}
		if app == nil {
			http.Error(w, fmt.Sprintf("no pipeline is called %q", r.PathValue("name")), http.StatusNotFound)
			return
		}
		c, err := tapConfig(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s := &tapStream{w: w, c: http.NewResponseController(w)}
		if err := s.run(r.Context(), app, c); errors.Is(err, processor.ErrTap) {
			http.Error(w, strings.TrimPrefix(err.Error(), processor.ErrTap.Error()+": "), http.StatusBadRequest)
		}
	}
}

// tapStream is the answer to one client.
type tapStream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

func (s *tapStream) run(ctx context.Context, app *processor.App, c processor.TapConfig) error {
	c.Opened = func() error {
		s.w.Header().Set("Content-Type", "application/x-ndjson")
		s.w.Header().Set("Cache-Control", "no-store")
		return s.line(nil)
	}
	c.Quiet = tapQuiet
	return app.Tap(ctx, c, func(t *processor.Tapped) error {
		if t.Position == "" && t.Missed == 0 {
			return s.line(nil)
		}
		data, err := json.Marshal(t)
		if err != nil {
			return err
		}
		return s.line(data)
	})
}

func (s *tapStream) line(data []byte) error {
	// The server's limit is for short answers.
	_ = s.c.SetWriteDeadline(time.Now().Add(tapTimeout))
	if _, err := s.w.Write(append(data, '\n')); err != nil {
		return err
	}
	return s.c.Flush()
}

// Tap calls fn for records that pass a step of the process, until ctx ends (nil), fn returns an error, or the process ends it. opened
// is called when the tap is open.
func (c *Client) Tap(ctx context.Context, q TapQuery, opened func(), fn func(processor.Tapped) error) error {
	if !strings.HasPrefix(c.address, "unix:") {
		return Usagef("a tap shows payloads, which pass the admin socket only: --addr unix:PATH, or --data-dir")
	}
	if q.Pipeline == "" {
		list, err := c.Pipelines(ctx)
		if err != nil {
			return err
		}
		if len(list) != 1 {
			return Usagef("the process runs %d pipelines: name one by --pipeline", len(list))
		}
		q.Pipeline = list[0].Name
	}
	path := strings.Replace(tapPath, "{name}", url.PathEscape(q.Pipeline), 1) + "?" + q.values().Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	endless := *c.http
	endless.Timeout = 0
	resp, err := endless.Do(req)
	if err != nil {
		return c.absent(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if err != nil || len(text) == 0 {
			return fmt.Errorf("%s: %s for a tap", c.address, resp.Status)
		}
		return Usagef("%s", strings.TrimSpace(string(text)))
	}
	opened()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxTapLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var t processor.Tapped
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return fmt.Errorf("%s: a tapped record is not what streamd says: %w", c.address, err)
		}
		if err := fn(t); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: the tap ended: %w: %w", c.address, ErrNotReachable, err)
	}
	return fmt.Errorf("%s: the process has ended the tap: %w", c.address, ErrNotReachable)
}
