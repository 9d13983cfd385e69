package kafka

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

// TestSmallClusterSaysWhy: one broker with Kafka's default replication factors never has a coordinator.
// Kafka answers "not available" for ever; we name the setting within 10 s.
func TestSmallClusterSaysWhy(t *testing.T) {
	f := newFake(t, 1, kfake.BrokerConfigs(map[string]string{
		"transaction.state.log.replication.factor": "3", "offsets.topic.replication.factor": "3",
	}))
	topic := makeTopic(t, f.c, 1)
	f.net.Refuse(faultnet.KeyOf("FindCoordinator"), int16(sarama.ErrConsumerCoordinatorNotAvailable), 100_000)
	defer f.net.Clear()
	results := make(chan error)
	asks := map[string]func() error{
		"init": func() error { return f.c.NewProducer(broker.ProducerConfig{TransactionalID: "x"}).Init(testContext(t)) },
		"offsets": func() error {
			_, err := f.c.CommittedOffsets(testContext(t), "g", []record.TopicPartition{tpOf(topic, 0)})
			return err
		},
		"join": func() error {
			return f.c.Join(testContext(t), broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{topic}}}, &testMember{changed: make(chan struct{}, 1)})
		},
	}
	begin := time.Now()
	for _, ask := range asks {
		go func() { results <- ask() }()
	}
	for range asks {
		err := <-results
		if !errors.Is(err, broker.ErrConfig) || !strings.Contains(err.Error(), "replication.factor is 3 but the cluster has 1 broker") {
			t.Error(err)
		}
	}
	if d := time.Since(begin); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestCoordinatorOfALargeClusterIsWaitedFor: two of three brokers are down. The topics of the coordinators are there, and so there will be
// coordinators again: no configuration is to blame, and nothing may end for good.
func TestCoordinatorOfALargeClusterIsWaitedFor(t *testing.T) {
	f := newFake(t, 1, kfake.BrokerConfigs(map[string]string{
		"transaction.state.log.replication.factor": "3", "offsets.topic.replication.factor": "3",
	}), kfake.SeedTopics(1, "__consumer_offsets", "__transaction_state"))
	topic := makeTopic(t, f.c, 1)
	find := faultnet.KeyOf("FindCoordinator")
	f.net.Refuse(find, int16(sarama.ErrConsumerCoordinatorNotAvailable), 100_000)
	results := make(chan error)
	for _, ask := range []func() error{
		func() error { return f.c.NewProducer(broker.ProducerConfig{TransactionalID: "x"}).Init(testContext(t)) },
		func() error {
			_, err := f.c.CommittedOffsets(testContext(t), "g", []record.TopicPartition{tpOf(topic, 0)})
			if errors.Is(err, broker.ErrConfig) {
				return err
			}
			return nil // it does not wait, its caller asks again
		},
	} {
		go func() { results <- ask() }()
	}
	time.AfterFunc(explainAfter+3*time.Second, f.net.Clear)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
