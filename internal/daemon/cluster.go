package daemon

import (
	"context"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka"
	"github.com/streamd/streamd/pipeline"
)

// OpenCluster opens the engine's own client to a pipeline's cluster, for commands that write as the engine does. The caller
// closes it.
func OpenCluster(ctx context.Context, k pipeline.Kafka) (broker.Cluster, error) {
	c := kafka.Config{Brokers: k.Brokers, ClientID: k.ClientID}
	if t := k.TLS; t != nil {
		c.TLS = &kafka.TLS{CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	}
	if s := k.SASL; s != nil {
		c.SASL = &kafka.SASL{Mechanism: s.Mechanism, User: s.Username, Password: s.Password.Reveal(), TokenFile: s.TokenFile}
		if token := s.Token.Reveal(); token != "" {
			c.SASL.Token = func(context.Context) (string, error) { return token, nil }
		}
	}
	return kafka.Open(ctx, c)
}
