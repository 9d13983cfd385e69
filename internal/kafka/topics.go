package kafka

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
)

// Topics implements broker.Cluster. Without the right DescribeConfigs the settings of a topic stay zero.
func (c *Cluster) Topics(ctx context.Context, names ...string) (map[string]broker.Topic, error) {
	if len(names) == 0 {
		return map[string]broker.Topic{}, nil
	}
	var out map[string]broker.Topic
	where := strings.Join(names, ", ")
	err := c.retrying(ctx, reqMetadata, where, adminLimit, func(ctx context.Context) (err error) {
		var addr string
		out, addr, err = c.describeTopics(ctx, names)
		if err == nil && len(out) > 0 {
			err = c.describeConfigs(ctx, addr, out)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	for name, t := range out {
		c.limits[name] = t.MaxMessageBytes
	}
	c.mu.Unlock()
	return out, nil
}

// maxMessageBytes is a topic's max.message.bytes if it was described, else 0.
func (c *Cluster) maxMessageBytes(topic string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limits[topic]
}

// describeTopics asks for partitions, replicas and UUIDs. addr is the broker that answered.
func (c *Cluster) describeTopics(ctx context.Context, names []string) (out map[string]broker.Topic, addr string, err error) {
	resp, addr, err := c.describe(ctx, names...)
	if err != nil {
		return nil, "", err
	}
	out = make(map[string]broker.Topic, len(names))
	for _, t := range resp.Topics {
		switch t.Err {
		case sarama.ErrNoError, sarama.ErrLeaderNotAvailable:
			if len(t.Partitions) == 0 { // of a topic that is being made: this broker has not heard how many it has
				return nil, "", codeError(reqMetadata, t.Name, sarama.ErrLeaderNotAvailable)
			}
			d := broker.Topic{Name: t.Name, ID: uuidString(t.Uuid), Partitions: int32(len(t.Partitions))}
			for _, p := range t.Partitions {
				d.Replicas = max(d.Replicas, int16(len(p.Replicas)))
			}
			out[t.Name] = d
		case sarama.ErrUnknownTopicOrPartition:
		default:
			return nil, "", codeError(reqMetadata, t.Name, t.Err)
		}
	}
	return out, addr, nil
}

// uuidString prints a topic's ID as a UUID; empty if the broker has none (before Kafka 2.8).
func uuidString(u sarama.Uuid) string {
	if u == (sarama.Uuid{}) {
		return ""
	}
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Names of topic settings.
const (
	setCleanup         = "cleanup.policy"
	setRetention       = "retention.ms"
	setDeleteRetention = "delete.retention.ms"
	setTimestampType   = "message.timestamp.type"
	setMinInSync       = "min.insync.replicas"
	setMaxMessage      = "max.message.bytes"
)

// describeConfigs adds the settings to the topics.
func (c *Cluster) describeConfigs(ctx context.Context, addr string, topics map[string]broker.Topic) error {
	req := &sarama.DescribeConfigsRequest{Version: 1}
	for name := range topics {
		req.Resources = append(req.Resources, &sarama.ConfigResource{
			Type: sarama.TopicResource, Name: name,
			ConfigNames: []string{setCleanup, setRetention, setDeleteRetention, setTimestampType, setMinInSync, setMaxMessage},
		})
	}
	slices.SortFunc(req.Resources, func(a, b *sarama.ConfigResource) int { return strings.Compare(a.Name, b.Name) })
	var resp *sarama.DescribeConfigsResponse
	err := c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
		resp, err = b.DescribeConfigs(req)
		return err
	})
	if err != nil {
		return err
	}
	for _, r := range resp.Resources {
		if code := sarama.KError(r.ErrorCode); code != sarama.ErrNoError {
			if code == sarama.ErrTopicAuthorizationFailed {
				// Inputs and outputs may be described without it. Whoever needs a setting finds it zero.
				c.conf.Logger.Warn("kafka: the topic's settings are unknown: grant this principal DescribeConfigs", "topic", r.Name)
				continue
			}
			return codeError(reqConfigs, r.Name, code)
		}
		t, ok := topics[r.Name]
		if !ok {
			continue
		}
		for _, e := range r.Configs {
			setConfig(&t, e.Name, e.Value)
		}
		topics[r.Name] = t
	}
	return nil
}

// setConfig takes over one setting. What cannot be read stays zero: the caller compares and will say so.
func setConfig(t *broker.Topic, name, value string) {
	number, _ := strconv.ParseInt(value, 10, 64)
	switch name {
	case setCleanup:
		t.Cleanup = broker.CleanupPolicy(value)
	case setRetention:
		t.Retention = millis(number)
	case setDeleteRetention:
		t.DeleteRetention = millis(number)
	case setTimestampType:
		t.LogAppendTime = value == "LogAppendTime"
	case setMinInSync:
		t.MinInSync = int(number)
	case setMaxMessage:
		t.MaxMessageBytes = int(number)
	}
}

// millis converts without overflow: Kafka's "for ever" is MaxInt64 or -1.
func millis(n int64) time.Duration {
	switch {
	case n < 0:
		return -1
	case n > int64(1<<63-1)/int64(time.Millisecond):
		return 1<<63 - 1
	}
	return time.Duration(n) * time.Millisecond
}

// CreateTopic implements broker.Cluster. A creation without an answer is tried again, and may then
// answer ErrTopicExists though the topic is ours: the caller verifies what is there in any case.
func (c *Cluster) CreateTopic(ctx context.Context, t broker.Topic) error {
	detail := &sarama.TopicDetail{NumPartitions: t.Partitions, ReplicationFactor: t.Replicas, ConfigEntries: topicConfig(t)}
	if t.Replicas == 0 {
		detail.ReplicationFactor = -1
	}
	err := c.retrying(ctx, reqCreateTopic, t.Name, adminLimit, func(ctx context.Context) error {
		return c.createOnce(ctx, t.Name, detail)
	})
	switch {
	case errors.Is(err, broker.ErrTopicExists):
		// Another process may have made it a moment ago: whoever asks next must find it. How many
		// partitions it has is for the caller to judge.
		t.Partitions = 0
		if werr := c.awaitTopic(ctx, t); werr != nil {
			return werr
		}
		return err
	case err != nil:
		return err
	}
	return c.awaitTopic(ctx, t)
}

func (c *Cluster) createOnce(ctx context.Context, name string, detail *sarama.TopicDetail) error {
	addr, err := c.controllerAddr(ctx)
	if err != nil {
		return err
	}
	var resp *sarama.CreateTopicsResponse
	err = c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
		resp, err = b.CreateTopics(&sarama.CreateTopicsRequest{
			Version: 5, TopicDetails: map[string]*sarama.TopicDetail{name: detail}, Timeout: produceTimeout,
		})
		return err
	})
	if err != nil {
		return err
	}
	e := resp.TopicErrors[name]
	if e == nil {
		return fmt.Errorf("the answer lacks topic %q", name)
	}
	if e.Err == sarama.ErrNoError {
		return nil
	}
	out := codeError(reqCreateTopic, name, e.Err)
	if e.ErrMsg != nil && *e.ErrMsg != "" {
		out.Cause = fmt.Errorf("%w: %s", out.Cause, *e.ErrMsg)
	}
	return out
}

