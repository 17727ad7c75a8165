import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.stub.StreamObserver;
import io.tuplewire.v1.AckMode;
import io.tuplewire.v1.Frame;
import io.tuplewire.v1.Goodbye;
import io.tuplewire.v1.Group;
import io.tuplewire.v1.Hello;
import io.tuplewire.v1.MessagingGrpc;
import io.tuplewire.v1.Probe;
import io.tuplewire.v1.Progress;
import io.tuplewire.v1.RecvRequest;
import io.tuplewire.v1.RecvResponse;
import io.tuplewire.v1.Refusal;
import io.tuplewire.v1.SendRequest;
import io.tuplewire.v1.SendResponse;
import io.tuplewire.v1.Subscribe;
import io.tuplewire.v1.TaskCredit;
import io.tuplewire.v1.TaskCursor;
import java.io.File;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Sends or receives the numbers 0, 1, 2, ... of each task, over one stream: `Client send --address ...`,
 * `Client recv ...`. docs/reference/wire.md has the rules; it does not resume.
 */
public final class Client {
  private static final int MOST_FRAMES = 8; // on the way at once; the protocol allows 64
  private static final int FRAME_MESSAGES = 100;
  private static final int WINDOW_MESSAGES = 100;
  private static final int WINDOW_BYTES = 1024 * 1024;
  private static final Metadata.Key<String> ERROR =
      Metadata.Key.of("tuplewire-error", Metadata.ASCII_STRING_MARSHALLER);

  /** What comes down a stream, in order; an empty answer is a second without news. */
  private static final class Heard<T> implements StreamObserver<T> {
    private record Event<T>(T message, Throwable error, boolean silence) {}

    private final BlockingQueue<Event<T>> events = new LinkedBlockingQueue<>();

    @Override
    public void onNext(T message) {
      events.add(new Event<>(message, null, false));
    }

    @Override
    public void onError(Throwable error) {
      events.add(new Event<>(null, error, false));
    }

    @Override
    public void onCompleted() {
      events.add(new Event<>(null, null, false));
    }

    Event<T> next() throws InterruptedException {
      Event<T> event = events.poll(1, TimeUnit.SECONDS);
      if (event != null && event.error() != null) {
        Metadata trailers = Status.trailersFromThrowable(event.error());
        String code = trailers == null ? null : trailers.get(ERROR);
        System.err.println("stream ended: " + code + ": " + Status.fromThrowable(event.error()).getDescription());
        System.exit(1);
      }
      return event == null ? new Event<>(null, null, true) : event;
    }

    void end() throws InterruptedException {
      Event<T> event = next();
      while (event.message() != null || event.silence()) event = next();
    }
  }

  private final Map<String, String> settings = new HashMap<>();
  private final List<Integer> tasks = new ArrayList<>();
  private final int count;
  private final long incarnation = System.currentTimeMillis() * 1_000_000; // grows with every start

  private Client(String[] words) {
    for (int index = 1; index < words.length; index += 2) settings.put(words[index].substring(2), words[index + 1]);
    for (String task : settings.get("tasks").split(",")) tasks.add(Integer.valueOf(task));
    count = Integer.parseInt(settings.get("count"));
  }

  public static void main(String[] words) throws Exception {
    Client client = new Client(words);
    ManagedChannel channel = client.channel();
    // The standard service has its own package, beside the generated one.
    HealthGrpc.newBlockingStub(channel).check(HealthCheckRequest.getDefaultInstance());
    MessagingGrpc.MessagingStub messaging = MessagingGrpc.newStub(channel);
    System.out.println(words[0].equals("send") ? client.send(messaging) : client.receive(messaging));
    System.exit(0);
  }

  private ManagedChannel channel() throws Exception {
    String address = settings.get("address");
    NettyChannelBuilder builder;
    if (address.startsWith("unix://")) {
      builder = NettyChannelBuilder.forAddress(new DomainSocketAddress(address.substring(7)))
          .eventLoopGroup(new EpollEventLoopGroup(1)).channelType(EpollDomainSocketChannel.class)
          .overrideAuthority("localhost");
    } else {
      builder = NettyChannelBuilder.forTarget(address);
    }
    if (settings.containsKey("ca")) {
      builder.sslContext(GrpcSslContexts.forClient().trustManager(new File(settings.get("ca")))
          .keyManager(new File(settings.get("cert")), new File(settings.get("key"))).build());
    } else {
      builder.usePlaintext();
    }
    return builder.keepAliveTime(2, TimeUnit.SECONDS).keepAliveTimeout(2, TimeUnit.SECONDS).disableRetry().build();
  }

