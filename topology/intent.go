package topology

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// intent is a call that is to be made, as the state has it. Its encoding stands in docs/format.md.
type intent struct {
	id           []byte // the record's, never empty
	key, request []byte // nil: null
	at           time.Time
	headers      record.Headers
}

// intentVersion begins each one.
const intentVersion byte = 1

var errIntent = errors.New("a call that is to be made is damaged")

// callKey is the idempotency key. The queue's identity of the outcome is the same.
func (in *intent) callKey(op *operator) string {
	return string(record.RootIdentity(record.BytesID(in.id)).Child(op.hash, 0).ID())
}

// lane is what the order of calls goes by; false: in no order.
func (in *intent) lane() (record.Hash, bool) {
	return record.BytesID(in.key).Hash(), in.key != nil
}

// append encodes it.
func (in *intent) append(dst []byte) []byte {
	dst = append(dst, intentVersion)
	at, ok := window.Of(in.at)
	if !ok {
		at = window.NoTime
	}
	var b [timeBytes]byte
	putTime(b[:], at)
	dst = append(dst, b[:]...)
	for _, part := range [][]byte{in.id, in.key, in.request} {
		dst = appendPart(dst, part)
	}
	for i := range in.headers {
		dst = appendPart(appendPart(dst, []byte(in.headers[i].Key)), in.headers[i].Value)
	}
	return dst
}

// appendPart writes bytes behind their number and one, or 0 for nil.
func appendPart(dst, part []byte) []byte {
	if part == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(part))+1), part...)
}

// cutPart takes a part off.
func cutPart(b []byte) (part, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	switch {
	case size <= 0 || n > uint64(len(b)-size)+1:
		return nil, nil, false
	case n == 0:
		return nil, b[size:], true
	}
	end := size + int(n-1)
	return b[size:end:end], b[end:], true
}

// decodeIntent reads one. It aliases b.
func decodeIntent(b []byte) (*intent, error) {
	if len(b) < 1+timeBytes || b[0] != intentVersion {
		return nil, errIntent
	}
	in := &intent{}
	if at := getTime(b[1:]); at >= window.MinMillis {
		in.at = at.Time()
	}
	b = b[1+timeBytes:]
	var ok bool
	for _, part := range []*[]byte{&in.id, &in.key, &in.request} {
		if *part, b, ok = cutPart(b); !ok {
			return nil, errIntent
		}
	}
	if len(in.id) == 0 {
		return nil, errIntent
	}
	for len(b) > 0 {
		var key, value []byte
		if key, b, ok = cutPart(b); !ok {
			return nil, errIntent
		}
		if value, b, ok = cutPart(b); !ok {
			return nil, errIntent
		}
		in.headers = append(in.headers, record.Header{Key: string(key), Value: value})
	}
	return in, nil
}
