package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/serde"
)

// Config says how a registry is reached, and bounds what it may send.
type Config struct {
	// URLs are the addresses of the registry, tried in this order, from the one that answered last. At least one.
	URLs []string
	// Username and Password are for basic authentication; none if both are empty.
	Username, Password string
	// Token is for bearer authentication, and TokenFile a file that holds one and is read with each request. At most one of them, and
	// none beside a user.
	Token, TokenFile string
	// TLS returns the configuration of a connection to a host, for https. nil: the system's roots.
	TLS func(host string) (*tls.Config, error)
	// Timeout bounds one request, the answer included. Default 5 s. What a schema needs as a whole, with all that it refers to and all
	// addresses that are tried, is given up after four times as long.
	Timeout time.Duration
	// MaxSchemas is how many schemas are kept. With one more all are forgotten and read again when needed. Default 1,000.
	MaxSchemas int
	// MaxSchemaBytes bounds one schema together with those that it refers to. Default 1 MiB.
	MaxSchemaBytes int
	// Now is the clock for waits between requests that fail. Default time.Now.
	Now func() time.Time
}

const (
	defaultTimeout     = 5 * time.Second
	defaultSchemas     = 1000
	defaultSchemaBytes = 1 << 20
	// firstPause and longestPause are how long nothing is asked after a request that failed: doubled each time.
	firstPause, longestPause = 250 * time.Millisecond, 10 * time.Second
	// unknownAfter is how often an ID that the registry does not know is asked for before the value is to blame: who has just written it may
	// have asked another member of the registry, which is ahead. The pauses between are firstPause, doubled each time: 1.75 s in all.
	unknownAfter = 4
	// unknownFor is how long such an ID is not asked for again then.
	unknownFor = 10 * time.Second
	// wholeLookup is how many times Timeout all requests for one schema may take together: whoever waits for it does nothing else.
	wholeLookup = 4
	maxToken    = 64 << 10
)

// ErrDenied is the answer of a registry that does not accept the credentials. It is also [serde.ErrUnavailable].
var ErrDenied = errors.New("the schema registry does not accept the credentials")

// Client asks a schema registry. It is safe for concurrent use. It holds no goroutine and nothing that must be closed.
type Client struct {
	cfg  Config
	http *http.Client

	asking sync.Mutex // held over a request, so that all who need a schema wait for one answer; taken before mu
	// partial is what was read for a schema whose whole did not come in time, so that a slow registry is not asked for it again and again; no
	// version of a subject ever changes. Guarded by asking.
	partial map[reference]schemaAnswer
	// first is the address to begin with: those that do not answer would take the time of a look-up each time. Guarded by asking.
	first int
	mu    sync.Mutex // guards what is below
	byID  map[uint32]*known
	pause time.Duration // 0: the last request was answered
	until time.Time     // end of the pause
	cause error         // of the pause
}

// known is a schema, or that there is none.
type known struct {
	schema  *schema
	err     error // it does not exist, or nobody can read it
	expires time.Time
	misses  int // how often the registry has said that it is not there
}

// New checks the configuration. It sends nothing.
func New(c Config) (*Client, error) {
	if len(c.URLs) == 0 {
		return nil, errors.New("registry: no URL")
	}
	for _, u := range c.URLs {
		if err := CheckURL(u); err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
	}
	ways := 0
	for _, given := range []bool{c.Username != "" || c.Password != "", c.Token != "", c.TokenFile != ""} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return nil, errors.New("registry: more than one of user, token and token file")
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxSchemas <= 0 {
		c.MaxSchemas = defaultSchemas
	}
	if c.MaxSchemaBytes <= 0 {
		c.MaxSchemaBytes = defaultSchemaBytes
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	// No proxy of the environment: behind one, TLS would not be asked, and other authorities would be trusted than it names.
	transport := &http.Transport{ResponseHeaderTimeout: c.Timeout, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 2}
	if c.TLS != nil {
		transport.DialTLSContext = dialTLS(c.TLS)
	}
	return &Client{
		cfg: c, byID: map[uint32]*known{},
		http: &http.Client{
			Transport: transport, Timeout: c.Timeout,
			// A redirect would carry the credentials, or lose them.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// dialTLS reads the certificates anew for each connection.
func dialTLS(conf func(host string) (*tls.Config, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", address, err)
		}
		c, err := conf(host)
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{Config: c}).DialContext(ctx, network, address)
	}
}

// CheckURL says what is wrong with the address of a registry.
func CheckURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Host == "", u.Scheme != "http" && u.Scheme != "https", u.RawQuery != "", u.Fragment != "":
		return errors.New("want an address such as http://localhost:8081")
	case u.User != nil:
		return errors.New("the address of a registry holds no password: username and password are fields of their own")
	}
	return nil
}

