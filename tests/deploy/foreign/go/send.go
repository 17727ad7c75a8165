package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "tuplewire.example/client/tuplewire/v1"
)

const (
	mostFrames    = 8 // on the way at once; the protocol allows 64
	frameMessages = 100
	probeEvery    = time.Second
)

type message struct {
	payload     []byte
	redelivered bool
}

type total struct{ messages, bytes uint64 }

// A session outlives the streams that carry it.
type session struct {
	hello    *pb.Hello // first on every stream; says how far we have heard
	sequence uint64    // the last frame that was made
	tasks    []int32
	waiting  map[int32][]message // what is in no frame
	inFlight []*pb.Frame
	resend   []*pb.Frame      // those in flight that go again over a new stream
	sent     map[int32]*total // since the session's start
	credit   map[int32]*pb.TaskCredit
	initial  *pb.TaskCredit

	accepted, acknowledged, refused int
}

func (s *session) pending() int { return s.accepted - s.acknowledged - s.refused }

// welcome goes on where the receiver stands; or, where it does not know this session, begins anew.
func (s *session) welcome(welcome *pb.Welcome) {
	s.initial = welcome.InitialCredit
	if welcome.SessionId == s.hello.SessionId {
		s.ack(&pb.Ack{Sequence: welcome.AcceptedSequence, Credits: welcome.Credits, Refusals: welcome.Refusals})
		s.resend = append([]*pb.Frame{}, s.inFlight...)
		return
	}
	s.hello.SessionId = welcome.SessionId
	again := map[int32][]message{}
	for _, frame := range s.inFlight {
		for _, group := range frame.Groups {
			rest := group.Data
			for _, length := range group.Lengths {
				again[group.Task] = append(again[group.Task], message{rest[:length], true})
				rest = rest[length:]
			}
		}
	}
	for task, messages := range again {
		s.waiting[task] = append(messages, s.waiting[task]...)
	}
	s.inFlight, s.resend, s.sequence, s.hello.AcknowledgedSequence = nil, nil, 0, 0
	s.sent, s.credit = map[int32]*total{}, map[int32]*pb.TaskCredit{}
	s.grant(welcome.Credits)
}

// ack settles the frames up to a sequence, but for what was refused, and takes new credit.
func (s *session) ack(ack *pb.Ack) {
	for _, refusal := range ack.Refusals {
		s.refused += int(refusal.Messages)
		s.acknowledged -= int(refusal.Messages) // counted below, with its frame
		fmt.Fprintf(os.Stderr, "%d to task %d: %s: %s\n", refusal.Messages, refusal.Task, refusal.Code, refusal.Detail)
	}
	for len(s.inFlight) > 0 && s.inFlight[0].Sequence <= ack.Sequence {
		for _, group := range s.inFlight[0].Groups {
			s.acknowledged += len(group.Lengths)
		}
		s.inFlight = s.inFlight[1:]
	}
	s.hello.AcknowledgedSequence = max(s.hello.AcknowledgedSequence, ack.Sequence)
	s.grant(ack.Credits)
}

func (s *session) grant(credits []*pb.TaskCredit) {
	for _, each := range credits {
		s.credit[each.Task] = each
	}
}

// nextFrame returns what to write next; nil for want of messages, of credit or of acknowledgements.
func (s *session) nextFrame() *pb.Frame {
	if len(s.resend) > 0 {
		frame := s.resend[0]
		s.resend = s.resend[1:]
		return frame
	}
	if len(s.inFlight) >= mostFrames {
		return nil
	}
	var groups []*pb.Group
	for _, task := range s.tasks {
		if group := s.take(task); len(group.Lengths) > 0 {
			groups = append(groups, group)
		}
	}
	if groups == nil {
		return nil
	}
	s.sequence++
	frame := &pb.Frame{Sequence: s.sequence, Groups: groups}
	s.inFlight = append(s.inFlight, frame)
	return frame
}

