package daemon

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/web"
)

// identity writes a certificate and its key, signed by an authority or by itself, and returns the paths.
func identity(t *testing.T, dir, name string, by *authority) (cert, key string, self *authority) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA: by == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	self = &authority{c, k}
	if by == nil {
		by = self
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by.cert, &k.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for path, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, self
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// port serves a handler as the HTTP port is served, and returns its address.
func port(t *testing.T, s HTTPSecurity) string {
	t.Helper()
	if err := s.validate(); err != nil {
		t.Fatal(err)
	}
	handler, err := web.New(web.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	log := slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- web.Serve(ctx, s.secure(l, log), s.guard().Protect(handler, log), log) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.scheme() + "://" + address
}

// TestHTTPPort: who is let in at the HTTP port, by what it asks for and what he has.
func TestHTTPPort(t *testing.T) {
	dir := t.TempDir()
	token, wrong := filepath.Join(dir, "token"), filepath.Join(dir, "wrong")
	for path, text := range map[string]string{token: "0123456789abcdef0123", wrong: "another-0123456789abcdef"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	caFile, _, ca := identity(t, dir, "ca", nil)
	serverCert, serverKey, _ := identity(t, dir, "server", ca)
	clientCert, clientKey, _ := identity(t, dir, "client", ca)
	otherCert, otherKey, _ := identity(t, dir, "other", nil)

	plain := HTTPSecurity{}
	byToken := HTTPSecurity{TokenFile: token}
	withTLS := HTTPSecurity{CertFile: serverCert, KeyFile: serverKey, TokenFile: token}
	mutual := HTTPSecurity{CertFile: serverCert, KeyFile: serverKey, ClientCAFile: caFile}
	both := mutual
	both.TokenFile = token
	for _, c := range []struct {
		name  string
		port  HTTPSecurity
		proof Proof
		kind  error // nil: let in
	}{
		{"plain", plain, Proof{}, nil},
		{"plain, a token too much", plain, Proof{TokenFile: token}, nil},
		{"token missing", byToken, Proof{}, ErrDenied},
		{"token wrong", byToken, Proof{TokenFile: wrong}, ErrDenied},
		{"token", byToken, Proof{TokenFile: token}, nil},
		{"TLS, token", withTLS, Proof{TokenFile: token, CAFile: caFile}, nil},
		{"TLS, token missing", withTLS, Proof{CAFile: caFile}, ErrDenied},
		{"TLS, not trusted", withTLS, Proof{TokenFile: token}, ErrNotReachable},
		{"a certificate is no token", withTLS, Proof{CAFile: caFile, CertFile: clientCert, KeyFile: clientKey}, ErrDenied},
		{"certificate", mutual, Proof{CAFile: caFile, CertFile: clientCert, KeyFile: clientKey}, nil},
		{"certificate missing", mutual, Proof{CAFile: caFile}, ErrDenied},
		{"a token is no certificate", mutual, Proof{CAFile: caFile, TokenFile: token}, ErrDenied},
		{"certificate of somebody else", mutual, Proof{CAFile: caFile, CertFile: otherCert, KeyFile: otherKey}, ErrDenied},
		{"either, the token", both, Proof{CAFile: caFile, TokenFile: token}, nil},
		{"either, the certificate", both, Proof{CAFile: caFile, CertFile: clientCert, KeyFile: clientKey}, nil},
		{"either, none", both, Proof{CAFile: caFile}, ErrDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, err := NewProvenClient(port(t, c.port), c.proof)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = client.Pipelines(t.Context()); !errors.Is(err, c.kind) {
				t.Errorf("got %v, want %v", err, c.kind)
			}
			if errors.Is(c.kind, ErrNotReachable) {
				return
			}
			if _, err := client.Read(t.Context(), "/livez"); err != nil {
				t.Errorf("a probe is not answered: %v", err)
			}
		})
	}
	for name, s := range map[string]HTTPSecurity{
		"no key": {CertFile: serverCert}, "no certificate": {KeyFile: serverKey}, "key of another": {CertFile: serverCert, KeyFile: clientKey},
		"authority without TLS": {ClientCAFile: caFile}, "authority of nothing": {CertFile: serverCert, KeyFile: serverKey, ClientCAFile: token},
		"no token": {TokenFile: filepath.Join(dir, "none")}, "file is missing": {CertFile: "none", KeyFile: "none"},
	} {
		if err := s.validate(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestProofOfHalfACertificate: the message says what is missing, and not that a file without a name cannot be opened.
func TestProofOfHalfACertificate(t *testing.T) {
	for _, p := range []Proof{{CertFile: "cert.pem"}, {KeyFile: "key.pem"}} {
		if _, err := NewProvenClient("https://127.0.0.1:1", p); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "go together, one is missing") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// TestReadableToken: a token that everybody can read is warned of, and its text is not shown.
func TestReadableToken(t *testing.T) {
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: runtime.GOOS != "windows"} {
		path := filepath.Join(t.TempDir(), "token")
		if err := errors.Join(os.WriteFile(path, []byte("0123456789abcdef0123"), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		HTTPSecurity{TokenFile: path}.warn(slog.New(slog.NewTextHandler(&out, nil)))
		if got := strings.Contains(out.String(), "everybody on this host can read"); got != want || strings.Contains(out.String(), "0123") {
			t.Errorf("%v: %s", mode, out.String())
		}
	}
}

// TestGarbageAtThePort: bytes that are no request cost their connection and nothing else.
func TestGarbageAtThePort(t *testing.T) {
	dir := t.TempDir()
	caFile, _, ca := identity(t, dir, "ca", nil)
	cert, key, _ := identity(t, dir, "server", ca)
	for name, s := range map[string]HTTPSecurity{"plain": {}, "TLS": {CertFile: cert, KeyFile: key}} {
		t.Run(name, func(t *testing.T) {
			address := port(t, s)
			host := address[len(s.scheme())+3:]
			for _, garbage := range []string{
				"", "\x00", "\x16\x03\x01\xff\xff\x01", "GET / HTTP/9.9\r\n\r\n", "GET /\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
				"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
				"GET /%zz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
			} {
				c, err := net.Dial("tcp", host)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(c, garbage) // it may be closed already
				_ = c.Close()
			}
			client, err := NewProvenClient(address, Proof{CAFile: caFile})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Read(t.Context(), "/livez"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNoProfilesOverTCP: what the admin socket shows, the HTTP port does not have.
func TestNoProfilesOverTCP(t *testing.T) {
	resp, err := http.Get(port(t, HTTPSecurity{}) + "/debug/pprof/heap")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("got %s", resp.Status)
	}
}