  private String send(MessagingGrpc.MessagingStub messaging) throws InterruptedException {
    Map<Integer, Deque<ByteString>> waiting = new TreeMap<>();
    for (int task : tasks) {
      waiting.put(task, new ArrayDeque<>());
      for (int number = 0; number < count; number++) {
        waiting.get(task).add(ByteString.copyFromUtf8(String.valueOf(number)));
      }
    }
    Deque<Frame> inFlight = new ArrayDeque<>();
    Map<Integer, TaskCredit> credits = new HashMap<>();
    Map<Integer, long[]> sent = new HashMap<>();
    TaskCredit initial = null;
    int accepted = tasks.size() * count;
    int acknowledged = 0;
    int refused = 0;
    long sequence = 0;
    long heardOf = 0;

    Heard<SendResponse> heard = new Heard<>();
    StreamObserver<SendRequest> say = messaging.send(heard);
    say.onNext(SendRequest.newBuilder().setHello(Hello.newBuilder().setProtocolVersion(1)
        .setTopology(settings.get("topology")).setSenderId(settings.get("id")).setIncarnation(incarnation)
        .setAckMode(AckMode.ACK_MODE_QUEUED)).build());
    while (acknowledged + refused < accepted) {
      Heard.Event<SendResponse> event = heard.next();
      SendResponse response = event.message();
      if (event.silence() && initial != null) {
        say.onNext(SendRequest.newBuilder().setProbe(Probe.newBuilder().setAcknowledgedSequence(heardOf)).build());
      } else if (response == null && !event.silence()) {
        throw new IllegalStateException("the worker has ended the stream");
      } else if (response != null && response.hasWelcome()) {
        initial = response.getWelcome().getInitialCredit();
        for (TaskCredit credit : response.getWelcome().getCreditsList()) credits.put(credit.getTask(), credit);
      } else if (response != null && response.hasAck() && response.getAck().getPreviousSequence() <= heardOf) {
        for (Refusal refusal : response.getAck().getRefusalsList()) {
          refused += refusal.getMessages();
          acknowledged -= refusal.getMessages(); // counted below, with its frame
        }
        heardOf = Math.max(heardOf, response.getAck().getSequence());
        while (!inFlight.isEmpty() && inFlight.peek().getSequence() <= heardOf) {
          for (Group group : inFlight.remove().getGroupsList()) acknowledged += group.getLengthsCount();
        }
        for (TaskCredit credit : response.getAck().getCreditsList()) credits.put(credit.getTask(), credit);
      }
      while (initial != null && inFlight.size() < MOST_FRAMES) {
        Frame.Builder frame = Frame.newBuilder().setSequence(sequence + 1);
        for (int task : tasks) {
          Group group = take(task, waiting.get(task), credits.getOrDefault(task, initial),
              sent.computeIfAbsent(task, each -> new long[2]));
          if (group.getLengthsCount() > 0) frame.addGroups(group);
        }
        if (frame.getGroupsCount() == 0) break;
        sequence += 1;
        inFlight.add(frame.build());
        say.onNext(SendRequest.newBuilder().setFrame(frame).build());
      }
    }
    say.onNext(SendRequest.newBuilder().setGoodbye(Goodbye.getDefaultInstance()).build());
    say.onCompleted();
    heard.end();
    return String.format("{\"accepted\": %d, \"acknowledged\": %d, \"refused\": %d, \"pending\": 0}",
        accepted, acknowledged, refused);
  }

  /** As many messages as the task's credit allows; sent: messages and bytes, since the session's start. */
  private static Group take(int task, Deque<ByteString> waiting, TaskCredit credit, long[] sent) {
    Group.Builder group = Group.newBuilder().setTask(task);
    ByteString data = ByteString.EMPTY;
    while (!waiting.isEmpty() && group.getLengthsCount() < FRAME_MESSAGES
        && sent[0] < credit.getMessages() && sent[1] < credit.getBytes()) {
      ByteString payload = waiting.remove();
      sent[0] += 1;
      sent[1] += payload.size();
      group.addLengths(payload.size());
      data = data.concat(payload);
    }
    return group.setData(data).build();
  }

  private String receive(MessagingGrpc.MessagingStub messaging) throws InterruptedException {
    Map<Integer, Long> received = new TreeMap<>();
    Map<Integer, Integer> numbers = new TreeMap<>();
    List<String> problems = new ArrayList<>();
    for (int task : tasks) {
      received.put(task, 0L);
      numbers.put(task, 0);
    }
    Heard<RecvResponse> heard = new Heard<>();
    StreamObserver<RecvRequest> say = messaging.recv(heard);
    say.onNext(RecvRequest.newBuilder().setSubscribe(Subscribe.newBuilder().setProtocolVersion(1)
        .setTopology(settings.get("topology")).setConsumerId(settings.get("id")).setIncarnation(incarnation)
        .addAllTasks(cursors(received))).build());
    while (problems.isEmpty() && numbers.values().stream().anyMatch(next -> next < count)) {
      Heard.Event<RecvResponse> event = heard.next();
      if (event.silence()) continue;
      if (event.message() == null) throw new IllegalStateException("the worker has ended the stream");
      for (TaskCursor start : event.message().getSubscribed().getTasksList()) {
        received.put(start.getTask(), start.getReceivedSequence());
      }
      for (Group group : event.message().getFrame().getGroupsList()) {
        int task = group.getTask();
        int start = 0;
        for (int length : group.getLengthsList()) {
          String payload = group.getData().substring(start, start + length).toStringUtf8();
          int next = numbers.merge(task, 1, Integer::sum) - 1;
          if (!payload.equals(String.valueOf(next))) problems.add("\"task " + task + ": " + payload + "\"");
          start += length;
        }
        received.put(task, group.getFirstSequence() + group.getLengthsCount() - 1);
      }
      say.onNext(RecvRequest.newBuilder().setProgress(Progress.newBuilder().addAllTasks(cursors(received))).build());
    }
    say.onNext(RecvRequest.newBuilder().setGoodbye(Goodbye.getDefaultInstance()).build());
    say.onCompleted();
    heard.end();
    List<String> counts = new ArrayList<>();
    numbers.forEach((task, number) -> counts.add("\"" + task + "\": " + number));
    return "{\"received\": {" + String.join(", ", counts) + "}, \"repeated\": 0, \"problems\": " + problems + "}";
  }

  /** Acknowledges everything that has come, and makes room for as much again. */
  private static List<TaskCursor> cursors(Map<Integer, Long> received) {
    List<TaskCursor> cursors = new ArrayList<>();
    received.forEach((task, sequence) -> cursors.add(TaskCursor.newBuilder().setTask(task)
        .setAcknowledgedSequence(sequence).setReceivedSequence(sequence)
        .setCreditSequence(sequence + WINDOW_MESSAGES).setCreditBytes(WINDOW_BYTES).build()));
    return cursors;
  }
}
