//go:build planted && !bubble

package synctest

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/test/planted"
)

// plantedSeeds is within how many seeds each bug must be found.
const plantedSeeds = 500

func bugs() []planted.Bug {
	const (
		commit   = "internal/kafka/commit.go"
		producer = "internal/kafka/producer.go"
	)
	bug := func(name, file, old, is string) planted.Bug {
		return planted.Bug{Layer: "L2", Name: name, Changes: []planted.Change{{File: file, Old: old, New: is}}}
	}
	return []planted.Bug{
		// KIP-447 without its point: the broker checks neither member nor generation.
		{Layer: "L2", Name: "offsets by group ID only", Changes: []planted.Change{
			{File: commit, Old: "GenerationID: meta.Generation, MemberID: meta.Member, GroupInstanceID: instance, Topics: topics,", New: "GenerationID: -1, Topics: topics,"},
			{File: commit, Old: "\tvar instance *string\n", New: "\tvar instance *string\n\t_ = instance\n"},
		}},
		bug("applied on an unknown outcome", "processor/commit.go",
			"if outcome != broker.Committed {\n\t\treturn w.commitFailed",
			"if outcome == broker.NotCommitted {\n\t\treturn w.commitFailed"),
		// What the transactional producers of other libraries do: abort, and go on under the same epoch.
		bug("no new producer after a doubt", producer,
			"\tvar conflicts, failures int\n",
			`	if p.pid >= 0 {
		_, _ = p.coordinate(ctx, reqEndTxn, p.coord, func(b *sarama.Broker) (answer, error) {
			resp, err := b.EndTxn(&sarama.EndTxnRequest{Version: 3, TransactionalID: p.cfg.TransactionalID, ProducerID: p.pid, ProducerEpoch: p.epoch})
			if err != nil {
				return answer{}, err
			}
			return answer{resp.Err, p.cfg.TransactionalID}, nil
		})
		for _, part := range p.touched {
			part.sent = 0
		}
		p.ready = true
		return nil
	}
	var conflicts, failures int
`),
		bug("offsets outside the transaction", commit,
			"\t_, err := p.coordinate(ctx, reqTxnOffsetCommit, p.group, func(b *sarama.Broker) (answer, error) {\n",
			`	_, err := p.coordinate(ctx, reqTxnOffsetCommit, p.group, func(b *sarama.Broker) (answer, error) {
		if len(offsets) > 0 {
			req := &sarama.OffsetCommitRequest{Version: 7, ConsumerGroup: meta.Group, ConsumerGroupGeneration: meta.Generation, ConsumerID: meta.Member, GroupInstanceId: instance}
			for _, o := range offsets {
				req.AddBlockWithLeaderEpoch(o.Topic, int32(o.Partition), int64(o.Next), -1, 0, o.Metadata)
			}
			resp, err := b.CommitOffset(req)
			if err != nil {
				return answer{}, err
			}
			for _, o := range offsets {
				if code := resp.Errors[o.Topic][int32(o.Partition)]; code != sarama.ErrNoError {
					return answer{code, meta.Group}, nil
				}
			}
			return answer{sarama.ErrNoError, meta.Group}, nil
		}
`),
	}
}

// Each planted bug must be found within 500 seeds; how many it takes is the sensitivity of the harness.
func TestPlanted(t *testing.T) {
	all := bugs()
	planted.Check(t, all)
	lock, err := withWaitableLock(planted.ModuleRoot(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		t.Run(b.Name, func(t *testing.T) {
			planted.Find(t, b, planted.Search{
				Package: "./test/synctest", Tags: "bubble", Build: []string{lock}, Limit: plantedSeeds, Timeout: 8 * time.Minute,
				Args: []string{"-test.run=^TestSeeds$", fmt.Sprintf("-seeds=%d", plantedSeeds), "-until-red"},
			})
		})
	}
}
