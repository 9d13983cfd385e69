package embedded

import (
	"errors"
	"fmt"
	"runtime/metrics"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// askedEach is how many requests pass between two looks at the memory.
const askedEach = 64

// refuseBeyond refuses records once the live memory of the process is more than a number of bytes. kfake compacts what is compacted only once in an
// hour, and not as Kafka does while transactions are open: a state of a few megabytes that changes all the time fills the memory of the machine.
func refuseBeyond(c *kfake.Cluster, bytes int64, full func()) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}} // as of the last collection: rubbish does not count
	asked, over, told := 0, false, false
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		if asked++; asked%askedEach == 1 {
			metrics.Read(live)
			over = int64(live[0].Value.Uint64()) > bytes
		}
		req := r.(*kmsg.ProduceRequest)
		if !over {
			return nil, nil, false
		}
		if !told && full != nil {
			full()
		}
		told = true
		why := fmt.Sprintf("the broker holds %d MiB in memory, its limit", bytes>>20)
		if req.Acks == 0 {
			return nil, errors.New(why), true // no answer is waited for: the connection ends, as Kafka does it
		}
		return refused(req, why), nil, true
	})
}

// refused is the answer that nothing was taken.
func refused(req *kmsg.ProduceRequest, why string) *kmsg.ProduceResponse {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.ErrorMessage, rp.BaseOffset = p.Partition, kerr.PolicyViolation.Code, &why, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
