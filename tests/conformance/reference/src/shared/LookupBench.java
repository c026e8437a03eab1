import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.LongUnaryOperator;

import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.storage.internals.log.LogFileUtils;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.OffsetIndex;

/** How many lookups a second Kafka does on one thread: the JVM warm, the pages in the cache. */
final class LookupBench {
    private static final double WARM_UP_SHARE = 0.4;
    private static final double ROUND_SECONDS = 0.05;
    private static final int SMALLEST_ROUNDS = 5;
    private static final int SMALLEST_QUERIES = 1 << 10;
    private static final int LARGEST_QUERIES = 1 << 20;
    private static final int SEED = 7;

    // What the queries found, so that the compiler cannot leave them out.
    private static volatile long sink;

    private LookupBench() {
    }

    static String run(String what, File directory, long baseOffset, double seconds) throws IOException {
        boolean indexOnly = what.startsWith("index-");
        if (!indexOnly && !LogFileUtils.offsetIndexFile(directory, baseOffset, "").exists())
            Recovery.buildIndexes(directory, baseOffset, 4096, Opening.DEFAULT_SEGMENT_INDEX_BYTES);
        if (indexOnly) {
            File file = LogFileUtils.offsetIndexFile(directory, baseOffset, "");
            OffsetIndex index = new OffsetIndex(file, baseOffset, -1, false);
            try {
                LongUnaryOperator query = offset -> index.lookup(offset).indexValue();
                return measure(query, baseOffset, index.lastOffset(), what.equals("index-sorted"), seconds);
            } finally {
                index.closeHandler();
            }
        }
        LogSegment segment = Opening.segment(directory, baseOffset, 4096, Opening.DEFAULT_SEGMENT_INDEX_BYTES);
        try {
            long earliest = Long.MAX_VALUE;
            long latest = Long.MIN_VALUE;
            long last = baseOffset;
            for (RecordBatch batch : segment.log().batches()) {
                earliest = Math.min(earliest, batch.maxTimestamp());
                latest = Math.max(latest, batch.maxTimestamp());
                last = Math.max(last, batch.lastOffset());
            }
            return switch (what) {
                case "translate" -> measure(offset -> translate(segment, offset), baseOffset, last, false, seconds);
                case "find" -> measure(time -> find(segment, time, baseOffset), earliest, latest, false, seconds);
                default -> throw new IllegalArgumentException("Unknown benchmark " + what);
            };
        } finally {
            Opening.release(segment);
        }
    }

    /** Rounds of the same random queries between two values, both included; the median round counts. */
    private static String measure(LongUnaryOperator query, long first, long last, boolean sorted, double seconds) {
        if (last < first)
            throw new IllegalArgumentException("There is nothing to look up");
        long budget = (long) (seconds * 1e9);
        long start = System.nanoTime();
        int count = SMALLEST_QUERIES;
        long[] targets = targets(first, last, count, sorted);
        while (System.nanoTime() - start < budget * WARM_UP_SHARE) {
            double took = round(query, targets) / 1e9;
            if (took < ROUND_SECONDS && count < LARGEST_QUERIES) {
                count *= 2;
                targets = targets(first, last, count, sorted);
            }
        }
        List<Long> rounds = new ArrayList<>();
        while (rounds.size() < SMALLEST_ROUNDS || System.nanoTime() - start < budget)
            rounds.add(round(query, targets));
        rounds.sort(null);
        double median = rounds.get(rounds.size() / 2) / 1e9;
        return "\t" + count / median + "\t" + count + "\t" + rounds.size();
    }

    private static long round(LongUnaryOperator query, long[] targets) {
        long before = System.nanoTime();
        long found = 0;
        for (long target : targets)
            found += query.applyAsLong(target);
        sink = found;
        return System.nanoTime() - before;
    }

    private static long[] targets(long first, long last, int count, boolean sorted) {
        long[] targets = new Random(SEED).longs(count, first, last + 1).toArray();
        if (sorted)
            Arrays.sort(targets);
        return targets;
    }

    private static long translate(LogSegment segment, long offset) {
        try {
            return segment.translateOffset(offset).position;
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
    }

    private static long find(LogSegment segment, long time, long startingOffset) {
        try {
            return segment.findOffsetByTimestamp(time, startingOffset).map(found -> found.offset).orElse(-1L);
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
    }
}
