package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// adminLimit bounds what the cleaning up waits for.
const adminLimit = 60 * time.Second

// admin makes and removes what the run needs in the cluster.
type admin struct {
	client *kgo.Client
	prefix string
	own    []string // topics that the run makes, internal ones included
}

// internal are the topics that the workers make, by the pipeline's topology.
func (c Config) topics() (made []string) {
	return []string{c.topic("bills"), c.topic("unique"), c.topic("totals"), c.topic("regions")}
}

// clear refuses to go on if there are topics with the prefix, or removes those of an earlier run.
func (a *admin) clear(ctx context.Context, found []string, yes bool) error {
	if len(found) == 0 {
		return nil
	}
	if !yes {
		return fmt.Errorf("%w: there are topics that begin with %q: %s; take another --prefix, or --yes to remove those of an earlier soak",
			daemon.ErrConfig, a.prefix+"-", strings.Join(found, ", "))
	}
	var strange []string
	for _, t := range found {
		if !slices.Contains(a.own, t) {
			strange = append(strange, t)
		}
	}
	if len(strange) > 0 {
		return fmt.Errorf("%w: topics that no soak has made begin with %q: %s; take another --prefix", daemon.ErrConfig, a.prefix+"-", strings.Join(strange, ", "))
	}
	return a.remove(ctx)
}

// create makes the topics with the cluster's own replication.
func (a *admin) create(ctx context.Context, partitions int32, names []string) error {
	deadline := time.Now().Add(adminLimit)
	for {
		req := kmsg.NewPtrCreateTopicsRequest()
		for _, name := range names {
			t := kmsg.NewCreateTopicsRequestTopic()
			t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, -1
			req.Topics = append(req.Topics, t)
		}
		resp, err := req.RequestWith(ctx, a.client)
		if err != nil {
			return fmt.Errorf("soak: making topics: %w", err)
		}
		var left []string
		for _, t := range resp.Topics {
			err := kerr.ErrorForCode(t.ErrorCode)
			switch {
			case errors.Is(err, kerr.TopicAlreadyExists) && time.Now().Before(deadline):
				left = append(left, t.Topic) // its deletion is under way
			case err != nil:
				return fmt.Errorf("soak: making topic %q: %w", t.Topic, err)
			}
		}
		if names = left; len(names) == 0 {
			return nil
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// await waits until each topic has been heard of by whoever is asked: a broker may hear of it later than the one that made it.
func await(ctx context.Context, c *rawlog.Cluster, names []string) error {
	for deadline := time.Now().Add(adminLimit); ; {
		_, err := c.Bounds(ctx, names...)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("soak: the topics that were made are not to be seen: %w", err)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// remove deletes the topics and the group. It goes on after an error, and returns all.
func (a *admin) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminLimit)
	defer cancel()
	return errors.Join(a.removeGroup(ctx), a.removeTopics(ctx))
}

func (a *admin) removeTopics(ctx context.Context) error {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = a.own
	for _, t := range a.own {
		x := kmsg.NewDeleteTopicsRequestTopic()
		x.Topic = kmsg.StringPtr(t)
		req.Topics = append(req.Topics, x)
	}
	resp, err := req.RequestWith(ctx, a.client)
	if err != nil {
		return fmt.Errorf("soak: removing topics: %w", err)
	}
	var errs []error
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			errs = append(errs, fmt.Errorf("soak: removing topic %q: %w", *t.Topic, err))
		}
	}
	return errors.Join(errs...)
}

// removeGroup ends the memberships of the workers, which are static and would stay for the session
// timeout, then deletes the group.
func (a *admin) removeGroup(ctx context.Context) error {
	for {
		err := a.tryRemoveGroup(ctx)
		if err == nil || !errors.Is(err, kerr.NonEmptyGroup) {
			return err
		}
		if perr := pause(ctx, 200*time.Millisecond); perr != nil {
			return fmt.Errorf("soak: removing group %q: %w", a.prefix, err)
		}
	}
}

// leave ends the memberships.
func (a *admin) leave(ctx context.Context) error {
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{a.prefix}
	groups, err := describe.RequestWith(ctx, a.client)
	if err != nil {
		return fmt.Errorf("soak: group %q: %w", a.prefix, err)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = a.prefix
	for _, g := range groups.Groups {
		for _, m := range g.Members {
			x := kmsg.NewLeaveGroupRequestMember()
			x.MemberID, x.InstanceID = m.MemberID, m.InstanceID
			leave.Members = append(leave.Members, x)
		}
	}
	if len(leave.Members) == 0 {
		return nil
	}
	if _, err := leave.RequestWith(ctx, a.client); err != nil {
		return fmt.Errorf("soak: group %q: %w", a.prefix, err)
	}
	return nil
}

func (a *admin) tryRemoveGroup(ctx context.Context) error {
	if err := a.leave(ctx); err != nil {
		return err
	}
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = []string{a.prefix}
	resp, err := del.RequestWith(ctx, a.client)
	if err != nil {
		return fmt.Errorf("soak: removing group %q: %w", a.prefix, err)
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return fmt.Errorf("soak: removing group %q: %w", a.prefix, err)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("soak: %w", ctx.Err())
	}
}
