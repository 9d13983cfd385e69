package soak

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

// A broker may be asked for topics that it has not heard of yet: a soak that has made them a moment ago must not end by that.
func TestTopicsThatWereMadeAMomentAgo(t *testing.T) {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	c, err := rawlog.Open(rawlog.Config{Brokers: broker.ListenAddrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	names := []string{"p-bills", "p-unique"}
	if err := (&admin{client: client, prefix: "p"}).create(ctx, 2, names); err != nil {
		t.Fatal(err)
	}
	unheard := 5
	broker.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		broker.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		if len(req.Topics) == 0 || unheard == 0 {
			return nil, nil, false
		}
		unheard--
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, x := range req.Topics {
			of := kmsg.NewMetadataResponseTopic()
			of.Topic, of.ErrorCode = x.Topic, kerr.UnknownTopicOrPartition.Code
			resp.Topics = append(resp.Topics, of)
		}
		return resp, nil, true
	})
	if _, err := c.Bounds(ctx, names...); err == nil {
		t.Fatal("the broker has heard of them at once: nothing is tested")
	}
	if err := await(ctx, c, names); err != nil {
		t.Fatal(err)
	}
	if unheard > 0 {
		t.Errorf("it was not asked again: %d", unheard)
	}
}
