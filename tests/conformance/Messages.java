import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Kafka's generated messages, asked line by line: the name of a message, a version and its bytes in hex on stdin; on
 * stdout what Kafka's JSON converter makes of it, a tab, and the bytes that Kafka writes for it. What Kafka refuses is
 * answered with "error" and the class.
 */
public class Messages {
    private static final List<String> PACKAGES = List.of(
        "org.apache.kafka.common.metadata.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
        "org.apache.kafka.common.message.");

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // where Kafka's logging goes
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            String answer;
            try {
                answer = answer(words[0], Short.parseShort(words[1]), HexFormat.of().parseHex(words[2]));
            } catch (Throwable refusal) {
                answer = "error " + refusal;
            }
            out.println(answer.replace("\n", " "));
        }
    }

    private static String answer(String name, short version, byte[] data) throws Exception {
        Class<?> type = find(name);
        Message message = (Message) type.getConstructor().newInstance();
        ByteBuffer buffer = ByteBuffer.wrap(data);
        message.read(new ByteBufferAccessor(buffer), version);
        if (buffer.hasRemaining()) {
            return "error " + buffer.remaining() + " bytes are left";
        }
        Class<?> converter = Class.forName(type.getName() + "JsonConverter");
        JsonNode json = (JsonNode) converter.getMethod("write", type, short.class).invoke(null, message, version);
        ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] bytes = new byte[written.remaining()];
        written.get(bytes);
        return json + "\t" + HexFormat.of().formatHex(bytes);
    }

    private static Class<?> find(String name) throws ClassNotFoundException {
        for (String candidate : PACKAGES) {
            try {
                return Class.forName(candidate + name);
            } catch (ClassNotFoundException missing) {
                continue;
            }
        }
        throw new ClassNotFoundException(name);
    }
}
