package record

import (
	"encoding/binary"
	"fmt"
)

// MarkHeader is the header that holds a mark.
const MarkHeader = "streamd-time"

// Mark is what a task says in a repartition topic of its event time, for the tasks that read there: with each record, in its
// last header, and now and then as a record of its own in each partition, with neither key nor value and with no other
// header. The layout is in docs/format.md.
type Mark struct {
	// Task is the one that says it, of the part that writes the topic.
	Task Partition
	// Watermark is the event time below which no record will come from it, in milliseconds since 1970.
	Watermark int64
	// Idle says that it has nothing to read, so that nobody is to wait for it.
	Idle bool
}

const (
	markFormat = 1
	markIdle   = 1 // bits of the flags
	markAlone  = 2
	// MarkBytes is the size of the header's value.
	MarkBytes = 14
)

// IsMark says whether a record of a repartition topic is nothing but a mark. Records of users are never: see topology.KeyBy.
func IsMark(key, value []byte, h Headers) bool {
	return key == nil && value == nil && len(h) == 1 && h[0].Key == MarkHeader && len(h[0].Value) > 1 && h[0].Value[1]&markAlone != 0
}

// Append appends the value of the header, MarkBytes in all.
func (m Mark) Append(b []byte) []byte {
	flags := byte(0)
	if m.Idle {
		flags = markIdle
	}
	b = append(b, markFormat, flags)
	b = binary.BigEndian.AppendUint32(b, uint32(m.Task))
	return binary.BigEndian.AppendUint64(b, uint64(m.Watermark)^1<<63)
}

// Headers returns the headers of a record that is nothing but the mark.
func (m Mark) Headers() Headers {
	v := m.Append(make([]byte, 0, MarkBytes))
	v[1] |= markAlone
	return Headers{{Key: MarkHeader, Value: v}}
}

// ParseMark reads the value of the header. An error: it was written by a newer version, or is damaged.
func ParseMark(v []byte) (Mark, error) {
	switch {
	case len(v) > 0 && v[0] > markFormat:
		return Mark{}, fmt.Errorf("record: mark of format %d, this version knows up to %d: it was written by a newer one", v[0], markFormat)
	case len(v) != MarkBytes || v[0] != markFormat || v[1] > markIdle|markAlone || v[2] > 127:
		return Mark{}, fmt.Errorf("record: a mark of %d bytes that is damaged", len(v))
	}
	return Mark{
		Task:      Partition(binary.BigEndian.Uint32(v[2:])),
		Watermark: int64(binary.BigEndian.Uint64(v[6:]) ^ 1<<63),
		Idle:      v[1]&markIdle != 0,
	}, nil
}
