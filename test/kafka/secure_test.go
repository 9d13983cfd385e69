//go:build kafka

package kafka

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/test/kafkaenv"
)

// unsecuredToken is a bearer token without a signature, as Kafka's test callback takes it:
// {"alg":"none"} . {"sub":"ann","iat":...,"exp":...} .
func unsecuredToken() string {
	now := time.Now().Unix()
	return b64(`{"alg":"none"}`) + "." + b64(`{"sub":"`+kafkaenv.User+`","iat":`+itoa(now)+`,"exp":`+itoa(now+3600)+`}`) + "."
}

// TestSecurity has one broker with TLS, every SASL mechanism and authorization.
func TestSecurity(t *testing.T) {
	env := kafkaenv.Start(t, kafkaenv.Secure())
	tlsConf := &kafka.TLS{CAFile: env.AuthorityFile()}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(kafkaenv.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sasl := range []*kafka.SASL{
		{Mechanism: kafka.Plain, User: kafkaenv.User, PasswordFile: password},
		{Mechanism: kafka.ScramSHA256, User: kafkaenv.User, Password: kafkaenv.Password},
		{Mechanism: kafka.ScramSHA512, User: kafkaenv.User, PasswordFile: password},
		{Mechanism: kafka.OAuthBearer, Token: func(context.Context) (string, error) { return unsecuredToken(), nil }},
	} {
		t.Run(sasl.Mechanism, func(t *testing.T) {
			c, err := kafka.Open(testContext(t), kafka.Config{Brokers: env.SecureAddresses(), TLS: tlsConf, SASL: sasl})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			roundTrip(t, c, "secure-"+strings.ToLower(sasl.Mechanism))
		})
	}
	for _, sasl := range []*kafka.SASL{
		{Mechanism: kafka.Plain, User: kafkaenv.User, Password: "wrong"},
		{Mechanism: kafka.ScramSHA256, User: kafkaenv.User, Password: "wrong"},
		{Mechanism: kafka.ScramSHA512, User: "nobody", Password: "wrong"},
		{Mechanism: kafka.OAuthBearer, Token: func(context.Context) (string, error) { return "nonsense", nil }},
	} {
		t.Run("wrong "+sasl.Mechanism, func(t *testing.T) {
			_, err := kafka.Open(testContext(t), kafka.Config{Brokers: env.SecureAddresses(), TLS: tlsConf, SASL: sasl})
			if !errors.Is(err, broker.ErrAuthentication) {
				t.Fatal(err)
			}
		})
	}
	t.Run("a password that is changed", func(t *testing.T) { changedPassword(t, env, tlsConf, password) })
	t.Run("missing rights", func(t *testing.T) { missingRights(t, env, tlsConf) })
}

// roundTrip makes a topic, commits and reads.
func roundTrip(t *testing.T, c *kafka.Cluster, name string) {
	t.Helper()
	topic := makePlainTopic(t, c, name)
	j := join(t, c, name, "one", topic)
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: name})
	defer p.Close()
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	p.Add(broker.Output{TopicPartition: tpOf(topic, 0), Value: []byte("v")})
	if _, out, err := p.Commit(testContext(t), j.meta, []broker.OffsetCommit{{TopicPartition: tpOf(topic, 0), Next: 1}}); out != broker.Committed {
		t.Fatal(out, err)
	}
	r := c.NewReader(broker.ReaderConfig{})
	defer r.Close()
	r.Seek(tpOf(topic, 0), 0, 1)
	for limit := time.Now().Add(10 * time.Second); ; {
		for _, b := range r.Poll(testContext(t), time.Second) {
			if b.Err != nil {
				t.Fatal(b.Err)
			}
			if len(b.Records) == 1 {
				return
			}
		}
		if time.Now().After(limit) {
			t.Fatal("the record does not come")
		}
	}
}

// makePlainTopic makes a topic that dies with its broker.
func makePlainTopic(t *testing.T, c *kafka.Cluster, name string) string {
	t.Helper()
	if err := c.CreateTopic(testContext(t), broker.Topic{Name: name, Partitions: 1, Replicas: -1, Cleanup: broker.Delete, Retention: -1}); err != nil {
		t.Fatal(err)
	}
	return name
}

