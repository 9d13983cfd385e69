package operate

import (
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/pipeline"
)

// Leave takes a static member out of the pipeline's group, so that the others get its partitions at once instead of after its session
// timeout. daemon.ErrConfig if there is no such member.
func Leave(ctx context.Context, p *pipeline.Pipeline, instance string) error {
	c, err := connect(p.Kafka)
	if err != nil {
		return err
	}
	defer c.close()
	members, err := c.Members(ctx, p.Name)
	if err != nil {
		return err
	}
	var known []string
	for _, m := range members {
		if m.Instance != instance {
			known = append(known, m.String())
			continue
		}
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = p.Name
		x := kmsg.NewLeaveGroupRequestMember()
		x.InstanceID = kmsg.StringPtr(instance)
		req.Members = append(req.Members, x)
		resp, err := req.RequestWith(ctx, c.kgo)
		if err != nil {
			return failed("leave group", err)
		}
		if err := failedCode("leave group", resp.ErrorCode); err != nil {
			return err
		}
		for _, r := range resp.Members {
			if err := failedCode(fmt.Sprintf("leave group as %q", instance), r.ErrorCode); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%w: group %q has no member with instance ID %q; its members are: %s", daemon.ErrConfig, p.Name, instance, orNone(known))
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
