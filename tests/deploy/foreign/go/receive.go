package main

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "tuplewire.example/client/tuplewire/v1"
)

const (
	windowMessages = 100
	windowBytes    = 1024 * 1024
)

// A consumer knows what has come, whatever stream it came over.
type consumer struct {
	set               settings
	workerIncarnation uint64
	received          map[int32]uint64 // the last sequence that has come
	numbers           map[int32]int    // the number that comes next
	repeated          int
	problems          []string
}

func (c *consumer) done() bool {
	for _, task := range c.set.tasks {
		if c.numbers[task] < c.set.count {
			return len(c.problems) > 0
		}
	}
	return true
}

// cursors acknowledges everything that has come, and makes room for as much again.
func (c *consumer) cursors() (cursors []*pb.TaskCursor) {
	for _, task := range c.set.tasks {
		sequence := c.received[task]
		cursors = append(cursors, &pb.TaskCursor{
			Task: task, AcknowledgedSequence: sequence, ReceivedSequence: sequence,
			CreditSequence: sequence + windowMessages, CreditBytes: windowBytes,
		})
	}
	return cursors
}

func (c *consumer) frame(frame *pb.Frame) {
	for _, group := range frame.Groups {
		rest := group.Data
		for index, length := range group.Lengths {
			sequence := group.FirstSequence + uint64(index)
			if sequence == c.received[group.Task]+1 {
				c.received[group.Task] = sequence
				c.message(group.Task, string(rest[:length]))
			} else if sequence > c.received[group.Task] {
				c.problems = append(c.problems, fmt.Sprintf("task %d: a gap before %d", group.Task, sequence))
			}
			rest = rest[length:]
		}
	}
}

func (c *consumer) message(task int32, payload string) {
	number, err := strconv.Atoi(payload)
	switch next := c.numbers[task]; {
	case err == nil && number == next:
		c.numbers[task]++
	case err == nil && number < next:
		c.repeated++ // a worker that has died had it
	default:
		c.problems = append(c.problems, fmt.Sprintf("task %d: %s came, not %d", task, payload, next))
	}
}

func receive(set settings, channel *grpc.ClientConn) any {
	c := &consumer{set: set, received: map[int32]uint64{}, numbers: map[int32]int{}, problems: []string{}}
	connections := keepUp(channel, c.done, func(ctx context.Context) (metadata.MD, error) {
		stream, err := pb.NewMessagingClient(channel).Recv(ctx)
		if err != nil {
			return nil, err
		}
		err = c.carry(stream)
		return stream.Trailer(), err
	})
	return map[string]any{
		"received": c.numbers, "repeated": c.repeated, "problems": c.problems, "connections": connections,
	}
}

// carry subscribes, then takes messages in and acknowledges them, until the stream ends.
func (c *consumer) carry(stream grpc.BidiStreamingClient[pb.RecvRequest, pb.RecvResponse]) error {
	// An error of a write comes back from the next read, with its reason.
	_ = stream.Send(&pb.RecvRequest{Kind: &pb.RecvRequest_Subscribe{Subscribe: &pb.Subscribe{
		ProtocolVersion: 1, Topology: c.set.topology, ConsumerId: c.set.id, Incarnation: c.set.incarnation,
		Tasks: c.cursors(), WorkerIncarnation: c.workerIncarnation,
	}}})
	for ended := false; ; {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		switch kind := response.Kind.(type) {
		case *pb.RecvResponse_Subscribed:
			c.workerIncarnation = kind.Subscribed.WorkerIncarnation
			for _, start := range kind.Subscribed.Tasks {
				c.received[start.Task] = start.ReceivedSequence
			}
		case *pb.RecvResponse_Frame:
			c.frame(kind.Frame)
		case *pb.RecvResponse_Ended:
			continue
		}
		if ended {
			continue
		}
		_ = stream.Send(&pb.RecvRequest{Kind: &pb.RecvRequest_Progress{Progress: &pb.Progress{Tasks: c.cursors()}}})
		if c.done() {
			_ = stream.Send(&pb.RecvRequest{Kind: &pb.RecvRequest_Goodbye{Goodbye: &pb.Goodbye{}}})
			ended = stream.CloseSend() == nil
		}
	}
}