// find returns a schema by its ID. The error is [serde.ErrUnavailable] if the registry cannot be asked.
func (c *Client) find(id uint32, format Format) (*schema, error) {
	if k := c.cached(id); k != nil {
		return k.of(id, format)
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	if k := c.cached(id); k != nil { // somebody else has asked meanwhile
		return k.of(id, format)
	}
	ctx, cancel := c.lookup(context.Background())
	defer cancel()
	k, err := c.read(ctx, id)
	if err != nil {
		return nil, err
	}
	c.keep(id, k)
	return k.of(id, format)
}

// errSlow is the end of a look-up's time.
var errSlow = errors.New("the registry is too slow: a schema, with what it refers to, did not come in time")

// lookup bounds all requests for one schema.
func (c *Client) lookup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, wholeLookup*c.cfg.Timeout, errSlow)
}

// missing is what is known of an ID when the registry has said once more that it, or what it refers to, is not there.
func (c *Client) missing(id uint32, err error) *known {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &known{err: err, misses: 1}
	if old := c.byID[id]; old != nil {
		k.misses += old.misses
	}
	wait := unknownFor
	if k.misses < unknownAfter {
		k.err, wait = unavailable(err), firstPause<<(k.misses-1)
	}
	k.expires = c.cfg.Now().Add(wait)
	return k
}

func (k *known) of(id uint32, format Format) (*schema, error) {
	switch {
	case k.err != nil:
		return nil, k.err
	case k.schema.format != format:
		return nil, fmt.Errorf("schema %d is %s, not %s", id, k.schema.format, format)
	}
	return k.schema, nil
}

func (c *Client) cached(id uint32) *known {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.byID[id]
	if k != nil && !k.expires.IsZero() && !c.cfg.Now().Before(k.expires) {
		return nil
	}
	return k
}

func (c *Client) keep(id uint32, k *known) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byID) >= c.cfg.MaxSchemas {
		clear(c.byID)
	}
	c.byID[id] = k
}

// read asks for a schema and for all that it refers to.
func (c *Client) read(ctx context.Context, id uint32) (*known, error) {
	var a schemaAnswer
	err := c.ask(ctx, http.MethodGet, fmt.Sprintf("/schemas/ids/%d", id), nil, &a)
	var no *refusal
	switch {
	case errors.As(err, &no) && no.Code == codeSchema:
		return c.missing(id, fmt.Errorf("the registry has no schema %d", id)), nil
	case err != nil:
		return nil, unavailable(err)
	}
	src, err := c.sourceOf(ctx, a)
	switch {
	case errors.Is(err, serde.ErrUnavailable):
		return nil, err
	case errors.As(err, &no): // a schema that comes late, as above
		return c.missing(id, fmt.Errorf("schema %d: %w", id, err)), nil
	}
	var s *schema
	if err == nil {
		s, err = compile(src)
	}
	if err != nil {
		err = fmt.Errorf("schema %d: %w", id, err)
	}
	return &known{schema: s, err: err}, nil
}

// schemaAnswer is a schema as the registry sends it.
type schemaAnswer struct {
	ID         uint32      `json:"id"`
	Schema     string      `json:"schema"`
	SchemaType string      `json:"schemaType"` // empty: Avro
	References []reference `json:"references"`
}

type reference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// errNoSchema is of an answer in JSON that a registry does not give: of a proxy in front of it, for one. No value is to blame for it.
var errNoSchema = errors.New("the answer is no schema of a schema registry")

// maxReferences bounds what one schema refers to, directly or not.
const maxReferences = 200

// source is the text of a schema with those that it refers to, each behind those that it needs.
type source struct {
	format Format
	text   string
	refs   []namedText
}

type namedText struct{ name, text string }

// sourceOf reads what a schema refers to. Client.asking is held.
func (c *Client) sourceOf(ctx context.Context, a schemaAnswer) (src source, err error) {
	src = source{text: a.Schema}
	defer func() {
		if !errors.Is(err, serde.ErrUnavailable) {
			c.partial = nil
		}
	}()
	if a.Schema == "" {
		return src, unavailable(errNoSchema)
	}
	switch a.SchemaType {
	case "", "AVRO":
		src.format = Avro
	case "PROTOBUF":
		src.format = Protobuf
	default:
		return src, fmt.Errorf("a schema of type %q, not AVRO or PROTOBUF", a.SchemaType)
	}
	seen, left := map[reference]bool{}, c.cfg.MaxSchemaBytes-len(a.Schema)
	if left < 0 {
		return src, fmt.Errorf("it has more than %d bytes", c.cfg.MaxSchemaBytes)
	}
	var add func([]reference) error
	add = func(refs []reference) error {
		for _, r := range refs {
			if seen[r] {
				continue
			}
			if seen[r] = true; len(seen) > maxReferences {
				return fmt.Errorf("it refers to more than %d others", maxReferences)
			}
			b, err := c.version(ctx, r)
			if err != nil {
				return err
			}
			if left -= len(b.Schema); left < 0 {
				return fmt.Errorf("with what it refers to it has more than %d bytes", c.cfg.MaxSchemaBytes)
			}
			if err := add(b.References); err != nil {
				return err
			}
			src.refs = append(src.refs, namedText{r.Name, b.Schema})
		}
		return nil
	}
	return src, add(a.References)
}

