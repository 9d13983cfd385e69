package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
)

// Who asks for the members of a group that is between two generations, or of which one says what nobody can read, is told at once: it is not asked again until a deadline.
func TestMembersAreToldAtOnce(t *testing.T) {
	f := newFake(t, 1)
	c, err := kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 3, "odd", "consumer", 45_000, 45_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte{0, 1, 0x7f, 0xff, 0xff, 0xff}}} // more topics than there are bytes
	joined, err := join.RequestWith(t.Context(), c)
	if err == nil && joined.ErrorCode == 79 { // MEMBER_ID_REQUIRED: here it is
		join.MemberID = joined.MemberID
		joined, err = join.RequestWith(t.Context(), c)
	}
	if err != nil || joined.ErrorCode != 0 {
		t.Fatal(joined, err)
	}
	told := func(want error) {
		t.Helper()
		began := time.Now()
		got, err := f.c.Members(t.Context(), "odd")
		if took := time.Since(began); !errors.Is(err, want) || took > 5*time.Second {
			t.Errorf("%v, %v after %v; want %v", got, err, took, want)
		}
	}
	told(broker.ErrRebalancing)
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.Generation, sync.MemberID = "odd", joined.Generation, joined.MemberID
	sync.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: joined.MemberID, MemberAssignment: []byte{0, 1, 0xff, 0xff, 0xff, 0xfe}}} // fewer than none
	synced, err := sync.RequestWith(t.Context(), c)
	if err != nil || synced.ErrorCode != 0 {
		t.Fatal(synced, err)
	}
	told(broker.ErrCorrupt)
}
