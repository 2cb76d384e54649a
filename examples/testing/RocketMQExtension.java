import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * {@code rmqctl serve --temp} for the tests of a class, without a broker:
 * {@code @RegisterExtension static RocketMQExtension rocketmq = new RocketMQExtension();}
 */
public final class RocketMQExtension implements BeforeAllCallback, AfterAllCallback {
    private static final String PROGRAM = System.getenv().getOrDefault("RMQCTL", "rmqctl");
    private static final String END = "";
    private final BlockingQueue<String> answers = new LinkedBlockingQueue<>();
    private final String[] options;
    private Process process;
    private String ready;

    /** More options of {@code rmqctl serve} may be given. */
    public RocketMQExtension(String... options) {
        this.options = options;
    }

    @Override
    public void beforeAll(ExtensionContext context) throws IOException {
        List<String> command = new ArrayList<>(List.of(PROGRAM, "serve", "--temp", "--listen",
                "127.0.0.1:0", "--end-with-stdin", "-o", "jsonl"));
        command.addAll(List.of(options));
        // Its standard input is a pipe of this process: it ends with it, however that ends.
        process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader lines = reader(process.getInputStream());
        ready = lines.readLine();
        if (ready == null) {
            throw new IOException("rmqctl serve did not start");
        }
        Thread thread = new Thread(() -> hear(lines), "rmqctl");
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void afterAll(ExtensionContext context) throws IOException, InterruptedException {
        process.destroy();
        process.getOutputStream().close();
        if (!process.waitFor(10, TimeUnit.SECONDS)) {
            process.destroyForcibly();
        }
    }

    /** The name server address for clients. */
    public String address() {
        return field(ready, "ready");
    }

    /** The endpoint of clients of RocketMQ 5, with the option {@code --grpc}; else null. */
    public String grpc() {
        return field(ready, "grpc");
    }

    /** All messages of a topic, queue by queue, each a JSON object of {@code rmqctl read}. */
    public List<String> messages(String topic) throws IOException, InterruptedException {
        Process read = new ProcessBuilder(PROGRAM, "read", field(ready, "store"), "--topic", topic,
                "-o", "jsonl").redirectError(ProcessBuilder.Redirect.INHERIT).start();
        List<String> found = reader(read.getInputStream()).lines().toList();
        if (read.waitFor() != 0) {
            throw new IOException("no topic " + topic);
        }
        return found;
    }

    /** Refuses the next sends; -1: all of them, until {@link #acceptSends}. */
    public void refuseSends(int times) {
        order("refuse_sends", ", \"times\": " + times);
    }

    /** Ends {@link #refuseSends}. */
    public void acceptSends() {
        refuseSends(0);
    }

    /** Each answer comes so many milliseconds later; 0 ends it. */
    public void slow(long ms) {
        order("slow", ", \"ms\": " + ms);
    }

    /** Nobody is answered until {@link #resume}; connections stay. */
    public void pause() {
        order("pause", "");
    }

    /** Ends {@link #pause}. */
    public void resume() {
        order("resume", "");
    }

    /** Ends the server as a broker ends; its store stays. */
    public void stop() {
        order("stop", "");
    }

    /** Starts the server again after {@link #stop}, at the same address. */
    public void start() {
        order("start", "");
    }

    private synchronized void order(String order, String values) {
        try {
            process.getOutputStream().write(("{\"order\": \"" + order + "\"" + values + "}\n")
                    .getBytes(StandardCharsets.UTF_8));
            process.getOutputStream().flush();
            String answer = answers.poll(30, TimeUnit.SECONDS);
            if (answer == null || !order.equals(field(answer, "order"))) {
                throw new IllegalStateException(order + ": " + answer);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    private void hear(BufferedReader lines) {
        try {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if ("order".equals(field(line, "event"))) {
                    answers.add(line);
                }
            }
        } catch (IOException error) {
            // It has ended.
        }
        answers.add(END);
    }

    private static BufferedReader reader(InputStream stream) {
        return new BufferedReader(new InputStreamReader(stream, StandardCharsets.UTF_8));
    }

    /** A text in a line of JSON; null where it is none. */
    private static String field(String line, String name) {
        Matcher found = Pattern.compile("\"" + name + "\": ?\"([^\"]+)\"").matcher(line);
        return found.find() ? found.group(1) : null;
    }
}
