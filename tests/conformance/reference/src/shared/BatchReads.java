import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.StringJoiner;
import java.util.function.Supplier;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;

/** Everything that Kafka reads in a log file: each batch, whether it is valid, and all that its records are. */
final class BatchReads {
    private static final HexFormat HEX = HexFormat.of();

    private BatchReads() {
    }

    /**
     * A field for each batch: position, size, magic, what {@code ensureValid} throws, base offset, last offset, leader
     * epoch, timestamp type, producer id, producer epoch, whether it is a control batch; then a word
     * {@code OFFSET:TIMESTAMP:SEQUENCE:SIZE:KEY:VALUE} for each record, with {@code :HEADER_KEY=HEADER_VALUE} for each
     * header, the same after {@code ~} for one whose checksum is wrong, {@code OFFSET:TIMESTAMP:SEQUENCE:SIZE:!} for one whose key or value cannot be had, and {@code !CLASS_NAME}
     * where Kafka reads no further. The last field is what ends the walk over batches.
     */
    static String read(File file) throws IOException {
        StringJoiner reply = new StringJoiner("\t", "\t", "");
        String end = Answers.NOTHING;
        try (FileRecords log = FileRecords.open(file, false)) {
            Iterator<FileChannelRecordBatch> batches = log.batches().iterator();
            while (batches.hasNext())
                reply.add(describe(batches.next()));
        } catch (RuntimeException fault) {
            end = thrown(fault);
        }
        return reply.add(end).toString();
    }

    private static String describe(FileChannelRecordBatch batch) {
        StringBuilder text = new StringBuilder();
        text.append(batch.position()).append(' ').append(batch.sizeInBytes()).append(' ').append(batch.magic());
        field(text, () -> {
            batch.ensureValid();
            return Answers.NOTHING;
        });
        field(text, batch::baseOffset);
        field(text, batch::lastOffset);
        field(text, batch::partitionLeaderEpoch);
        field(text, () -> batch.timestampType().id);
        field(text, batch::producerId);
        field(text, batch::producerEpoch);
        field(text, batch::isControlBatch);
        try {
            for (Record record : batch) {
                text.append(' ').append(isValid(record) ? "" : "~").append(record.offset()).append(':').append(record.timestamp()).append(':')
                    .append(record.sequence()).append(':').append(record.sizeInBytes()).append(':')
                    .append(contents(record));
            }
        } catch (RuntimeException | Error fault) {
            text.append(' ').append(thrown(fault));
        }
        return text.toString();
    }

    private static boolean isValid(Record record) {
        try {
            record.ensureValid();
            return true;
        } catch (RuntimeException fault) {
            return false;
        }
    }

    private static CharSequence contents(Record record) {
        StringBuilder text = new StringBuilder();
        try {
            hex(text, record.key());
            hex(text.append(':'), record.value());
        } catch (RuntimeException fault) {
            return "!";
        }
        for (Header header : record.headers()) {
            byte[] value = header.value();
            text.append(':').append(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8))).append('=')
                .append(value == null ? Answers.NOTHING : HEX.formatHex(value));
        }
        return text;
    }

    private static void field(StringBuilder text, Supplier<Object> question) {
        text.append(' ');
        try {
            text.append(question.get());
        } catch (RuntimeException | Error fault) {
            text.append(thrown(fault));
        }
    }

    private static String thrown(Throwable fault) {
        return "!" + fault.getClass().getSimpleName();
    }

    private static void hex(StringBuilder text, ByteBuffer bytes) {
        if (bytes == null) {
            text.append(Answers.NOTHING);
            return;
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        text.append(HEX.formatHex(copy));
    }
}
