import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Utils;

/** How many records a second Kafka hands out of a log on one thread: the JVM warm, the pages in the cache. */
final class RecordsBench {
    private static final double WARM_UP_SHARE = 0.5;
    private static final int SMALLEST_ROUNDS = 3;

    // What the records hold, so that the compiler cannot leave them, or their copies, out.
    private static volatile long sink;
    private static final byte[][] KEPT = new byte[1 << 10][];

    private RecordsBench() {
    }

    /** Rounds over a whole log, in CPU time of this thread, as other programs may run too; the best one counts. */
    static String run(File log, double seconds) throws IOException {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        long budget = (long) (seconds * 1e9);
        long start = System.nanoTime();
        long records = round(log);
        while (System.nanoTime() - start < budget * WARM_UP_SHARE)
            round(log);
        List<Long> rounds = new ArrayList<>();
        while (rounds.size() < SMALLEST_ROUNDS || System.nanoTime() - start < budget) {
            long before = threads.getCurrentThreadCpuTime();
            round(log);
            rounds.add(threads.getCurrentThreadCpuTime() - before);
        }
        rounds.sort(null);
        double best = rounds.get(0) / 1e9;
        return "\t" + best + "\t" + records + "\t" + rounds.size();
    }

    /** As a consumer reads them: checksums verified, buffers reused, keys and values as byte arrays of their own. */
    private static long round(File log) throws IOException {
        long records = 0;
        long sum = 0;
        BufferSupplier buffers = BufferSupplier.create();
        try (FileRecords file = FileRecords.open(log)) {
            Iterator<FileChannelRecordBatch> batches = file.batches().iterator();
            while (batches.hasNext()) {
                FileChannelRecordBatch batch = batches.next();
                batch.ensureValid();
                try (CloseableIterator<Record> iterator = batch.streamingIterator(buffers)) {
                    while (iterator.hasNext()) {
                        Record record = iterator.next();
                        sum += record.offset() + record.timestamp() + record.headers().length;
                        KEPT[(int) (2 * records) & (KEPT.length - 1)] = copy(record.key());
                        KEPT[(int) (2 * records + 1) & (KEPT.length - 1)] = copy(record.value());
                        records++;
                    }
                }
            }
        } finally {
            buffers.close();
        }
        sink = sum;
        return records;
    }

    private static byte[] copy(ByteBuffer field) {
        return field == null ? null : Utils.toArray(field);
    }
}
