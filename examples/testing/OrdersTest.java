import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** A program that uses RocketMQ, tested with JUnit 5 against a server of its own. */
class OrdersTest {
    private static RocketMQServer server;

    @BeforeAll
    static void start() throws IOException {
        server = new RocketMQServer();
    }

    @AfterAll
    static void end() throws InterruptedException {
        server.close();
    }

    @Test
    void anOrderIsSent() throws IOException {
        // producer.setNamesrvAddr(server.address); …
        String[] parts = server.address.split(":");
        try (Socket socket = new Socket(parts[0], Integer.parseInt(parts[1]))) {
            assertTrue(socket.isConnected());
        }
    }
}

/** {@code rmqctl serve --temp}, from its constructor on until it is closed. */
class RocketMQServer implements AutoCloseable {
    /** What clients take as their name server. */
    final String address;
    private final Process process;

    RocketMQServer() throws IOException {
        String program = System.getenv().getOrDefault("RMQCTL", "rmqctl");
        // Its standard input is a pipe of this process: it ends with it, however that ends.
        process = new ProcessBuilder(program, "serve", "--temp", "--listen", "127.0.0.1:0",
                "--end-with-stdin", "-o", "jsonl")
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader lines = new BufferedReader(
                new InputStreamReader(process.getInputStream(), "UTF-8"));
        String first = String.valueOf(lines.readLine());
        Matcher ready = Pattern.compile("\"ready\": ?\"([^\"]+)\"").matcher(first);
        if (!ready.find()) {
            process.destroy();
            throw new IOException("rmqctl serve did not start");
        }
        address = ready.group(1);
    }

    @Override
    public void close() throws InterruptedException {
        process.destroy();
        if (!process.waitFor(10, TimeUnit.SECONDS)) {
            process.destroyForcibly();
        }
    }
}
