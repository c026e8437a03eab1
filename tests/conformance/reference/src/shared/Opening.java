import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.util.Collection;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogFileUtils;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/** Opens Kafka's objects with what a broker would hand them, and lets go of them without a trace on disk. */
final class Opening {
    static final int DEFAULT_SEGMENT_INDEX_BYTES = 10 * 1024 * 1024;

    static final int PRODUCER_ID_EXPIRATION_CHECK_MS = 600_000;
    static final int PRODUCER_ID_EXPIRATION_MS = 86_400_000;
    static final int TRANSACTION_TIMEOUT_MS = 900_000;

    private static final TopicPartition PARTITION = new TopicPartition("topic", 0);

    private Opening() {
    }

    static LogSegment segment(File directory, long baseOffset, int indexIntervalBytes, int segmentIndexBytes)
            throws IOException {
        File log = LogFileUtils.logFile(directory, baseOffset, "");
        if (!log.exists())  // else an empty one would be created
            throw new NoSuchFileException(log.getPath());
        return LogSegment.open(directory, baseOffset, config(indexIntervalBytes, segmentIndexBytes), Time.SYSTEM, true,
            0, false, "");
    }

    /** A partition as its leader has it after a clean shutdown: index files are believed. */
    static KafkaLog partition(File directory, int indexIntervalBytes, int segmentIndexBytes, long logStartOffset)
            throws IOException {
        Loading loading =
            new Loading(true, 0, logStartOffset, PRODUCER_ID_EXPIRATION_MS, Time.SYSTEM, Schedulers.IDLE);
        List<EpochEntry> epochs =
            new LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.newFile(directory), loading.failures()).read();
        KafkaLog log = KafkaLog.create(directory, config(indexIntervalBytes, segmentIndexBytes), loading);
        // Loading forgets an epoch without records, and a leader begins one at the log end before it answers.
        if (!epochs.isEmpty()) {
            EpochEntry latest = epochs.get(epochs.size() - 1);
            if (KafkaLog.startOffset(latest) == log.logEndOffset())
                log.assignEpoch(KafkaLog.epoch(latest), log.logEndOffset());
        }
        return log;
    }

    static ProducerStateManager producerState(File directory) throws IOException {
        return new ProducerStateManager(PARTITION, directory, TRANSACTION_TIMEOUT_MS,
            new ProducerStateManagerConfig(PRODUCER_ID_EXPIRATION_MS, false), Time.SYSTEM);
    }

    /** No epochs yet; those that are assigned are left in the directory's checkpoint file. */
    static LeaderEpochFileCache leaderEpochs(File directory) throws IOException {
        File file = LeaderEpochCheckpointFile.newFile(directory);
        Files.deleteIfExists(file.toPath());
        return new LeaderEpochFileCache(PARTITION, new UnsyncedCheckpoint(file), Schedulers.IDLE);
    }

    /** No epochs yet, and none is left anywhere. */
    static LeaderEpochFileCache forgottenEpochs(File directory) throws IOException {
        return new LeaderEpochFileCache(PARTITION, new NoCheckpoint(directory), Schedulers.IDLE);
    }

    /** Unmaps and closes without flushing and without the time index entry that LogSegment.close would still append. */
    static void release(LogSegment segment) throws IOException {
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

    private static LogConfig config(int indexIntervalBytes, int segmentIndexBytes) {
        return new LogConfig(Map.of(
            TopicConfig.INDEX_INTERVAL_BYTES_CONFIG, String.valueOf(indexIntervalBytes),
            TopicConfig.SEGMENT_INDEX_BYTES_CONFIG, String.valueOf(segmentIndexBytes)));
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
                text.append(KafkaLog.numbers(entry)).append('\n');
            try {
                Files.writeString(file.toPath(), text);
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
    }

    /** Leaves the partition's own checkpoint file as it is. */
    private static final class NoCheckpoint extends LeaderEpochCheckpointFile {
        private NoCheckpoint(File directory) throws IOException {
            super(new File(directory, "no-checkpoint"), new LogDirFailureChannel(1));
        }

        @Override
        public void write(Collection<EpochEntry> epochs) {
        }

        @Override
        public List<EpochEntry> read() {
            return List.of();
        }
    }
}
