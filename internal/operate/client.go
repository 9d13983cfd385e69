package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
)

// client asks the cluster: the raw reader's questions and requests of its own.
type client struct {
	*rawlog.Cluster
	kgo *kgo.Client
}

func connect(k pipeline.Kafka) (*client, error) {
	c, err := verify.Reach(k)
	if err != nil {
		return nil, err
	}
	raw, err := rawlog.Open(c)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(append(c.Options(), kgo.ClientID("streamd"))...)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("operate: %w: %w", broker.ErrConfig, err)
	}
	return &client{raw, cl}, nil
}

func (c *client) close() {
	c.Close()
	c.kgo.Close()
}

// failed gives an error of a request the kind that decides on the exit code.
func failed(what string, err error) error {
	kind := broker.ErrUnreachable
	var code *kerr.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("operate: %s: %w", what, err)
	case errors.Is(err, kerr.SaslAuthenticationFailed), errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, kerr.IllegalSaslState):
		kind = broker.ErrAuthentication
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed),
		errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		kind = broker.ErrAuthorization
	case errors.As(err, &code):
		return fmt.Errorf("operate: %s: %w", what, err)
	}
	return fmt.Errorf("operate: %s: %w: %w", what, kind, err)
}

// failedCode is failed for a code in an answer; nil for none.
func failedCode(what string, code int16) error {
	if err := kerr.ErrorForCode(code); err != nil {
		return failed(what, err)
	}
	return nil
}

// topicInfo is what is known of a topic.
type topicInfo struct {
	partitions int32
	id         [16]byte
}

// describe looks at topics. Those that are not there are left out.
func (c *client) describe(ctx context.Context, names []string) (map[string]topicInfo, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	for _, n := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return nil, failed("topics", err)
	}
	out := map[string]topicInfo{}
	for _, t := range resp.Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
		case err != nil:
			return nil, failed(fmt.Sprintf("topic %q", *t.Topic), err)
		default:
			out[*t.Topic] = topicInfo{int32(len(t.Partitions)), t.TopicID}
		}
	}
	return out, nil
}
