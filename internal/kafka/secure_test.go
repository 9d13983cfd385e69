package kafka

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/streamd/streamd/internal/broker"
)

// certificate makes a self-signed certificate for 127.0.0.1 and its PEM file.
func certificate(t testing.TB) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// secureFake is a cluster with TLS and one user.
func secureFake(t testing.TB, mechanism string) (addrs []string, ca string) {
	t.Helper()
	cert, ca := certificate(t)
	k, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}),
		kfake.EnableSASL(), kfake.Superuser(mechanism, "ann", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k.ListenAddrs(), ca
}

func TestTLSAndSASL(t *testing.T) {
	for _, mechanism := range []string{Plain, ScramSHA256, ScramSHA512} {
		t.Run(mechanism, func(t *testing.T) {
			addrs, ca := secureFake(t, mechanism)
			file := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			conf := Config{Brokers: addrs, TLS: &TLS{CAFile: ca}, SASL: &SASL{Mechanism: mechanism, User: "ann", PasswordFile: file}, Logger: testLogger(t)}
			c, err := Open(testContext(t), conf)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			topic := makeTopic(t, c, 2)
			p := newProducer(t, c, "x")
			addValues(p, tpOf(topic, 0), "1", "2")
			addValues(p, tpOf(topic, 1), "3")
			mustCommit(t, p)
			if got := readValues(t, c, tpOf(topic, 0)); !slices.Equal(got, []string{"1", "2"}) {
				t.Fatal(got)
			}
			m := joinGroup(t, c, "g", "a", topic)
			m.wait(t, 2)
			// Connections that are opened later read the file again. kfake closes the connection on a
			// wrong password, without the answer that real brokers give: test/kafka has that.
			if err := os.WriteFile(file, []byte("wrong"), 0o600); err != nil {
				t.Fatal(err)
			}
			if cl, err := Open(testContext(t), conf); err == nil {
				_ = cl.Close()
				t.Fatal("a wrong password is accepted")
			}
			if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			p.Close()
			if err := p.Init(testContext(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestBearerTokensAreAskedEachTime(t *testing.T) {
	var asked atomic.Int32
	s := &SASL{Mechanism: OAuthBearer, Token: func(context.Context) (string, error) { asked.Add(1); return "t", nil }}
	for range 2 {
		tok, err := bearer{s}.Token()
		if err != nil || tok.Token != "t" {
			t.Fatal(tok, err)
		}
	}
	if asked.Load() != 2 {
		t.Fatal(asked.Load())
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(" abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tok, err := bearer{&SASL{Mechanism: OAuthBearer, TokenFile: file}}.Token()
	if err != nil || tok.Token != "abc" {
		t.Fatal(tok, err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	plain, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	old, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.MaxVersions(kversion.V2_3_0()))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	addrs, ca := secureFake(t, Plain)
	_, otherCA := certificate(t)
	sasl := &SASL{Mechanism: Plain, User: "ann", Password: "secret"}
	for name, c := range map[string]struct {
		conf Config
		want error
		text string
	}{
		"no broker":       {Config{}, broker.ErrConfig, "no broker address"},
		"not an address":  {Config{Brokers: []string{"kafka"}}, broker.ErrConfig, `"kafka" is not host:port`},
		"nobody there":    {Config{Brokers: []string{"127.0.0.1:1"}}, broker.ErrUnreachable, "127.0.0.1:1"},
		"TLS expected":    {Config{Brokers: addrs, SASL: sasl}, broker.ErrUnreachable, "wants TLS or SASL"},
		"wrong mechanism": {Config{Brokers: addrs, TLS: &TLS{CAFile: ca}, SASL: &SASL{Mechanism: "GSSAPI", User: "ann"}}, broker.ErrConfig, "GSSAPI"},
		"unknown CA":      {Config{Brokers: addrs, TLS: &TLS{CAFile: otherCA}, SASL: sasl}, broker.ErrAuthentication, "certificate"},
		"no CA file":      {Config{Brokers: addrs, TLS: &TLS{CAFile: "/does/not/exist"}, SASL: sasl}, broker.ErrConfig, "ca file"},
		"no key":          {Config{Brokers: addrs, TLS: &TLS{CertFile: ca}}, broker.ErrConfig, "go together"},
		"no password":     {Config{Brokers: addrs, SASL: &SASL{Mechanism: Plain, User: "ann", PasswordFile: "/does/not/exist"}}, broker.ErrConfig, "password file"},
		"no token":        {Config{Brokers: addrs, SASL: &SASL{Mechanism: OAuthBearer}}, broker.ErrConfig, "token"},
		"too old":         {Config{Brokers: old.ListenAddrs()}, broker.ErrUnsupported, "2.5"},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			cl, err := Open(testContext(t), c.conf)
			if err == nil {
				_ = cl.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("%v; want %v with %q", err, c.want, c.text)
			}
			if d := time.Since(begin); d > 30*time.Second {
				t.Fatalf("took %v", d)
			}
		})
	}
}