// controllerAddr returns the address of a broker that takes the creation of topics.
func (c *Cluster) controllerAddr(ctx context.Context) (string, error) {
	_, addr, err := c.describe(ctx, probeTopic)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.controller < 0 {
		return addr, nil
	}
	addr, ok := c.brokers[c.controller]
	if !ok {
		return "", codeError(reqMetadata, "controller", sarama.ErrBrokerNotAvailable)
	}
	return addr, nil
}

// topicConfig lists the settings to create a topic with.
func topicConfig(t broker.Topic) map[string]*string {
	out := map[string]*string{}
	set := func(name, value string) { out[name] = &value }
	if t.Cleanup != "" {
		set(setCleanup, string(t.Cleanup))
	}
	switch {
	case t.Retention < 0:
		set(setRetention, "-1")
	case t.Retention > 0:
		set(setRetention, strconv.FormatInt(t.Retention.Milliseconds(), 10))
	}
	if t.DeleteRetention > 0 {
		set(setDeleteRetention, strconv.FormatInt(t.DeleteRetention.Milliseconds(), 10))
	}
	if t.LogAppendTime {
		set(setTimestampType, "LogAppendTime")
	}
	if t.MinInSync > 0 {
		set(setMinInSync, strconv.Itoa(t.MinInSync))
	}
	if t.MaxMessageBytes > 0 {
		set(setMaxMessage, strconv.Itoa(t.MaxMessageBytes))
	}
	return out
}

