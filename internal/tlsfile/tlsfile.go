package tlsfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Files are the options of a client's transport security. The zero value trusts the system's roots.
type Files struct {
	CA   string // PEM; empty: the system's roots
	Cert string // PEM of the client's certificate; empty: none
	Key  string // PEM of the certificate's key
	// ServerName is looked for in the server's certificate. Default: the host that is dialled.
	ServerName string
	// InsecureSkipVerify accepts any certificate. For tests.
	InsecureSkipVerify bool
}

// Config reads the files. host is the one that is dialled; it may be empty if the caller's dialler fills it in. TLS 1.2 is the least.
func (f *Files) Config(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName, InsecureSkipVerify: f.InsecureSkipVerify}
	if c.ServerName == "" {
		c.ServerName = host
	}
	if f.CA != "" {
		var err error
		if c.RootCAs, err = Authorities(f.CA); err != nil {
			return nil, fmt.Errorf("tls ca file: %w", err)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("tls: certificate and key go together, one is missing")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("tls certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Authorities reads the certificates of a PEM file that others are checked by.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%q: no certificate in PEM form", file)
	}
	return pool, nil
}
