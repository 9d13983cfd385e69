package ids

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/record"
)

// instance is the import's name in the application's group.
const instance = "streamd-ids-import"

// joinPatience is how long the group may take to give the import its partitions.
const joinPatience = 90 * time.Second

// errOthers: somebody else is in the group.
var errOthers = fmt.Errorf("the pipeline is running, or was started meanwhile: stop it and import again, which goes on where this ended: %w", daemon.ErrInUse)

// member is the import's membership in the application's group, as the only one: whoever joins ends it.
type member struct {
	cluster broker.Cluster
	group   string
	want    map[record.TopicPartition]bool
	ready   chan struct{} // closed when mine or lost
	stop    context.CancelFunc
	ended   chan struct{}

	mu   sync.Mutex // guards the fields below
	meta broker.GroupMeta
	mine bool
	lost bool
	err  error
}

// join becomes the only member of a group, with all partitions of the topics.
func join(ctx context.Context, c broker.Cluster, group string, topics []broker.Topic) (*member, error) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	m := &member{cluster: c, group: group, want: map[record.TopicPartition]bool{}, ready: make(chan struct{}), stop: stop, ended: make(chan struct{})}
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
		for i := range t.Partitions {
			m.want[record.TopicPartition{Topic: t.Name, Partition: record.Partition(i)}] = true
		}
	}
	go func() {
		defer close(m.ended)
		err := c.Join(run, broker.GroupConfig{Group: group, Instance: instance, CoPartitioned: [][]string{names}}, m)
		m.mu.Lock()
		m.err = err
		m.mu.Unlock()
	}()
	patience := time.NewTimer(joinPatience)
	defer patience.Stop()
	var err error
	select {
	case <-m.ready:
		_, err = m.current()
	case <-m.ended:
		err = m.err
	case <-patience.C:
		err = fmt.Errorf("%w: group %q gave no partitions within %v", broker.ErrUnreachable, group, joinPatience)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		m.leave(ctx)
		return nil, err
	}
	return m, nil
}

// Assigned implements broker.GroupHandler.
func (m *member) Assigned(meta broker.GroupMeta, owned []record.TopicPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := 0
	for _, tp := range owned {
		if m.want[tp] {
			have++
		}
	}
	first := !m.mine && !m.lost
	if m.meta = meta; have == len(m.want) {
		m.mine = true
	} else {
		m.lost = true
	}
	if first {
		close(m.ready)
	}
}

// Revoked implements broker.GroupHandler.
func (m *member) Revoked(context.Context, []record.TopicPartition) { m.lose() }

// Lost implements broker.GroupHandler.
func (m *member) Lost([]record.TopicPartition) { m.lose() }

func (m *member) lose() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = true
}

// current is what a commit is made with.
func (m *member) current() (broker.GroupMeta, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost {
		return m.meta, errOthers
	}
	return m.meta, m.err
}

// leave ends the membership at once, so that the pipeline's start need not wait for it.
func (m *member) leave(ctx context.Context) {
	m.stop()
	<-m.ended
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = m.cluster.LeaveGroup(ctx, m.group, instance) // if not, its session ends
}
