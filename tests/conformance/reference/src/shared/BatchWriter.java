import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.LeaderChangeMessage;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;

/**
 * Batches by Kafka's own builders.
 *
 * A batch is one field, words with blanks between them: {@code NAME=VALUE}, and a record as
 * {@code @OFFSET:TIMESTAMP:KEY:VALUE} with {@code :HEADER_KEY=HEADER_VALUE} any number of times. Keys and values are
 * hexadecimal, {@code -} for null. The names and what goes for them otherwise:
 *
 * <pre>
 * kind=records | marker | leader-change | empty      records
 * magic codec base epoch                             2 none 0 0
 * type=create | append, now: the log append time     create -1
 * pid pepoch seq txn control horizon last            -1 -1 -1 false false -1, and the last record's offset
 * commit coordinator timestamp: of a marker          true 0 0
 * </pre>
 */
final class BatchWriter {
    private static final HexFormat HEX = HexFormat.of();

    private final Map<String, String> values = new HashMap<>();
    private final List<String> records = new ArrayList<>();

    private BatchWriter(String specification) {
        for (String word : specification.split(" "))
            if (word.startsWith("@"))
                records.add(word.substring(1));
            else
                values.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
    }

    /** Writes batches one behind the other into a file that is made anew; answers with the size of each. */
    static String write(Path file, String[] fields, int from) throws IOException {
        StringBuilder reply = new StringBuilder();
        try (OutputStream out = Files.newOutputStream(file)) {
            for (int i = from; i < fields.length; i++) {
                ByteBuffer batch = new BatchWriter(fields[i]).batch();
                out.write(batch.array(), batch.arrayOffset() + batch.position(), batch.remaining());
                reply.append('\t').append(batch.remaining());
            }
        }
        return reply.toString();
    }

    private ByteBuffer batch() throws IOException {
        return switch (text("kind", "records")) {
            case "records" -> built();
            case "marker" -> MemoryRecords.withEndTransactionMarker(number("base", 0), number("timestamp", 0),
                (int) number("epoch", 0), number("pid", -1), (short) number("pepoch", -1),
                new EndTransactionMarker(flag("commit", true) ? ControlRecordType.COMMIT : ControlRecordType.ABORT,
                    (int) number("coordinator", 0))).buffer();
            case "leader-change" -> MemoryRecords.withLeaderChangeMessage(number("base", 0), number("timestamp", 0),
                (int) number("epoch", 0), ByteBuffer.allocate(512), new LeaderChangeMessage()).buffer();
            case "empty" -> empty();
            default -> throw new IllegalArgumentException("Unknown kind of batch " + text("kind", ""));
        };
    }

    private ByteBuffer built() throws IOException {
        byte magic = (byte) number("magic", RecordBatch.MAGIC_VALUE_V2);
        try (MemoryRecordsBuilder builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(1 << 12), magic,
                Compression.of(CompressionType.forName(text("codec", "none"))).build(), timestampType(magic),
                number("base", 0), number("now", RecordBatch.NO_TIMESTAMP), number("pid", -1),
                (short) number("pepoch", -1), (int) number("seq", -1), flag("txn", false), flag("control", false),
                (int) number("epoch", 0), Integer.MAX_VALUE, number("horizon", RecordBatch.NO_TIMESTAMP))) {
            for (String record : records)
                append(builder, record.split(":", -1));
            if (values.containsKey("last"))
                builder.overrideLastOffset(number("last", 0));
            return builder.build().buffer();
        }
    }

    private static void append(MemoryRecordsBuilder builder, String[] parts) throws IOException {
        Header[] headers = new Header[parts.length - 4];
        for (int i = 0; i < headers.length; i++) {
            String[] header = parts[i + 4].split("=", -1);
            headers[i] = new RecordHeader(new String(HEX.parseHex(header[0]), "UTF-8"), bytes(header[1]));
        }
        long offset = Long.parseLong(parts[0]);
        long timestamp = Long.parseLong(parts[1]);
        SimpleRecord record = new SimpleRecord(timestamp, bytes(parts[2]), bytes(parts[3]), headers);
        // Unchecked, for timestamps that a producer may not send; with checks messages get their log append time.
        if (builder.magic() == RecordBatch.MAGIC_VALUE_V2)
            builder.appendUncheckedWithOffset(offset, record);
        else
            builder.appendWithOffset(offset, record);
    }

    /** What compaction leaves of a batch all of whose records are gone. */
    private ByteBuffer empty() {
        ByteBuffer buffer = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        DefaultRecordBatch.writeEmptyHeader(buffer, RecordBatch.MAGIC_VALUE_V2, number("pid", -1),
            (short) number("pepoch", -1), (int) number("seq", -1), number("base", 0), number("last", 0),
            (int) number("epoch", 0), timestampType(RecordBatch.MAGIC_VALUE_V2), number("timestamp", 0),
            flag("txn", false), flag("control", false));
        buffer.flip();
        return buffer;
    }

    private TimestampType timestampType(byte magic) {
        if (magic == RecordBatch.MAGIC_VALUE_V0)
            return TimestampType.NO_TIMESTAMP_TYPE;
        return text("type", "create").equals("append") ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
    }

    private String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    private long number(String name, long otherwise) {
        return values.containsKey(name) ? Long.parseLong(values.get(name)) : otherwise;
    }

    private boolean flag(String name, boolean otherwise) {
        return values.containsKey(name) ? Boolean.parseBoolean(values.get(name)) : otherwise;
    }

    private static byte[] bytes(String text) {
        return text.equals(Answers.NOTHING) ? null : HEX.parseHex(text);
    }
}
