package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
)

// explainAfter is how long a coordinator may be missing before we look for the reason.
const explainAfter = 4 * time.Second

// explainWait looks for a reason why a coordinator stays unavailable that no waiting heals: a small
// cluster whose internal topic wants more replicas than there are brokers, so that it is never made. Kafka itself answers
// COORDINATOR_NOT_AVAILABLE for ever. Nil: go on waiting, as for brokers of a cluster that has the topic and comes back.
func (c *Cluster) explainWait(ctx context.Context, kind sarama.CoordinatorType, err error, since time.Duration) error {
	var e *broker.Error
	if since < explainAfter || !errors.As(err, &e) || sarama.KError(e.Code) != sarama.ErrConsumerCoordinatorNotAvailable {
		return nil
	}
	topic, setting, also := broker.TransactionsTopic, "transaction.state.log.replication.factor", "transaction.state.log.min.isr to 1"
	if kind == sarama.CoordinatorGroup {
		topic, setting, also = broker.OffsetsTopic, "offsets.topic.replication.factor", "transaction.state.log.replication.factor to the same"
	}
	resp, _, derr := c.describe(ctx, topic)
	if derr != nil || len(resp.Topics) != 1 || resp.Topics[0].Err != sarama.ErrUnknownTopicOrPartition {
		return nil
	}
	value, cerr := c.brokerConfig(ctx, setting)
	have := len(c.addresses())
	if want, perr := strconv.Atoi(value); cerr == nil && perr == nil && want > have {
		return &broker.Error{
			Op: e.Op, Where: e.Where, Kind: broker.ErrConfig, Code: e.Code,
			Cause:  fmt.Errorf("%s is %d but the cluster has %d broker(s)", setting, want, have),
			Remedy: fmt.Sprintf("set %s to %d and %s on the broker, or start more brokers", setting, have, also),
		}
	}
	return nil
}

// explainInit adds to a refused InitProducerId what the broker's limit is.
func (c *Cluster) explainInit(ctx context.Context, cfg broker.ProducerConfig, e *broker.Error) error {
	if sarama.KError(e.Code) == sarama.ErrProducerFenced || sarama.KError(e.Code) == sarama.ErrInvalidProducerEpoch {
		e.Remedy = "two live processes use this transactional ID: give each instance its own ID and state directory"
	}
	if sarama.KError(e.Code) != sarama.ErrInvalidTransactionTimeout {
		return e
	}
	const setting = "transaction.max.timeout.ms"
	limit := "unknown: no right to read it"
	if v, err := c.brokerConfig(ctx, setting); err == nil && v != "" {
		limit = v
		if n, perr := strconv.ParseInt(v, 10, 64); perr == nil {
			limit = fmt.Sprintf("%s (%s)", v, millis(n))
		}
	}
	e.Remedy = fmt.Sprintf("the transaction timeout of %s is above the broker's %s = %s: lower the one or raise the other", cfg.TransactionTimeout, setting, limit)
	return e
}

// brokerConfig reads one setting of a broker.
func (c *Cluster) brokerConfig(ctx context.Context, name string) (string, error) {
	c.mu.Lock()
	brokers := maps.Clone(c.brokers)
	c.mu.Unlock()
	err := errors.New("no broker is known")
	for _, id := range sortedKeys(brokers) {
		req := &sarama.DescribeConfigsRequest{Version: 1, Resources: []*sarama.ConfigResource{{
			Type: sarama.BrokerResource, Name: strconv.Itoa(int(id)), ConfigNames: []string{name},
		}}}
		var resp *sarama.DescribeConfigsResponse
		err = c.ask(ctx, brokers[id], func(b *sarama.Broker) (err error) {
			resp, err = b.DescribeConfigs(req)
			return err
		})
		if err != nil {
			continue
		}
		for _, r := range resp.Resources {
			if code := sarama.KError(r.ErrorCode); code != sarama.ErrNoError {
				return "", codeError(reqConfigs, r.Name, code)
			}
			for _, e := range r.Configs {
				if e.Name == name {
					return e.Value, nil
				}
			}
		}
		return "", fmt.Errorf("the broker does not know %s", name)
	}
	return "", err
}
