package daemon

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamd/streamd/pipeline"
)

func TestSettingsShowNoSecret(t *testing.T) {
	p := &pipeline.Pipeline{Name: "bills", File: "bills.yaml", Kafka: pipeline.Kafka{
		Brokers: []string{"k1:9092", "k2:9092"},
		TLS:     &pipeline.TLS{KeyFile: "/keys/client.pem", InsecureSkipVerify: true},
		SASL:    &pipeline.SASL{Mechanism: "PLAIN", Username: "ann", Password: "hunter2", Token: "t0ken"},
	}}
	got := fmt.Sprint(settings(p, RunConfig{Instance: "streamd-0"}, "data/bills"))
	for _, want := range []string{"k1:9092, k2:9092", "PLAIN", "ann", "{sasl password ***}", "{sasl token ***}", "any certificate", "data/bills", "streamd-0"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if strings.Contains(got, "hunter2") || strings.Contains(got, "t0ken") {
		t.Errorf("a secret is shown: %s", got)
	}
}