// version reads a version of a subject.
func (c *Client) version(ctx context.Context, r reference) (a schemaAnswer, err error) {
	if a, ok := c.partial[r]; ok {
		return a, nil
	}
	path := fmt.Sprintf("/subjects/%s/versions/%d", url.PathEscape(r.Subject), r.Version)
	if err := c.ask(ctx, http.MethodGet, path, nil, &a); err != nil {
		var no *refusal
		if errors.As(err, &no) && no.unknown() {
			return a, fmt.Errorf("it refers to version %d of subject %q, which the registry does not have: %w", r.Version, r.Subject, no)
		}
		return a, unavailable(err)
	}
	if a.Schema == "" {
		return a, unavailable(errNoSchema)
	}
	if len(c.partial) > maxReferences {
		c.partial = nil // of schemas that nobody came back for
	}
	if c.partial == nil {
		c.partial = map[reference]schemaAnswer{}
	}
	c.partial[r] = a
	return a, nil
}

// Error codes of the registry's API.
const (
	codeSubject = 40401
	codeVersion = 40402
	codeSchema  = 40403
)

// refusal is an answer of the registry that is an error of its API.
type refusal struct {
	Code    int    `json:"error_code"`
	Message string `json:"message"`
}

// Error returns the registry's own words.
func (r *refusal) Error() string { return fmt.Sprintf("%s (error_code %d)", r.Message, r.Code) }

func (r *refusal) unknown() bool {
	return r.Code == codeSubject || r.Code == codeVersion || r.Code == codeSchema
}

// unavailable marks an error as none of the record.
func unavailable(err error) error {
	if errors.Is(err, serde.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("schema registry: %w: %w", serde.ErrUnavailable, err)
}

// ask sends a request to the first address that answers. After a request that nobody answered, nothing is sent for a while.
func (c *Client) ask(ctx context.Context, method, path string, body, answer any) error {
	c.mu.Lock()
	wait, cause := c.pause > 0 && c.cfg.Now().Before(c.until), c.cause
	c.mu.Unlock()
	if wait {
		return unavailable(cause)
	}
	var errs []error
	for i := range c.cfg.URLs {
		n := (c.first + i) % len(c.cfg.URLs)
		err := c.request(ctx, method, strings.TrimSuffix(c.cfg.URLs[n], "/")+path, body, answer)
		var no *refusal
		if err == nil || errors.As(err, &no) {
			c.first = n
			c.answered()
			return err
		}
		errs = append(errs, err)
		if ctx.Err() != nil { // the others were not tried: it goes on here
			c.first = n
			break
		}
	}
	err := errors.Join(errs...)
	slow := errors.Is(context.Cause(ctx), errSlow)
	if slow {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	if ctx.Err() == nil || slow {
		c.mu.Lock()
		c.pause = min(max(2*c.pause, firstPause), longestPause)
		c.until, c.cause = c.cfg.Now().Add(c.pause), err
		c.mu.Unlock()
	}
	return unavailable(err)
}

func (c *Client) answered() {
	c.mu.Lock()
	c.pause, c.cause = 0, nil
	c.mu.Unlock()
}

// request sends one request to one address. The error is a *refusal if the registry itself has said no to it.
func (c *Client) request(ctx context.Context, method, address string, body, answer any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("write the request: %w", err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, address, r)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Accept", "application/vnd.schemaregistry.v1+json, application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	}
	if err := c.authenticate(req); err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err // names method and address itself
	}
	defer res.Body.Close()
	// Quotes and references add to a schema.
	limit := int64(2*c.cfg.MaxSchemaBytes) + 64<<10
	data, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: read the answer: %w", method, address, err)
	case int64(len(data)) > limit:
		return fmt.Errorf("%s %s: the answer has more than %d bytes", method, address, limit)
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%s %s: %w (%s)", method, address, ErrDenied, res.Status)
	case res.StatusCode != http.StatusOK:
		no := &refusal{}
		// A proxy in front of it may say "not found", too: only the registry's own codes are its answer.
		if err := json.Unmarshal(data, no); err != nil || no.Code < 40000 || no.Code >= 50000 {
			return fmt.Errorf("%s %s: %s", method, address, res.Status)
		}
		return no
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("%s %s: the answer is not the JSON of a schema registry: %w", method, address, err)
	}
	return nil
}

func (c *Client) authenticate(req *http.Request) error {
	token := c.cfg.Token
	if c.cfg.TokenFile != "" {
		f, err := os.Open(c.cfg.TokenFile)
		if err != nil {
			return fmt.Errorf("token file: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
		if err != nil {
			return fmt.Errorf("token file: %w", err)
		}
		// Without a token nothing is asked: a file that is being replaced is empty for a moment, and the answer would be that of a wrong one.
		if token = strings.TrimSpace(string(b)); token == "" || len(b) > maxToken {
			return fmt.Errorf("token file %q: want a token of at most %d bytes", c.cfg.TokenFile, maxToken)
		}
	}
	switch {
	case token != "":
		req.Header.Set("Authorization", "Bearer "+token)
	case c.cfg.Username != "" || c.cfg.Password != "":
		req.SetBasicAuth(c.cfg.Username, c.cfg.Password)
	}
	return nil
}
