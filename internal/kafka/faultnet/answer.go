package faultnet

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// request decodes a request frame.
func request(frame []byte) (kmsg.Request, error) {
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
	return req, nil
}

// respond decodes a request frame and encodes the answer to it.
func respond(frame []byte, fn func(kmsg.Request) kmsg.Response) ([]byte, error) {
	req, err := request(frame)
	if err != nil {
		return nil, err
	}
	key, version := req.Key(), req.GetVersion()
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

// refuse answers a request frame with an error code.
func refuse(frame []byte, code int16) ([]byte, error) {
	return respond(frame, func(r kmsg.Request) kmsg.Response { return refusal(r, code) })
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
	case *kmsg.ListOffsetsRequest:
		resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition, rp.ErrorCode, rp.Offset = p.Partition, code, -1
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.DescribeProducersRequest:
		resp := r.ResponseKind().(*kmsg.DescribeProducersResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewDescribeProducersResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewDescribeProducersResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.OffsetFetchRequest:
		return refusedOffsets(r, code)
	}
	return topLevel(req, code)
}

// metadata is the request whose answer always names the brokers, also when it refuses topics.
const metadata Key = 3

// refuseAfter puts an error code into the answer that a broker gave to a request.
func refuseAfter(request, body []byte, code int16) ([]byte, error) {
	if Key(binary.BigEndian.Uint16(request[4:])) != metadata {
		return refuse(request, code)
	}
	return respond(request, func(r kmsg.Request) kmsg.Response {
		resp := r.ResponseKind().(*kmsg.MetadataResponse)
		resp.SetVersion(r.GetVersion())
		body = body[4:] // the correlation ID
		if resp.IsFlexible() {
			body = body[1:] // no tags
		}
		if err := resp.ReadFrom(body); err != nil {
			panic(fmt.Sprintf("faultnet: the broker's metadata: %v", err))
		}
		for i := range resp.Topics {
			resp.Topics[i].ErrorCode, resp.Topics[i].Partitions = code, nil
		}
		return resp
	})
}

// refusedOffsets has the code where a broker puts it: some are about the group, some about a partition.
func refusedOffsets(r *kmsg.OffsetFetchRequest, code int16) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.OffsetFetchResponse)
	switch code {
	case 3, 29, 88: // unknown topic, not authorized for the topic, unstable
	default:
		resp.ErrorCode = code
		for _, g := range r.Groups {
			rg := kmsg.NewOffsetFetchResponseGroup()
			rg.Group, rg.ErrorCode = g.Group, code
			resp.Groups = append(resp.Groups, rg)
		}
		return resp
	}
	for _, t := range r.Topics {
		rt := kmsg.NewOffsetFetchResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetFetchResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.Offset = p, code, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
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
	case *kmsg.JoinGroupResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.SyncGroupResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.HeartbeatResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.LeaveGroupResponse:
		resp.ErrorCode = code
		return resp
	}
	panic(fmt.Sprintf("faultnet: no refusal for request %d", req.Key()))
}