// take takes as many messages as the task's credit allows, all marked or none.
func (s *session) take(task int32) *pb.Group {
	credit, sent, group := s.credit[task], s.sent[task], &pb.Group{Task: task}
	if credit == nil {
		credit = s.initial
	}
	if sent == nil {
		sent = &total{}
		s.sent[task] = sent
	}
	for waiting := s.waiting[task]; len(waiting) > 0 && len(group.Lengths) < frameMessages; waiting = waiting[1:] {
		next := waiting[0]
		if sent.messages >= credit.Messages || sent.bytes >= credit.Bytes ||
			len(group.Lengths) > 0 && next.redelivered != group.Redelivered {
			break
		}
		sent.messages++
		sent.bytes += uint64(len(next.payload))
		group.Redelivered = next.redelivered
		group.Lengths = append(group.Lengths, uint32(len(next.payload)))
		group.Data = append(group.Data, next.payload...)
		s.waiting[task] = waiting[1:]
	}
	return group
}

func send(set settings, channel *grpc.ClientConn) any {
	s := &session{
		hello: &pb.Hello{
			ProtocolVersion: 1, Topology: set.topology, SenderId: set.id, Incarnation: set.incarnation,
			AckMode: pb.AckMode_ACK_MODE_QUEUED,
		},
		tasks: set.tasks, waiting: map[int32][]message{},
	}
	for number := range set.count {
		for _, task := range set.tasks {
			s.waiting[task] = append(s.waiting[task], message{payload: []byte(strconv.Itoa(number))})
			s.accepted++
		}
	}
	connections := keepUp(channel, func() bool { return s.pending() == 0 }, func(ctx context.Context) (metadata.MD, error) {
		stream, err := pb.NewMessagingClient(channel).Send(ctx)
		if err != nil {
			return nil, err
		}
		err = s.carry(stream)
		return stream.Trailer(), err
	})
	return map[string]int{
		"accepted": s.accepted, "acknowledged": s.acknowledged, "refused": s.refused, "pending": s.pending(),
		"connections": connections,
	}
}

// carry says hello, then writes what may be written and reads what is acknowledged, until the stream ends.
func (s *session) carry(stream grpc.BidiStreamingClient[pb.SendRequest, pb.SendResponse]) error {
	if err := stream.Send(&pb.SendRequest{Kind: &pb.SendRequest_Hello{Hello: s.hello}}); err != nil {
		_, err = stream.Recv() // which says why
		return err
	}
	heard, failed := make(chan *pb.SendResponse), make(chan error, 1)
	go func() {
		for {
			response, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			heard <- response
		}
	}()
	probe := time.NewTicker(probeEvery)
	defer probe.Stop()
	welcomed, ended := false, false
	write := func(request *pb.SendRequest) {
		if !ended && stream.Send(request) != nil {
			ended = true // the reader hears why
		}
	}
	for {
		select {
		case err := <-failed:
			return err
		case <-probe.C:
			if welcomed {
				write(&pb.SendRequest{Kind: &pb.SendRequest_Probe{Probe: &pb.Probe{AcknowledgedSequence: s.hello.AcknowledgedSequence}}})
			}
			continue
		case response := <-heard:
			switch kind := response.Kind.(type) {
			case *pb.SendResponse_Welcome:
				s.welcome(kind.Welcome)
				welcomed = true
			case *pb.SendResponse_Ack:
				if kind.Ack.PreviousSequence > s.hello.AcknowledgedSequence {
					continue // one before it was lost; the probe asks again
				}
				s.ack(kind.Ack)
			case *pb.SendResponse_Drain: // what is accepted is acknowledged before the stream ends
				if !ended {
					ended = stream.CloseSend() == nil
				}
			}
		}
		for frame := (*pb.Frame)(nil); welcomed && !ended; {
			if frame = s.nextFrame(); frame == nil {
				break
			}
			write(&pb.SendRequest{Kind: &pb.SendRequest_Frame{Frame: frame}})
		}
		if s.pending() == 0 && !ended {
			write(&pb.SendRequest{Kind: &pb.SendRequest_Goodbye{Goodbye: &pb.Goodbye{}}})
			ended = stream.CloseSend() == nil
		}
	}
}
