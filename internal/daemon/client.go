package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/web"
)

// maxAnswer bounds what a client reads: the other side may be anything.
const maxAnswer = 16 << 20

// AdminAddress is where the process of a data directory answers.
func AdminAddress(dataDir string) string { return "unix:" + filepath.Join(dataDir, "admin.sock") }

// socketPath takes the path out of unix:PATH.
func socketPath(address string) (string, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || path == "" {
		return "", Usagef("address %q: want unix:PATH", address)
	}
	return path, nil
}

// Client asks a running process.
type Client struct {
	address string
	base    string
	http    *http.Client
}

// NewClient makes a client of unix:PATH or http://HOST:PORT.
func NewClient(address string) (*Client, error) {
	c := &Client{address: address, base: strings.TrimSuffix(address, "/"), http: &http.Client{Timeout: 10 * time.Second}}
	if strings.HasPrefix(address, "unix:") {
		path, err := socketPath(address)
		if err != nil {
			return nil, err
		}
		c.base = "http://streamd"
		c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
		return c, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, Usagef("address %q is neither unix:PATH nor http://HOST:PORT", address)
	}
	return c, nil
}

// Get reads a JSON answer into v.
func (c *Client) Get(ctx context.Context, path string, v any) error {
	body, err := c.Read(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: the answer to %s is not what streamd says: %w", c.address, path, err)
	}
	return nil
}

// Read returns the body of an answer with status 200.
func (c *Client) Read(ctx context.Context, path string) ([]byte, error) {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if connected.Load() && os.IsTimeout(err) {
			return nil, fmt.Errorf("%s: %w within %v: the process is there, but is stopped, frozen or short of CPU", c.address, ErrNoAnswer, c.http.Timeout)
		}
		return nil, c.absent(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s: reading the answer to %s: %w", c.address, path, err)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		if strings.Contains(strings.Join(resp.Header.Values("WWW-Authenticate"), " "), web.WrongToken) {
			return nil, fmt.Errorf("%s: %w: the token (--token-file) is not the one that it asks for (its --http-token-file)", c.address, ErrDenied)
		}
		return nil, fmt.Errorf("%s: %w: it asks for a token (--token-file) or a client certificate (--cert-file, --key-file)", c.address, ErrDenied)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s for %s", c.address, resp.Status, path)
	}
	return body, nil
}

// absent says that nobody answers, and what to look at.
func (c *Client) absent(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the made-up host of a socket
	}
	remedy := "is it the --http address of a process that runs?"
	if strings.HasPrefix(c.address, "unix:") {
		remedy = "does it run, and with this data directory (--data-dir, or --addr with its --admin or --http)? The socket is its user's alone"
	}
	return fmt.Errorf("no streamd at %s: %w: %w; %s", c.address, ErrNotReachable, err, remedy)
}

// Pipelines returns a line for each pipeline of the process.
func (c *Client) Pipelines(ctx context.Context) ([]web.Summary, error) {
	var answer struct {
		Pipelines []web.Summary `json:"pipelines"`
	}
	err := c.Get(ctx, "/api/v1/pipelines", &answer)
	return answer.Pipelines, err
}

// WriteStatus prints the table of the status command.
func WriteStatus(w io.Writer, list []web.Summary, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PIPELINE\tSTATE\tTASKS\tLAG\tDUPLICATES\tCOMMITS\tABORTS\tLAST COMMIT")
	for _, s := range list {
		last := "-"
		if !s.LastCommit.IsZero() {
			last = now.Sub(s.LastCommit).Truncate(100*time.Millisecond).String() + " ago"
		}
		fmt.Fprintf(t, "%s\t%s\t%d/%d\t%d\t%d\t%d\t%d\t%s\n", s.Name, s.State, s.TasksRunning, s.Tasks, s.Lag, s.Duplicates, s.Committed, s.Aborted, last)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range list {
		if s.Reason != "" {
			if _, err := fmt.Fprintf(w, "%s: %s\n", s.Name, s.Reason); err != nil {
				return err
			}
		}
		for _, x := range s.Sources {
			if err := writeSource(w, s.Name, x, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeSource writes the line of a source outside of Kafka.
func writeSource(w io.Writer, name string, x ingress.Status, now time.Time) error {
	line := fmt.Sprintf("%s: source %s (%s %s): %d records, refused: %s; %s", name, x.Name, x.Kind, x.Where, x.Records, web.SourceRefused(x), web.SourcePosition(x, now))
	if x.Waits != "" {
		line += "; waits for " + x.Waits
	}
	if last := web.SourceError(x, now); last != "" {
		line += "; last error " + last
	}
	_, err := fmt.Fprintln(w, plain(line))
	return err
}

// NotReady returns an error that names the pipelines that do not run all their tasks, nil if none.
func NotReady(list []web.Summary) error {
	var not []string
	for _, s := range list {
		if !s.Ready {
			not = append(not, fmt.Sprintf("%s is %s", s.Name, s.State))
		}
	}
	if len(not) > 0 {
		return fmt.Errorf("not ready: %s", strings.Join(not, ", "))
	}
	return nil
}
