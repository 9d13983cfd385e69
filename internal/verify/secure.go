package verify

import (
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/tlsfile"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
)

// Reach is how a pipeline's cluster is reached by a client that is not the engine's.
func Reach(k pipeline.Kafka) (rawlog.Config, error) {
	c := rawlog.Config{Brokers: k.Brokers}
	var err error
	if k.TLS != nil {
		t := k.TLS
		f := tlsfile.Files{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
		if c.TLS, err = f.Config(""); err != nil {
			return c, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
		}
	}
	if k.SASL != nil {
		if c.SASL, err = mechanism(k.SASL); err != nil {
			return c, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
		}
	}
	return c, nil
}

func mechanism(s *pipeline.SASL) (sasl.Mechanism, error) {
	auth := scram.Auth{User: s.Username, Pass: s.Password.Reveal()}
	switch strings.ToUpper(s.Mechanism) {
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return auth.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return auth.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		token := s.Token.Reveal()
		if s.TokenFile != "" {
			data, err := os.ReadFile(s.TokenFile)
			if err != nil {
				return nil, fmt.Errorf("sasl token file: %w", err)
			}
			token = strings.TrimSpace(string(data))
		}
		return oauth.Auth{Token: token}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("sasl mechanism %q is not known", s.Mechanism)
}
