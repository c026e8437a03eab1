import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogFileUtils;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/**
 * Answers, with Kafka's own classes, what a broker's recovery of one segment leaves on disk.
 *
 * A request is one line of tab-separated fields on standard input, a reply one such line on standard output:
 *
 * <pre>
 * recover DIR BASE_OFFSET INDEX_INTERVAL_BYTES SEGMENT_INDEX_BYTES -> ok TRUNCATED_BYTES NEXT_OFFSET
 * bench   DIR BASE_OFFSET INDEX_INTERVAL_BYTES SECONDS             -> ok MEDIAN_SECONDS BYTES ROUNDS
 * quit
 * </pre>
 *
 * Anything thrown comes back as {@code error SIMPLE_CLASS_NAME MESSAGE}. Recovery cuts the log file that it is given,
 * so callers pass a copy. Nothing is flushed to the device: the readers are on this machine.
 */
public final class Judge {
    private static final int DEFAULT_SEGMENT_INDEX_BYTES = 10 * 1024 * 1024;
    private static final int PRODUCER_ID_EXPIRATION_MS = 86_400_000;
    private static final int TRANSACTION_TIMEOUT_MS = 900_000;
    private static final double WARM_UP_SHARE = 0.4;
    private static final int SMALLEST_ROUNDS = 5;

    private static final TopicPartition PARTITION = new TopicPartition("topic", 0);
    // Only ever used to write the epochs after a truncation of the whole log, which does not happen here.
    private static final Scheduler SCHEDULER = new KafkaScheduler(1);

    private Judge() {
    }

    public static void main(String[] args) throws IOException {
        PrintStream replies = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("quit"))
                return;
            replies.println(answer(fields));
        }
    }

    private static String answer(String[] fields) {
        try {
            return switch (fields[0]) {
                case "recover" -> recover(new File(fields[1]), Long.parseLong(fields[2]),
                    Integer.parseInt(fields[3]), Integer.parseInt(fields[4]));
                case "bench" -> bench(new File(fields[1]), Long.parseLong(fields[2]),
                    Integer.parseInt(fields[3]), Double.parseDouble(fields[4]));
                default -> throw new IllegalArgumentException("Unknown command " + fields[0]);
            };
        } catch (Throwable refusal) {
            // Errors too: a count near Int32.max in a compressed control batch ends in OutOfMemoryError.
            return "error\t" + refusal.getClass().getSimpleName() + "\t" + escape(String.valueOf(refusal.getMessage()));
        }
    }

    private static String recover(File directory, long baseOffset, int indexIntervalBytes, int segmentIndexBytes)
            throws IOException {
        LogSegment segment = open(directory, baseOffset, indexIntervalBytes, segmentIndexBytes);
        try {
            int truncatedBytes = segment.recover(producerState(directory), leaderEpochs(directory));
            segment.onBecomeInactiveSegment();
            long nextOffset = baseOffset;
            for (RecordBatch batch : segment.log().batches())
                nextOffset = batch.nextOffset();
            return "ok\t" + truncatedBytes + "\t" + nextOffset;
        } finally {
            release(segment);
        }
    }

    private static String bench(File directory, long baseOffset, int indexIntervalBytes, double seconds)
            throws IOException {
        LogSegment segment = open(directory, baseOffset, indexIntervalBytes, DEFAULT_SEGMENT_INDEX_BYTES);
        try {
            // One cache for all rounds: from the second on no epoch is new, so no round waits for the checkpoint file.
            LeaderEpochFileCache epochs = leaderEpochs(directory);
            long budget = (long) (seconds * 1e9);
            long start = System.nanoTime();
            int warmUps = 0;
            while (warmUps++ < 2 || System.nanoTime() - start < budget * WARM_UP_SHARE)
                requireWhole(segment.recover(producerState(directory), epochs));
            List<Long> rounds = new ArrayList<>();
            while (rounds.size() < SMALLEST_ROUNDS || System.nanoTime() - start < budget) {
                ProducerStateManager producers = producerState(directory);
                long before = System.nanoTime();
                int truncatedBytes = segment.recover(producers, epochs);
                rounds.add(System.nanoTime() - before);
                requireWhole(truncatedBytes);
            }
            rounds.sort(null);
            double median = rounds.get(rounds.size() / 2) / 1e9;
            return "ok\t" + median + "\t" + segment.size() + "\t" + rounds.size();
        } finally {
            release(segment);
        }
    }

    private static void requireWhole(int truncatedBytes) {
        if (truncatedBytes != 0)
            throw new IllegalArgumentException("The segment is damaged: " + truncatedBytes + " bytes were cut off");
    }

    private static LogSegment open(File directory, long baseOffset, int indexIntervalBytes, int segmentIndexBytes)
            throws IOException {
        File log = LogFileUtils.logFile(directory, baseOffset, "");
        if (!log.exists())  // else an empty one would be created
            throw new NoSuchFileException(log.getPath());
        LogConfig config = new LogConfig(Map.of(
            TopicConfig.INDEX_INTERVAL_BYTES_CONFIG, String.valueOf(indexIntervalBytes),
            TopicConfig.SEGMENT_INDEX_BYTES_CONFIG, String.valueOf(segmentIndexBytes)));
        return LogSegment.open(directory, baseOffset, config, Time.SYSTEM, true, 0, false, "");
    }

    private static ProducerStateManager producerState(File directory) throws IOException {
        return new ProducerStateManager(PARTITION, directory, TRANSACTION_TIMEOUT_MS,
            new ProducerStateManagerConfig(PRODUCER_ID_EXPIRATION_MS, false), Time.SYSTEM);
    }

    private static LeaderEpochFileCache leaderEpochs(File directory) throws IOException {
        File file = LeaderEpochCheckpointFile.newFile(directory);
        Files.deleteIfExists(file.toPath());
        return new LeaderEpochFileCache(PARTITION, new UnsyncedCheckpoint(file), SCHEDULER);
    }

    /** Unmaps and closes without flushing and without the time index entry that LogSegment.close would still append. */
    private static void release(LogSegment segment) throws IOException {
        try {
            segment.offsetIndex().closeHandler();
            segment.timeIndex().closeHandler();
        } catch (IllegalArgumentException indexCouldNotBeMade) {
            // A segment.index.bytes below one entry: recover has thrown the same, and there is nothing to unmap.
        } finally {
            segment.txnIndex().close();
            segment.log().closeHandlers();
        }
    }

    private static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r");
    }

    /** The epochs in the checkpoint file's own format, without the fsync of file and folder at each new epoch. */
    private static final class UnsyncedCheckpoint extends LeaderEpochCheckpointFile {
        private final File file;

        private UnsyncedCheckpoint(File file) throws IOException {
            super(file, new LogDirFailureChannel(1));
            this.file = file;
        }

        @Override
        public void write(Collection<EpochEntry> epochs) {
            StringBuilder text = new StringBuilder("0\n").append(epochs.size()).append('\n');
            for (EpochEntry entry : epochs)
                text.append(entry.epoch()).append(' ').append(entry.startOffset()).append('\n');
            try {
                Files.writeString(file.toPath(), text);
            } catch (IOException failure) {
                throw new java.io.UncheckedIOException(failure);
            }
        }
    }
}
