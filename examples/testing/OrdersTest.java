import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.ConnectException;
import java.net.Socket;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A program that uses RocketMQ, tested with JUnit 5 against a server of its own. */
class OrdersTest {
    @RegisterExtension
    static RocketMQExtension rocketmq = new RocketMQExtension("--topic=orders");

    @Test
    void anOrderIsSent() throws IOException, InterruptedException {
        // producer.setNamesrvAddr(rocketmq.address()); …
        try (Socket socket = connect()) {
            assertTrue(socket.isConnected());
        }
        assertEquals(List.of(), rocketmq.messages("orders"));
        assertThrows(IOException.class, () -> rocketmq.messages("odrers"));
    }

    @Test
    void aBrokerThatFailsAndIsGone() throws IOException {
        rocketmq.refuseSends(2);
        rocketmq.acceptSends();
        assertThrows(IllegalStateException.class, () -> rocketmq.refuseSends(-2));
        rocketmq.slow(10);
        rocketmq.slow(0);
        rocketmq.pause();
        rocketmq.resume();
        rocketmq.stop();
        assertThrows(ConnectException.class, OrdersTest::connect);
        rocketmq.start();
        connect().close();
    }

    private static Socket connect() throws IOException {
        String[] parts = rocketmq.address().split(":");
        return new Socket(parts[0], Integer.parseInt(parts[1]));
    }
}
