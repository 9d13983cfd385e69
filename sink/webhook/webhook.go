package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/tlsfile"
	"github.com/streamd/streamd/sink"
)

// Defaults of a Config.
const (
	DefaultTimeout = 30 * time.Second
	DefaultMaxBody = 1 << 20
)

// remedyFiles is for files that cannot be read.
const remedyFiles = "look at the path and the rights of the file, and at what it holds"

// keyHeader is draft-ietf-httpapi-idempotency-key-header's.
const keyHeader = "Idempotency-Key"

// Config says where and what to send.
type Config struct {
	// URL as https://host/path. User and password in it are sent as basic authentication. Path and query are secrets: no error shows them.
	URL string
	// Method is POST if empty, or PUT.
	Method string
	// Table has the columns, which are the fields of the objects. It has no key; its name is not sent.
	Table sink.Table
	// Batch is how many rows a request has at most. 0 or 1: the row itself is the body.
	Batch int
	// Class is sink.Plain if empty. sink.Idempotent says that the receiver does nothing for a key that it has seen.
	Class sink.Class
	// Header is sent with each request. Values are secrets: no error shows them.
	Header map[string]string
	// TokenFile has the token of a bearer; it is read for each request, so that a new one holds at once.
	TokenFile string
	// Username and PasswordFile are basic authentication; the file is read for each request.
	Username, PasswordFile string
	// CAFile has the certificates that sign the server's, in PEM. Default: the system's.
	CAFile string
	// CertFile and KeyFile are the client's certificate, if the server asks for one.
	CertFile, KeyFile string
	// Timeout of each request. Default: DefaultTimeout.
	Timeout time.Duration
	// MaxBody is the most bytes of a request's body. A row that is larger alone is refused. Default: DefaultMaxBody.
	MaxBody int
}

// Open makes a target. It does not connect.
func Open(c Config) (sink.Target, error) {
	if c.Method == "" {
		c.Method = http.MethodPost
	}
	if c.Class == "" {
		c.Class = sink.Plain
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	c.Batch = max(1, c.Batch)
	a := &receiver{cfg: c, first: firstPause, most: mostPause, mostAsked: mostAsked}
	if err := errors.Join(c.validate(), a.parse()); err != nil {
		return nil, err
	}
	return sink.NewTarget(a, c.Class, c.Table)
}

func (c Config) validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("webhook: "+format, args...)) }
	if c.Method != http.MethodPost && c.Method != http.MethodPut {
		fail("method %q, want POST or PUT", c.Method)
	}
	if len(c.Table.Key) > 0 {
		fail("a key has no meaning: rows are sent, and the receiver does with them what it does")
	}
	if c.Timeout < 0 || c.MaxBody < 0 {
		fail("a timeout or a size below 0")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		fail("a client's certificate and its key belong together: one of them is missing")
	}
	if (c.Username == "") != (c.PasswordFile == "") {
		fail("a user name and a password file belong together: one of them is missing")
	}
	if strings.Contains(c.Username, ":") {
		fail("user name %q: basic authentication allows no colon in it", c.Username)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Header)) {
		switch value := c.Header[name]; {
		case !validName(name) || strings.ContainsFunc(value, func(r rune) bool { return r != '\t' && (r < ' ' || r == '\x7f') }): // what no request takes
			fail("header %q: want a name of letters, digits and -, and a value of one line", name)
		case reserved(name):
			fail("header %q is the sink's own", name)
		}
	}
	return errors.Join(errs...)
}

func validName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	})
}

// reserved are headers that the sink sets itself.
func reserved(name string) bool {
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case keyHeader, "Content-Type", "Content-Length", "Host", "Transfer-Encoding", "Connection":
		return true
	}
	return false
}

// hasHeader says whether a header is given, in any case of letters.
func hasHeader(all map[string]string, name string) bool {
	for n := range all {
		if textproto.CanonicalMIMEHeaderKey(n) == name {
			return true
		}
	}
	return false
}

// receiver is the applier of a target.
type receiver struct {
	cfg Config
	url *url.URL
	// first and most are the pauses between two tries, mostAsked is the most that a Retry-After is believed.
	first, most, mostAsked time.Duration

	mu     sync.Mutex   // guards client and quiet
	client *http.Client // nil: not made yet
	quiet  time.Time    // the receiver wants nothing before
}

// parse reads the address.
func (a *receiver) parse() error {
	u, err := url.Parse(a.cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("webhook: the URL: want https://host/path") // the cause could show a password
	}
	u.Fragment = ""
	a.url = u
	ways := 0
	for _, given := range []bool{a.cfg.TokenFile != "", a.cfg.PasswordFile != "", u.User != nil, hasHeader(a.cfg.Header, "Authorization")} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return errors.New("webhook: the header Authorization, a token file, a password file and a user in the URL exclude each other")
	}
	return nil
}

// connection makes the client, once its files can be read: a configuration that is only looked at needs none.
func (a *receiver) connection() (*http.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		return a.client, nil
	}
	c, err := a.certificates()
	if err != nil {
		return nil, &sink.SetupError{Err: err, Remedy: remedyFiles}
	}
	a.client = &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: a.cfg.Timeout}).DialContext, TLSClientConfig: c, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: a.cfg.Timeout,
		},
		// A redirect would take the rows, and the headers, to where nobody has allowed it.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return a.client, nil
}

// certificates reads the files that TLS needs.
func (a *receiver) certificates() (*tls.Config, error) {
	f := tlsfile.Files{CA: a.cfg.CAFile, Cert: a.cfg.CertFile, Key: a.cfg.KeyFile}
	c, err := f.Config(a.url.Hostname())
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return c, nil
}

// Check connects, and with https shakes hands. It sends no request: what that would do, only the receiver knows.
func (a *receiver) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if _, err := a.connection(); err != nil {
		return err
	}
	if _, err := a.secrets(); err != nil {
		return &sink.SetupError{Err: err, Remedy: remedyFiles}
	}
	port := a.url.Port()
	if port == "" {
		port = a.url.Scheme // a name that the resolver knows
	}
	dial := (&net.Dialer{}).DialContext
	if a.url.Scheme == "https" {
		c, err := a.certificates()
		if err != nil {
			return &sink.SetupError{Err: err, Remedy: remedyFiles}
		}
		dial = (&tls.Dialer{Config: c}).DialContext
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(a.url.Hostname(), port))
	if err != nil {
		return a.fault("connect", err)
	}
	return conn.Close()
}

// Close closes the idle connections.
func (a *receiver) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		a.client.CloseIdleConnections()
	}
	return nil
}

// where is the address as it may be shown: the path of a webhook often is its secret.
func (a *receiver) where() string { return a.url.Scheme + "://" + a.url.Host }

// fault says what an error of the connection means. A certificate that is not trusted does not heal by itself.
func (a *receiver) fault(what string, err error) error {
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err // its text has the query
	}
	wrapped := fmt.Errorf("webhook: %s, %s: %w", a.where(), what, err)
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return &sink.SetupError{Err: wrapped, Remedy: "name the signer of the server's certificate: CAFile, or ca_file in a pipeline file"}
	}
	return wrapped
}
