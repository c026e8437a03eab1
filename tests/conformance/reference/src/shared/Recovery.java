import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;

/** {@code LogSegment.recover} on one segment, no producers and no epochs known before it, and its speed. */
final class Recovery {
    private static final double WARM_UP_SHARE = 0.4;
    private static final int SMALLEST_ROUNDS = 5;

    private Recovery() {
    }

    static String recover(File directory, long baseOffset, int indexIntervalBytes, int segmentIndexBytes)
            throws IOException {
        LogSegment segment = Opening.segment(directory, baseOffset, indexIntervalBytes, segmentIndexBytes);
        try {
            int truncatedBytes = KafkaLog.recover(segment, Opening.producerState(directory), Opening.leaderEpochs(directory));
            segment.onBecomeInactiveSegment();
            return "\t" + truncatedBytes + "\t" + nextOffset(segment);
        } finally {
            Opening.release(segment);
        }
    }

    /** What a starting broker reads of the segment; that of its last batch where it cannot read records on the way. */
    private static long nextOffset(LogSegment segment) throws IOException {
        try {
            return segment.readNextOffset();
        } catch (RuntimeException | Error unreadable) {
            long nextOffset = segment.baseOffset();
            for (RecordBatch batch : segment.log().batches())
                nextOffset = batch.nextOffset();
            return nextOffset;
        }
    }

    /** Gives a segment its index files; cuts a damaged log. */
    static void buildIndexes(File directory, long baseOffset, int indexIntervalBytes, int segmentIndexBytes)
            throws IOException {
        LogSegment segment = Opening.segment(directory, baseOffset, indexIntervalBytes, segmentIndexBytes);
        try {
            KafkaLog.recover(segment, Opening.producerState(directory), Opening.forgottenEpochs(directory));
        } finally {
            Opening.release(segment);
        }
    }

    static String bench(File directory, long baseOffset, int indexIntervalBytes, double seconds) throws IOException {
        LogSegment segment = Opening.segment(directory, baseOffset, indexIntervalBytes,
            Opening.DEFAULT_SEGMENT_INDEX_BYTES);
        try {
            // One cache for all rounds: from the second on no epoch is new, so no round waits for the checkpoint file.
            LeaderEpochFileCache epochs = Opening.leaderEpochs(directory);
            long budget = (long) (seconds * 1e9);
            long start = System.nanoTime();
            int warmUps = 0;
            while (warmUps++ < 2 || System.nanoTime() - start < budget * WARM_UP_SHARE)
                requireWhole(KafkaLog.recover(segment, Opening.producerState(directory), epochs));
            List<Long> rounds = new ArrayList<>();
            while (rounds.size() < SMALLEST_ROUNDS || System.nanoTime() - start < budget) {
                ProducerStateManager producers = Opening.producerState(directory);
                long before = System.nanoTime();
                int truncatedBytes = KafkaLog.recover(segment, producers, epochs);
                rounds.add(System.nanoTime() - before);
                requireWhole(truncatedBytes);
            }
            rounds.sort(null);
            double median = rounds.get(rounds.size() / 2) / 1e9;
            return "\t" + median + "\t" + segment.size() + "\t" + rounds.size();
        } finally {
            Opening.release(segment);
        }
    }

    private static void requireWhole(int truncatedBytes) {
        if (truncatedBytes != 0)
            throw new IllegalArgumentException("The segment is damaged: " + truncatedBytes + " bytes were cut off");
    }
}
