package sink

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
)

// TransactionID names a prepared transaction in a target: whose it is, which batch, and that no other one ever has the name.
//
//	streamd-SINK-TOPIC-PARTITION:NEXT-TIME-NONCE
//
// SINK and TOPIC are hashes, so that two pipelines on one server, and topics that were made anew, do not meet. NEXT is the offset after the batch's last
// row, TIME the second of its preparation. Before the colon stand at most 59 bytes and behind it at most 58: XA takes 64 each, PostgreSQL 199 in all.
type TransactionID string

// transactionPrefix begins the IDs of all pipelines.
const transactionPrefix = "streamd-"

// NewTransactionID makes an ID for a batch of a partition.
func NewTransactionID(p Partition, next record.Offset, now time.Time) TransactionID {
	return TransactionID(fmt.Sprintf("%s:%d-%d-%s", transactionOwner(p), next, now.Unix(), strings.ToLower(rand.Text())))
}

func transactionOwner(p Partition) string {
	return fmt.Sprintf("%s-%s-%d", transactionSink(p.Sink), hashed(p.TopicID, 13), p.Partition)
}

func transactionSink(sink string) string { return transactionPrefix + hashed(sink, 26) }

// hashed is the beginning of a hash, in letters that need no quotes anywhere.
func hashed(s string, length int) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:length]
}

// ParseTransactionID recognises an ID; false for what is no transaction of streamd.
func ParseTransactionID(s string) (TransactionID, bool) {
	id := TransactionID(s)
	_, _, ok := id.batch()
	return id, ok
}

// batch reads what stands behind the colon.
func (id TransactionID) batch() (next record.Offset, at time.Time, ok bool) {
	owner, batch, found := strings.Cut(string(id), ":")
	parts := strings.Split(batch, "-")
	if !found || len(owner) > 64 || len(batch) > 64 || !strings.HasPrefix(owner, transactionPrefix) || len(parts) != 3 || strings.Trim(owner+batch, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return 0, at, false
	}
	n, err := strconv.ParseInt(parts[0], 10, 64)
	seconds, failed := strconv.ParseInt(parts[1], 10, 64)
	return record.Offset(n), time.Unix(seconds, 0), err == nil && failed == nil
}

// Of says whether the transaction is of a partition, in the topic that it has now.
func (id TransactionID) Of(p Partition) bool {
	_, _, ok := id.batch()
	return ok && strings.HasPrefix(string(id), transactionOwner(p)+":")
}

// OfSink says whether the transaction is of a sink (Partition.Sink), in whichever partition and topic.
func (id TransactionID) OfSink(sink string) bool {
	return strings.HasPrefix(string(id), transactionSink(sink)+"-")
}

// Partition is the one whose batch it is; -1 if the ID is none.
func (id TransactionID) Partition() record.Partition {
	owner, _, _ := strings.Cut(string(id), ":")
	n, err := strconv.ParseInt(owner[strings.LastIndexByte(owner, '-')+1:], 10, 32)
	if err != nil {
		return -1
	}
	return record.Partition(n)
}

// Time is when it was prepared, by the clock of whoever did.
func (id TransactionID) Time() time.Time {
	_, at, _ := id.batch()
	return at
}
