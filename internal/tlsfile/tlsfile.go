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
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("tls ca file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls ca file %q: no certificate in PEM form", f.CA)
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
