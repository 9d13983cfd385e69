package daemon

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"

	"github.com/streamd/streamd/internal/tlsfile"
	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/txlog"
)

// ErrDenied: a process does not let the one in who asks.
var ErrDenied = errors.New("not let in")

// HTTPSecurity says how the HTTP port is protected. The admin socket needs none of it: only its user can open it.
type HTTPSecurity struct {
	// CertFile and KeyFile are PEM; with them the port speaks TLS only. They are read for each connection.
	CertFile, KeyFile string
	// ClientCAFile is PEM. A client certificate that one of these has signed lets its bearer in.
	ClientCAFile string
	// TokenFile holds a token that lets its bearer in.
	TokenFile string

	source string // the source of a pipeline whose port it is; empty: the one of --http
}

// field is how messages call a file: the flag, or the field of a pipeline file.
func (s HTTPSecurity) field(flag, field string) string {
	if s.source != "" {
		return fmt.Sprintf("source %q: %s", s.source, field)
	}
	return flag
}

func (s HTTPSecurity) guard() web.Guard {
	return web.Guard{TokenFile: s.TokenFile, Certificates: s.ClientCAFile != ""}
}

// tlsConfig reads the files; nil: no TLS.
func (s HTTPSecurity) tlsConfig() (*tls.Config, error) {
	if s.CertFile == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.field("--http-cert, --http-key", "cert_file, key_file"), err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if s.ClientCAFile != "" {
		if c.ClientCAs, err = tlsfile.Authorities(s.ClientCAFile); err != nil {
			return nil, fmt.Errorf("%s: %w", s.field("--http-client-ca", "client_ca_file"), err)
		}
		// If given: a probe has none. Who may see what is decided by web.Guard.
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c, nil
}

// validate returns every mistake at once.
func (s HTTPSecurity) validate() error {
	var errs []error
	if (s.CertFile == "") != (s.KeyFile == "") {
		errs = append(errs, errors.New("--http-cert and --http-key go together, one is missing"))
	} else if _, err := s.tlsConfig(); err != nil {
		errs = append(errs, err)
	}
	if s.ClientCAFile != "" && s.CertFile == "" {
		errs = append(errs, errors.New("--http-client-ca needs TLS: --http-cert and --http-key"))
	}
	if s.TokenFile != "" {
		if _, err := web.ReadToken(s.TokenFile); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.field("--http-token-file", "token_file"), err))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
	}
	return nil
}

// warn tells what is allowed, and is not wise.
func (s HTTPSecurity) warn(log *slog.Logger) {
	if mode, open := openToAll(s.TokenFile); open {
		log.Warn("everybody on this host can read the token of the HTTP port: chmod 600", "file", s.TokenFile, "mode", mode.String())
	}
}

// StateKeys reads the keys of a pipeline's local state: that which it is to be under, nil if it is not to be
// encrypted, and the one that it may still be under.
func StateKeys(p *pipeline.Pipeline) (key, old txlog.Key, err error) {
	read := func(field, path string) (k txlog.Key) {
		if path == "" {
			return nil
		}
		k, kerr := txlog.ReadKey(path)
		if kerr != nil {
			err = errors.Join(err, fmt.Errorf("%s: state.%s: %w: %w", p.File, field, ErrConfig, kerr))
		}
		return k
	}
	key, old = read("key_file", p.StateKeyFile), read("old_key_file", p.StateOldKeyFile)
	return key, old, err
}

// warnKeys tells of keys that more can read than have to.
func warnKeys(p *pipeline.Pipeline, log *slog.Logger) {
	for _, path := range []string{p.StateKeyFile, p.StateOldKeyFile} {
		if mode, open := openToAll(path); open {
			log.Warn("everybody on this host can read the key of the local state: chmod 600", "file", path, "mode", mode.String())
		}
	}
}

// openToAll says whether everybody on this host can read a file.
func openToAll(path string) (mode fs.FileMode, open bool) {
	if path == "" || runtime.GOOS == "windows" { // there the mode says nothing of who can read
		return 0, false
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	return info.Mode().Perm(), info.Mode().Perm()&0o004 != 0
}

// secure puts TLS on the HTTP listener.
func (s HTTPSecurity) secure(l net.Listener, log *slog.Logger) net.Listener {
	if s.CertFile == "" {
		if tcp, ok := l.Addr().(*net.TCPAddr); ok && s.TokenFile != "" && !tcp.IP.IsLoopback() {
			log.Warn("the token travels in plain text; TLS is turned on by "+s.field("--http-cert, --http-key", "cert_file, key_file"), "address", l.Addr().String())
		}
		return l
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Renewed files are used without a restart; broken ones refuse new connections and end none.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := s.tlsConfig()
			if err != nil {
				log.Warn("no TLS on the HTTP port", "err", err)
			}
			return c, err
		},
	})
}

// scheme is how the port is addressed.
func (s HTTPSecurity) scheme() string {
	if s.CertFile != "" {
		return "https"
	}
	return "http"
}

// Proof is how a client proves who it is at an HTTP port, and whom it trusts there.
type Proof struct {
	TokenFile         string
	CAFile            string // PEM; empty: the system's roots
	CertFile, KeyFile string // PEM of a client certificate
}

// bearer adds the token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// transport is how a client with this proof sends its requests.
func (p Proof) transport() (http.RoundTripper, error) {
	f := tlsfile.Files{CA: p.CAFile, Cert: p.CertFile, Key: p.KeyFile}
	c, err := f.Config("")
	if err != nil {
		return nil, fmt.Errorf("%w: --ca-file, --cert-file, --key-file: %w", ErrConfig, err)
	}
	t := &http.Transport{TLSClientConfig: c}
	if p.TokenFile == "" {
		return t, nil
	}
	token, err := web.ReadToken(p.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("%w: --token-file: %w", ErrConfig, err)
	}
	return bearer{token, t}, nil
}

// NewProvenClient is NewClient with a proof, which only an HTTP address takes: at a unix socket the operating system knows who asks.
func NewProvenClient(address string, p Proof) (*Client, error) {
	c, err := NewClient(address)
	if err != nil || c.http.Transport != nil || p == (Proof{}) {
		return c, err
	}
	c.http.Transport, err = p.transport()
	// Another address than the one that was asked for gets no token.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, err
}
