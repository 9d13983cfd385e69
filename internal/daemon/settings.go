package daemon

import (
	"strings"

	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/pipeline"
)

// settings is what the page shows of a pipeline's configuration. Passwords and tokens are pipeline.Secret,
// which prints as ***; what is not listed here is not shown.
func settings(p *pipeline.Pipeline, c RunConfig, dir string) []web.Setting {
	var out []web.Setting
	add := func(name, value string) {
		if value != "" {
			out = append(out, web.Setting{Name: name, Value: value})
		}
	}
	add("file", p.File)
	add("sha256", fingerprint(p.File))
	add("brokers", strings.Join(p.Kafka.Brokers, ", "))
	add("client_id", p.Kafka.ClientID)
	if t := p.Kafka.TLS; t != nil {
		add("tls", "on")
		if t.InsecureSkipVerify {
			add("tls verification", "off: any certificate is accepted")
		}
	}
	if s := p.Kafka.SASL; s != nil {
		add("sasl mechanism", s.Mechanism)
		add("sasl username", s.Username)
		add("sasl password", s.Password.String())
		add("sasl token", s.Token.String())
	}
	if s := p.Kafka.SchemaRegistry; s != nil {
		add("schema registry", strings.Join(s.URLs, ", "))
		add("schema registry username", s.Username)
		add("schema registry password", s.Password.String())
		add("schema registry token", s.Token.String())
	}
	for _, s := range p.Sources {
		add("source "+s.Name, s.Topic+", "+s.Format+s.Ingress.Way())
	}
	add("guarantee", string(p.Processing.Guarantee))
	if d := p.Processing.CommitInterval; d > 0 {
		add("commit interval", d.String())
	}
	if d := p.Processing.TransactionTimeout; d > 0 {
		add("transaction timeout", d.String())
	}
	add("tracing", p.Tracing.Endpoint)
	add("dead letter topic", p.Errors.DeadLetterTopic)
	add("state directory", dir)
	add("state key", p.StateKeyFile)
	add("old state key", p.StateOldKeyFile)
	add("instance", c.Instance)
	return out
}
