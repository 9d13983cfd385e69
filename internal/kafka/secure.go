package kafka

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"errors"
	"fmt"
	"hash"
	"net"
	"os"
	"strings"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"github.com/streamd/streamd/internal/tlsfile"
)

// TLS says how connections are encrypted. Files are read again for each connection, so that renewed
// certificates are used without a restart.
type TLS struct {
	CAFile     string // PEM; empty: the system's roots
	CertFile   string // PEM of the client's certificate; empty: none
	KeyFile    string // PEM of the certificate's key
	ServerName string // default: the host that is dialled
	// InsecureSkipVerify accepts any certificate. For tests.
	InsecureSkipVerify bool
}

// load reads the files.
func (t *TLS) load(host string) (*tls.Config, error) {
	f := tlsfile.Files{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	return f.Config(host)
}

func (t *TLS) handshake(ctx context.Context, base net.Conn, host string) (net.Conn, error) {
	conf, err := t.load(host)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(base, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, &tlsError{err}
	}
	return conn, nil
}

// tlsError marks a failed handshake, which no retry heals.
type tlsError struct{ err error }

func (e *tlsError) Error() string { return "tls handshake: " + e.err.Error() }
func (e *tlsError) Unwrap() error { return e.err }

// The SASL mechanisms.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
)

// SASL says how connections authenticate. Files and the token function are asked again for each
// connection, and whenever the broker wants a session renewed (KIP-368).
type SASL struct {
	Mechanism string // one of the constants above
	User      string
	// Password, or the file that holds it (one trailing newline is cut). The file wins.
	Password, PasswordFile string
	// TokenFile holds a bearer token. Token, if set, is asked instead; it should cache.
	TokenFile string
	Token     func(ctx context.Context) (string, error)
	// Extensions are sent with a bearer token (KIP-342).
	Extensions map[string]string
}

func (s *SASL) validate() error {
	switch s.Mechanism {
	case Plain, ScramSHA256, ScramSHA512:
		if s.User == "" {
			return fmt.Errorf("sasl %s: no user", s.Mechanism)
		}
		_, err := s.password()
		return err
	case OAuthBearer:
		if s.Token == nil && s.TokenFile == "" {
			return errors.New("sasl OAUTHBEARER: neither a token file nor a token function")
		}
		return nil
	}
	return fmt.Errorf("sasl mechanism %q is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER", s.Mechanism)
}

func (s *SASL) password() (string, error) {
	if s.PasswordFile == "" {
		return s.Password, nil
	}
	return readSecret("sasl password file", s.PasswordFile)
}

func readSecret(what, file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), nil
}

// apply sets sarama's SASL options.
func (s *SASL) apply(c *sarama.Config) error {
	n := &c.Net.SASL
	n.Enable, n.Handshake, n.Version = true, true, sarama.SASLHandshakeV1
	n.Mechanism = sarama.SASLMechanism(s.Mechanism)
	if s.Mechanism == OAuthBearer {
		n.TokenProvider = bearer{s}
		return nil
	}
	var err error
	n.User = s.User
	if n.Password, err = s.password(); err != nil {
		return err
	}
	switch s.Mechanism {
	case ScramSHA256:
		n.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{sasl: s, hash: sha256.New} }
	case ScramSHA512:
		n.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{sasl: s, hash: sha512.New} }
	}
	return nil
}

// bearer gives sarama a token for each authentication.
type bearer struct{ sasl *SASL }

// Token implements sarama.AccessTokenProvider.
func (b bearer) Token() (*sarama.AccessToken, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	var t string
	var err error
	if b.sasl.Token != nil {
		t, err = b.sasl.Token(ctx)
	} else if t, err = readSecret("sasl token file", b.sasl.TokenFile); err == nil {
		t = strings.TrimSpace(t)
	}
	if err != nil {
		return nil, err
	}
	return &sarama.AccessToken{Token: t, Extensions: b.sasl.Extensions}, nil
}

// scramClient is one SCRAM conversation (RFC 5802).
type scramClient struct {
	sasl *SASL
	hash func() hash.Hash
	conv *scram.ClientConversation
}

// Begin implements sarama.SCRAMClient. It reads the password anew: sarama's copy is as old as the client.
func (s *scramClient) Begin(user, password, authzID string) error {
	if p, err := s.sasl.password(); err == nil {
		password = p
	}
	c, err := scram.HashGeneratorFcn(s.hash).NewClient(user, password, authzID)
	if err != nil {
		return fmt.Errorf("scram: %w", err)
	}
	s.conv = c.NewConversation()
	return nil
}

// Step implements sarama.SCRAMClient.
func (s *scramClient) Step(challenge string) (string, error) { return s.conv.Step(challenge) }

// Done implements sarama.SCRAMClient.
func (s *scramClient) Done() bool { return s.conv.Done() }
