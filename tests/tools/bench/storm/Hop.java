import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.storm.messaging.ConnectionWithStatus;
import org.apache.storm.messaging.IConnection;
import org.apache.storm.messaging.IConnectionCallback;
import org.apache.storm.messaging.IContext;
import org.apache.storm.messaging.TaskMessage;
import org.apache.storm.messaging.TransportFactory;
import org.apache.storm.messaging.netty.BackPressureStatus;
import org.apache.storm.metrics2.StormMetricRegistry;
import org.apache.storm.utils.Utils;

/**
 * One hop of Storm's Netty transport: `server PORT` binds, `client PORT` connects, with Storm's own settings.
 *
 * Both answer requests, a line of JSON each, as the other processes of this bench do (agent.py). Nothing is
 * acknowledged: what the server has counted is what has arrived.
 */
public class Hop {
    private static final String TOPOLOGY = "bench";
    private static final int TASK = 2;
    private static final int MESSAGE_BYTES = 100;
    private static final int PACED_BYTES = 1024;
    private static final int CHECK_EVERY = 256;
    private static final long LATE_NANOSECONDS = 1_000_000;
    private static final long WAIT_NANOSECONDS = 30_000_000_000L;
    private static final Pattern FIELD = Pattern.compile("\"(\\w+)\": *\"?([^,\"}]+)\"?");

    private interface Verb {
        String answer(Map<String, String> request) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // where Storm logs
        int port = Integer.parseInt(arguments[1]);
        Map<String, Object> conf = Utils.readDefaultConfig();
        IContext context = TransportFactory.makeContext(conf, new StormMetricRegistry());
        if (arguments[0].equals("server")) {
            Meter meter = new Meter();
            BackPressureStatus none = new BackPressureStatus("bench", new ArrayList<>(), new ArrayList<>());
            context.bind(TOPOLOGY, port, meter, () -> none);
            serve(answers, Map.of("begin", meter::begin, "finish", meter::finish));
        } else {
            AtomicBoolean[] pressed = {new AtomicBoolean()};
            IConnection connection = context.connect(TOPOLOGY, "127.0.0.1", port, pressed);
            long deadline = System.nanoTime() + WAIT_NANOSECONDS;
            while (((ConnectionWithStatus) connection).status() != ConnectionWithStatus.Status.Ready) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("no connection to port " + port);
                }
                Thread.sleep(10);
            }
            Load load = new Load(connection);
            serve(answers, Map.of("load", load::load, "pace", load::pace, "settle", load::settle));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void serve(PrintStream answers, Map<String, Verb> verbs) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, String> request = new HashMap<>();
            for (Matcher field = FIELD.matcher(line); field.find(); ) {
                request.put(field.group(1), field.group(2));
            }
            answers.println(verbs.get(request.get("verb")).answer(request));
            answers.flush();
        }
    }

    private static long processorNanoseconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private static byte[] payload(long stamp, int size) {
        return ByteBuffer.allocate(size).putLong(stamp).array();
    }

    /** Sends, each list made while the clock runs from payloads that are there. */
    private static class Load {
        private final IConnection connection;
        private long used;

        Load(IConnection connection) {
            this.connection = connection;
        }

        String load(Map<String, String> request) {
            used = processorNanoseconds();
            int frame = Integer.parseInt(request.get("frame"));
            long seconds = (long) (Double.parseDouble(request.getOrDefault("seconds", "0")) * 1e9);
            long messages = Long.parseLong(request.getOrDefault("messages", "-1"));
            byte[][] payloads = new byte[frame][];
            for (int index = 0; index < frame; index++) {
                payloads[index] = payload(index, MESSAGE_BYTES);
            }
            int burst = Math.max(1, CHECK_EVERY / frame);
            long sent = 0;
            long start = System.nanoTime();
            while (messages >= 0 ? sent < messages : System.nanoTime() - start < seconds) {
                for (int turn = 0; turn < burst; turn++) {
                    List<TaskMessage> list = new ArrayList<>(frame);
                    for (int index = 0; index < frame; index++) {
                        byte[] each = messages >= 0 ? payload(sent + index, MESSAGE_BYTES) : payloads[index];
                        list.add(new TaskMessage(TASK, each));
                    }
                    connection.send(list.iterator());
                    sent += frame;
                }
            }
            return String.format("{\"start_ns\": %d, \"sent\": %d}", start, sent);
        }

        /** An open loop: a sender that falls behind sends at once what is due. */
        String pace(Map<String, String> request) {
            long rate = Long.parseLong(request.get("rate"));
            long count = (long) (rate * Double.parseDouble(request.get("seconds")));
            long late = 0;
            long start = System.nanoTime() + 10_000_000;
            for (long number = 0; number < count; number++) {
                long due = start + number * 1_000_000_000L / rate;
                long early = due - System.nanoTime();
                if (early < -LATE_NANOSECONDS) {
                    late++;
                }
                for (; early > 0; early = due - System.nanoTime()) {
                    LockSupport.parkNanos(early);
                }
                connection.send(List.of(new TaskMessage(TASK, payload(due, PACED_BYTES))).iterator());
            }
            return String.format("{\"sent\": %d, \"late\": %d, \"start_ns\": %d}", count, late, start);
        }

        String settle(Map<String, String> request) {
            return String.format("{\"pending\": 0, \"cpu_ns\": %d}", processorNanoseconds() - used);
        }
    }

    /** Counts what arrives. */
    private static class Meter implements IConnectionCallback {
        private String look = "count";
        private long messages;
        private long answered;
        private long bytes;
        private long disorder;
        private long last;
        private long used;
        private final List<Long> latencies = new ArrayList<>();

        @Override
        public synchronized void recv(List<TaskMessage> batch) {
            long now = System.nanoTime();
            for (TaskMessage message : batch) {
                byte[] payload = message.message();
                bytes += payload.length;
                if (look.equals("order") && ByteBuffer.wrap(payload).getLong() != messages) {
                    disorder++;
                } else if (look.equals("latency")) {
                    latencies.add(now - ByteBuffer.wrap(payload).getLong());
                }
                messages++;
            }
            last = System.nanoTime();
            notifyAll();
        }

        synchronized String begin(Map<String, String> request) {
            long extra = messages - answered;
            look = request.get("look");
            messages = answered = bytes = disorder = 0;
            latencies.clear();
            used = processorNanoseconds();
            return String.format("{\"extra\": %d}", extra);
        }

        synchronized String finish(Map<String, String> request) throws InterruptedException {
            long expected = Long.parseLong(request.get("expected"));
            long deadline = System.nanoTime() + WAIT_NANOSECONDS;
            while (messages < expected && System.nanoTime() < deadline) {
                wait(1000);
            }
            answered = messages;
            return String.format(
                    "{\"received\": %d, \"last_ns\": %d, \"disorder\": %d, \"latencies_ns\": %s, \"cpu_ns\": %d}",
                    messages, last, disorder, latencies, processorNanoseconds() - used);
        }
    }
}
