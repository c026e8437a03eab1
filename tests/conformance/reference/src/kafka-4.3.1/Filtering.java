import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.Set;

import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecords.RecordFilter;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.Utils;

/** What the cleaner's own filter leaves of batches that lose the records with a key. */
final class Filtering {
    private Filtering() {
    }

    /** Filters a file into another one; a batch whose last offset is given stays, empty if need be. */
    static String run(Path file, Path output, String key, String[] fields, int from) throws IOException {
        byte[] dropped = HexFormat.of().parseHex(key);
        Set<String> staying = new HashSet<>(Arrays.asList(fields).subList(from, fields.length));
        RecordFilter filter = new RecordFilter(0, 0) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                boolean stays = staying.contains(Long.toString(batch.lastOffset()));
                return new BatchRetentionResult(stays ? BatchRetention.RETAIN_EMPTY : BatchRetention.DELETE_EMPTY, false);
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                return batch.isControlBatch() || !record.hasKey() || !Arrays.equals(Utils.toArray(record.key()), dropped);
            }
        };
        byte[] content = Files.readAllBytes(file);
        ByteBuffer room = ByteBuffer.allocate(2 * content.length + 1024);
        MemoryRecords.FilterResult result =
            MemoryRecords.readableRecords(ByteBuffer.wrap(content)).filterTo(filter, room, BufferSupplier.NO_CACHING);
        ByteBuffer left = result.outputBuffer();
        left.flip();
        Files.write(output, Utils.toArray(left));
        return "\t" + left.limit();
    }
}
