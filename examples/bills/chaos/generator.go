package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// bill is what the topic holds.
type bill struct {
	ID       string    `json:"bill_id"`
	Account  string    `json:"account"`
	Amount   string    `json:"amount"`
	IssuedAt time.Time `json:"issued_at"`
}

// late is how old a late bill is: older than the retention of IDs.
const late = 2 * time.Hour

// sent counts what the generator has sent.
type sent struct{ bills, sameBatch, later, otherPartition, conflicts, late, poison int }

func (s sent) String() string {
	return fmt.Sprintf("%d bills; copies: %d in the same batch, %d later, %d in another partition; %d with another amount; %d late, %d no JSON",
		s.bills, s.sameBatch, s.later, s.otherPartition, s.conflicts, s.late, s.poison)
}

// generate sends bills in batches of a twentieth of a second until ctx ends.
func generate(ctx context.Context, c *kgo.Client, rate int) (s sent, err error) {
	random := rand.New(rand.NewPCG(1, 1))
	tick := time.NewTicker(time.Second / 20)
	defer tick.Stop()
	began := time.Now()
	var old []bill
	for ctx.Err() == nil {
		var batch []*kgo.Record
		add := func(b bill, partition int) {
			value, _ := json.Marshal(b) // of such a type it cannot fail
			batch = append(batch, &kgo.Record{Topic: topic, Partition: int32(partition), Value: value})
		}
		for range max(1, rate/20) {
			n := s.bills
			b := bill{fmt.Sprintf("b%d", n), fmt.Sprintf("a%d", n%50), fmt.Sprintf("%d.%02d", n%97+1, n%100), time.Now().UTC()}
			home := n % partitions
			switch dice := random.IntN(100); {
			case dice < 75 || len(old) == 0:
				add(b, home)
				old = append(old, b)
				s.bills++
				if dice < 5 {
					add(b, home)
					s.sameBatch++
				}
			case dice < 85:
				n = len(old) - 1 - random.IntN(min(len(old), 2000))
				add(old[n], n%partitions)
				s.later++
			case dice < 93:
				n = len(old) - 1 - random.IntN(min(len(old), 2000))
				add(old[n], (n+1)%partitions)
				s.otherPartition++
			case dice < 96:
				// Behind the first one, in its partition: which of two amounts is the first one must not be chance.
				n = len(old) - 1 - random.IntN(min(len(old), 2000))
				other := old[n]
				other.Amount = "0.01"
				add(other, n%partitions)
				s.conflicts++
			case dice < 98 && time.Since(began) > 5*time.Second: // when all partitions know what time it is
				b.ID, b.IssuedAt = fmt.Sprintf("late%d", s.late), b.IssuedAt.Add(-late)
				add(b, home)
				s.late++
			default:
				batch = append(batch, &kgo.Record{Topic: topic, Partition: int32(home), Value: []byte("{no bill")})
				s.poison++
			}
		}
		// Not ctx: the last batch is sent whole.
		if err := c.ProduceSync(context.WithoutCancel(ctx), batch...).FirstErr(); err != nil {
			return s, fmt.Errorf("send bills: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return s, nil
}
