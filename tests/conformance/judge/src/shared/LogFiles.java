import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.StringJoiner;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;

/** What Kafka reads in a log file, and what its own tool says of any file of a segment. */
final class LogFiles {
    private static final HexFormat HEX = HexFormat.of();

    private LogFiles() {
    }

    /**
     * All batches of a file, a field each: position and size, then a word {@code OFFSET:TIMESTAMP:KEY:VALUE} for each
     * record, {@code :HEADER_KEY=HEADER_VALUE} for each header, and {@code !CLASS_NAME} where Kafka reads no further.
     */
    static String records(File file) throws IOException {
        StringJoiner reply = new StringJoiner("\t", "\t", "");
        try (FileRecords log = FileRecords.open(file, false)) {
            for (FileChannelRecordBatch batch : log.batches())
                reply.add(batch.position() + " " + batch.sizeInBytes() + records(batch));
        }
        return reply.toString();
    }

    private static String records(FileChannelRecordBatch batch) {
        StringBuilder text = new StringBuilder();
        try {
            for (Record record : batch) {
                text.append(' ').append(record.offset()).append(':').append(record.timestamp()).append(':')
                    .append(hex(record.key())).append(':').append(hex(record.value()));
                for (Header header : record.headers())
                    text.append(':').append(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8))).append('=')
                        .append(header.value() == null ? Answers.NOTHING : HEX.formatHex(header.value()));
            }
        } catch (RuntimeException fault) {
            text.append(" !").append(fault.getClass().getSimpleName());
        }
        return text.toString();
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null)
            return Answers.NOTHING;
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return HEX.formatHex(copy);
    }

    /** Kafka's {@code DumpLogSegments}; all that it says goes to a file. */
    static String dump(File output, String[] fields, int from) throws IOException {
        PrintStream formerOut = System.out;
        PrintStream formerErr = System.err;
        try (PrintStream out = new PrintStream(output, StandardCharsets.UTF_8)) {
            System.setOut(out);
            System.setErr(out);
            KafkaLog.dumpLog(Arrays.copyOfRange(fields, from, fields.length));
        } finally {
            System.setOut(formerOut);
            System.setErr(formerErr);
        }
        return "";
    }
}