// awaitTopic waits until every broker knows the new topic and all its leaders: one that does not
// would answer UNKNOWN_TOPIC_OR_PARTITION to the first requests.
func (c *Cluster) awaitTopic(ctx context.Context, t broker.Topic) error {
	ctx, cancel := context.WithTimeout(ctx, adminLimit)
	defer cancel()
	for _, addr := range c.addresses() {
		for n := 0; ; n++ {
			seen, err := c.topicSeen(ctx, addr, t)
			if seen || err != nil && ctx.Err() == nil && kindOf(err) == broker.ErrUnreachable {
				break // a broker that is down learns it when it comes back
			}
			if err != nil && (fatal(kindOf(err)) || ctx.Err() != nil) {
				return wrap(reqCreateTopic, t.Name, err)
			}
			if err := sleep(ctx, backoff(n, 2*time.Millisecond, 100*time.Millisecond)); err != nil {
				return wrap(reqCreateTopic, t.Name, fmt.Errorf("created, but broker %s does not know it yet: %w", addr, err))
			}
		}
	}
	c.refresh(ctx, []string{t.Name})
	return nil
}

// topicSeen says whether the broker at addr knows all leaders of the topic.
func (c *Cluster) topicSeen(ctx context.Context, addr string, t broker.Topic) (bool, error) {
	var resp *sarama.MetadataResponse
	err := c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
		resp, err = b.GetMetadata(sarama.NewMetadataRequest(protocolVersion(), []string{t.Name}))
		return err
	})
	if err != nil {
		return false, err
	}
	for _, m := range resp.Topics {
		if m.Name != t.Name || m.Err != sarama.ErrNoError || len(m.Partitions) == 0 || t.Partitions > 0 && len(m.Partitions) < int(t.Partitions) {
			continue
		}
		return !slices.ContainsFunc(m.Partitions, func(p *sarama.PartitionMetadata) bool {
			return p.Err != sarama.ErrNoError || p.Leader < 0
		}), nil
	}
	return false, nil
}

// checkVersions refuses brokers that lack a request that the guarantee stands on.
func (c *Cluster) checkVersions(ctx context.Context) error {
	var resp *sarama.ApiVersionsResponse
	err := c.askAny(ctx, func(b *sarama.Broker) (err error) {
		resp, err = b.ApiVersions(&sarama.ApiVersionsRequest{Version: 0})
		return err
	})
	if err != nil {
		return wrap(reqConnect, c.conf.Brokers[0], err)
	}
	have := map[int16][2]int16{}
	for _, k := range resp.ApiKeys {
		have[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	var missing []string
	for _, need := range []struct {
		key, version int16
		name         string
	}{
		{keyProduce, versionProduce, "Produce"},
		{keyFetch, versionFetch, "Fetch"},
		{9, 7, "OffsetFetch"},      // RequireStable
		{22, 3, "InitProducerId"},  // with the current epoch (KIP-360)
		{28, 3, "TxnOffsetCommit"}, // with the generation (KIP-447)
		{11, 5, "JoinGroup"},       // static membership (KIP-345)
	} {
		if v, ok := have[need.key]; !ok || need.version > v[1] || need.version < v[0] && need.key <= keyFetch {
			missing = append(missing, fmt.Sprintf("%s version %d", need.name, need.version))
		}
	}
	if len(missing) > 0 {
		return &broker.Error{
			Op: string(reqConnect), Where: c.conf.Brokers[0], Kind: broker.ErrUnsupported,
			Cause:  errors.New("the broker lacks " + strings.Join(missing, ", ")),
			Remedy: "use Apache Kafka 2.5 or later",
		}
	}
	_, c.tellsProducers = have[keyDescribeProducers]
	return nil
}
