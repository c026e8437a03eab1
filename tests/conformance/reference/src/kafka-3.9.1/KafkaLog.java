import java.io.File;
import java.io.IOException;
import java.security.NoSuchAlgorithmException;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;

import kafka.log.Cleaner;
import kafka.log.LogToClean;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import kafka.server.RequestLocal;
import scala.Option;
import scala.jdk.javaapi.OptionConverters;
import scala.runtime.BoxedUnit;

import org.apache.kafka.common.record.FileRecords.TimestampAndOffset;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;

/** A broker's log as 3.9.1 has it, and what else of Kafka's is called otherwise in other versions. */
final class KafkaLog {
    private static final BrokerTopicStats STATISTICS = new BrokerTopicStats(false);

    private final UnifiedLog log;

    private KafkaLog(UnifiedLog log) {
        this.log = log;
    }

    static int recover(LogSegment segment, ProducerStateManager producers, LeaderEpochFileCache epochs)
            throws IOException {
        return segment.recover(producers, Optional.of(epochs));
    }

    static String numbers(EpochEntry entry) {
        return entry.epoch + " " + entry.startOffset;
    }

    static long startOffset(EpochEntry entry) {
        return entry.startOffset;
    }

    static int epoch(EpochEntry entry) {
        return entry.epoch;
    }

    /** The offset by which what was read is called: that of its batch, or the one that was asked for. */
    static long nameOfRead(long offset, long baseOffset) {
        return offset;
    }

    static String start(String[] fields) {
        throw new UnsupportedOperationException("starts are compared with Kafka 4");
    }

    static String startRaft(String[] fields) {
        return start(fields);
    }

    static KafkaLog create(File directory, LogConfig config, Loading loading) {
        return new KafkaLog(UnifiedLog.apply(directory, config, loading.logStartOffset(), loading.recoveryPoint(),
            loading.scheduler(), STATISTICS, loading.time(), Opening.TRANSACTION_TIMEOUT_MS, loading.producerConfig(),
            Opening.PRODUCER_ID_EXPIRATION_CHECK_MS, loading.failures(), loading.clean(), Option.empty(), true,
            new ConcurrentHashMap<>(), false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER));
    }

    long logStartOffset() {
        return log.logStartOffset();
    }

    long logEndOffset() {
        return log.logEndOffset();
    }

    long lastStableOffset() {
        return log.lastStableOffset();
    }

    long recoveryPoint() {
        return log.recoveryPoint();
    }

    List<LogSegment> segments() {
        return List.copyOf(log.logSegments());
    }

    ProducerStateManager producers() {
        return log.producerStateManager();
    }

    String consume(long offset, boolean committed, int maxBytes) {
        throw new UnsupportedOperationException("reads are compared with the consumer of Kafka 4");
    }

    List<EpochEntry> epochs() {
        return log.leaderEpochCache().get().epochEntries();
    }

    void assignEpoch(int epoch, long startOffset) {
        log.leaderEpochCache().get().assign(epoch, startOffset);
    }

    long updateHighWatermark(long offset) {
        return log.updateHighWatermark(offset);
    }

    LogAppendInfo appendAsLeader(MemoryRecords records, int leaderEpoch, AppendOrigin origin) {
        return log.appendAsLeader(records, leaderEpoch, origin, MetadataVersion.latestProduction(),
            RequestLocal.NoCaching(), VerificationGuard.SENTINEL);
    }

    LogAppendInfo appendAsFollower(MemoryRecords records, int leaderEpoch) {
        return log.appendAsFollower(records, leaderEpoch);
    }

    FetchDataInfo read(long offset, int maxBytes, FetchIsolation isolation, boolean minOneMessage) {
        return log.read(offset, maxBytes, isolation, minOneMessage);
    }

    Optional<TimestampAndOffset> fetchOffsetByTimestamp(long timestamp) {
        return OptionConverters.toJava(log.fetchOffsetByTimestamp(timestamp, Option.empty()));
    }

    void roll() {
        log.roll(Option.empty());
    }

    void flush() {
        log.flush(true);
    }

    void truncateTo(long offset) {
        log.truncateTo(offset);
    }

    /** The first offset that is not cleaned, once the cleaner has been over all below an offset. */
    long clean(long uncleanableOffset) throws NoSuchAlgorithmException {
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(1 << 20), 1 << 20, 1 << 20, 0.9, throttler, Time.SYSTEM,
            partition -> BoxedUnit.UNIT);
        LogToClean cleanable = new LogToClean(log.topicPartition(), log, log.logStartOffset(), uncleanableOffset, false);
        return (long) cleaner.clean(cleanable)._1();
    }

    void close() {
        log.removeLogMetrics();
        log.close();
    }

    /** Lets go of the files as they are. */
    void abandon() {
        log.removeLogMetrics();
        log.closeHandlers();
    }
}