// changedPassword: the file is read for each connection, so that a wrong one stops and a right one heals.
func changedPassword(t *testing.T, env *kafkaenv.Cluster, tlsConf *kafka.TLS, file string) {
	conf := kafka.Config{Brokers: env.SecureAddresses(), TLS: tlsConf, SASL: &kafka.SASL{Mechanism: kafka.Plain, User: kafkaenv.User, PasswordFile: file}}
	c, err := kafka.Open(testContext(t), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	topic := makePlainTopic(t, c, "changed-password")
	if err := os.WriteFile(file, []byte("old one"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: "changed-password"})
	defer p.Close()
	if err := p.Init(testContext(t)); !errors.Is(err, broker.ErrAuthentication) {
		t.Fatalf("init with a wrong password: %v", err)
	}
	if err := c.Join(testContext(t), broker.GroupConfig{Group: "changed", Instance: "a", CoPartitioned: [][]string{{topic}}}, &joined{got: make(chan struct{}, 1)}); !errors.Is(err, broker.ErrAuthentication) {
		t.Fatalf("join with a wrong password: %v", err)
	}
	r := c.NewReader(broker.ReaderConfig{})
	defer r.Close()
	r.Seek(tpOf(topic, 0), 0, 1)
	if b := r.Poll(testContext(t), 10*time.Second); len(b) != 1 || !errors.Is(b[0].Err, broker.ErrAuthentication) {
		t.Fatalf("read with a wrong password: %+v", b)
	}
	if err := os.WriteFile(file, []byte(kafkaenv.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// missingRights: each error names the right that is missing.
func missingRights(t *testing.T, env *kafkaenv.Cluster, tlsConf *kafka.TLS) {
	owner, err := kafka.Open(testContext(t), kafka.Config{Brokers: env.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	topic := makePlainTopic(t, owner, "rights")
	c, err := kafka.Open(testContext(t), kafka.Config{
		Brokers: env.SecureAddresses(), TLS: tlsConf,
		SASL: &kafka.SASL{Mechanism: kafka.Plain, User: kafkaenv.Stranger, Password: kafkaenv.StrangerPassword},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := testContext(t)
	at := []record.TopicPartition{tpOf(topic, 0)}
	for name, f := range map[string]func() error{
		"Describe on topic rights":                        func() error { _, err := c.Topics(ctx, topic); return err },
		"Describe on topic rights,":                       func() error { _, err := c.HighWatermarks(ctx, at); return err },
		"Create on topic other":                           func() error { return c.CreateTopic(ctx, broker.Topic{Name: "other", Partitions: 1, Replicas: -1}) },
		"Read on group g":                                 func() error { _, err := c.CommittedOffsets(ctx, "g", at); return err },
		"Write and Describe on transactional ID rights-x": func() error { return c.NewProducer(broker.ProducerConfig{TransactionalID: "rights-x"}).Init(ctx) },
		"Read on group h": func() error {
			return c.Join(ctx, broker.GroupConfig{Group: "h", Instance: "a", CoPartitioned: [][]string{{topic}}}, &joined{got: make(chan struct{}, 1)})
		},
		"on topic rights": func() error {
			r := c.NewReader(broker.ReaderConfig{})
			defer r.Close()
			r.Seek(at[0], 0, 1)
			for _, b := range r.Poll(ctx, 10*time.Second) {
				return b.Err
			}
			return nil
		},
	} {
		begin := time.Now()
		err := f()
		if !errors.Is(err, broker.ErrAuthorization) || !strings.Contains(err.Error(), strings.TrimSuffix(name, ",")) || time.Since(begin) > 10*time.Second {
			t.Errorf("%v after %v; want it to name %q", err, time.Since(begin), name)
		}
	}
}

// TestSessionsAreRenewed: a broker that ends SASL sessions after 5 s is no reason for a failed commit or
// fetch (KIP-368), on the connections whose frames are our own too.
func TestSessionsAreRenewed(t *testing.T) {
	env := kafkaenv.Start(t, kafkaenv.Secure(), kafkaenv.Property("connections.max.reauth.ms", "5000"))
	c, err := kafka.Open(testContext(t), kafka.Config{
		Brokers: env.SecureAddresses(), TLS: &kafka.TLS{CAFile: env.AuthorityFile()},
		SASL: &kafka.SASL{Mechanism: kafka.ScramSHA256, User: kafkaenv.User, Password: kafkaenv.Password},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	topic := makePlainTopic(t, c, "renewed")
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: "renewed"})
	defer p.Close()
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	r := c.NewReader(broker.ReaderConfig{})
	defer r.Close()
	r.Seek(tpOf(topic, 0), 0, 1)
	wrote, read := 0, 0
	for begin := time.Now(); time.Since(begin) < 12*time.Second; wrote++ {
		p.Add(broker.Output{TopicPartition: tpOf(topic, 0), Value: []byte("v")})
		if _, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil); out != broker.Committed {
			t.Fatalf("after %v: %v, %v", time.Since(begin), out, err)
		}
		for _, b := range r.Poll(testContext(t), 20*time.Millisecond) {
			read += len(b.Records)
		}
	}
	for limit := time.Now().Add(10 * time.Second); read < wrote && time.Now().Before(limit); {
		for _, b := range r.Poll(testContext(t), time.Second) {
			read += len(b.Records)
		}
	}
	if read != wrote {
		t.Fatalf("read %d of %d", read, wrote)
	}
}
