package faultnet

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// respond decodes a request frame and encodes the answer to it.
func respond(frame []byte, fn func(kmsg.Request) kmsg.Response) ([]byte, error) {
	key, version := int16(binary.BigEndian.Uint16(frame[4:])), int16(binary.BigEndian.Uint16(frame[6:]))
	req := kmsg.RequestForKey(key)
	if req == nil {
		return nil, fmt.Errorf("faultnet: unknown request %d", key)
	}
	req.SetVersion(version)
	body := frame[12:]
	if n := int16(binary.BigEndian.Uint16(body)); n > 0 { // client ID
		body = body[n:]
	}
	body = body[2:]
	if req.IsFlexible() {
		body = body[1:] // no tags
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("faultnet: request %d version %d: %w", key, version, err)
	}
	resp := fn(req)
	resp.SetVersion(version)
	b := append(make([]byte, 4), frame[8:12]...) // the correlation ID
	if resp.IsFlexible() && key != 18 {          // ApiVersions answers with a header without tags
		b = append(b, 0)
	}
	b = resp.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}

// refusal is the answer that carries an error code in every place where a broker would put it.
func refusal(req kmsg.Request, code int16) kmsg.Response {
	switch r := req.(type) {
	case *kmsg.ProduceRequest:
		resp := r.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode, rp.BaseOffset = p.Partition, code, -1
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.FetchRequest:
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.ErrorCode, rp.HighWatermark = p.Partition, code, -1
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.AddPartitionsToTxnRequest:
		resp := r.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewAddPartitionsToTxnResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.TxnOffsetCommitRequest:
		resp := r.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	return topLevel(req, code)
}

// topLevel is the answer of requests with one code for the whole.
func topLevel(req kmsg.Request, code int16) kmsg.Response {
	switch resp := req.ResponseKind().(type) {
	case *kmsg.InitProducerIDResponse:
		resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = code, -1, -1
		return resp
	case *kmsg.AddOffsetsToTxnResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.EndTxnResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.FindCoordinatorResponse:
		resp.ErrorCode, resp.NodeID = code, -1
		return resp
	case *kmsg.OffsetFetchResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.JoinGroupResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.SyncGroupResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.HeartbeatResponse:
		resp.ErrorCode = code
		return resp
	}
	panic(fmt.Sprintf("faultnet: no refusal for request %d", req.Key()))
}
